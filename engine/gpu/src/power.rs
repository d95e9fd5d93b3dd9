//! Meters of GPUs: what they draw, how busy they are, and what slows them down.

use std::fmt;
use std::sync::OnceLock;

pub use rankine_cuda::nvml::{GpuReading, Throttling};
use rankine_cuda::nvml::{Nvml, NvmlError};

/// Reads GPUs. A reading takes about a millisecond, and disturbs no work of the GPU.
pub trait GpuMeter: fmt::Debug + Send + Sync {
    /// Returns what is known of the GPU with this UUID, which nvidia-smi writes the same way; `None` if it cannot be
    /// read.
    fn read(&self, uuid: &str) -> Option<GpuReading>;

    /// Returns why no GPU can be read.
    fn absence(&self) -> Option<String>;
}

/// NVML, which is loaded at the first reading.
#[derive(Debug, Default)]
pub struct NvmlMeter(OnceLock<Result<Nvml, NvmlError>>);

impl NvmlMeter {
    fn nvml(&self) -> Result<&Nvml, &NvmlError> {
        self.0.get_or_init(Nvml::load).as_ref()
    }
}

impl GpuMeter for NvmlMeter {
    fn read(&self, uuid: &str) -> Option<GpuReading> {
        self.nvml().ok()?.read(uuid)
    }

    fn absence(&self) -> Option<String> {
        self.nvml().err().map(ToString::to_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine with NVML, the other half.
    #[test]
    fn nvml_reads_no_gpu_that_does_not_exist_and_says_why_if_it_is_absent() {
        let meter = NvmlMeter::default();
        assert_eq!(meter.read("GPU-0"), None);
        assert!(meter.absence().is_none_or(|why| why.contains("NVML") || why.contains("nvml")));
    }
}
