//! The device memory that a job uses, by purpose.

use std::fmt;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// The memory of a device that has its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// The number of the device.
    pub gpu: usize,
    /// Its UUID, as NVIDIA's tools write it.
    pub uuid: String,
    /// What the job uses, the largest part first.
    pub parts: Vec<MemoryPart>,
    /// Bytes that remain free.
    pub free_bytes: u64,
    /// Bytes of the device.
    pub total_bytes: u64,
}

/// A part of the memory that a job uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPart {
    /// Its purpose.
    pub purpose: String,
    /// How many bytes.
    pub bytes: u64,
}

impl DeviceMemory {
    /// The device that the job uses most of.
    pub fn fullest(devices: Vec<Self>) -> Option<Self> {
        devices.into_iter().max_by_key(Self::bytes)
    }

    /// Bytes that the job uses.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

impl fmt::Display for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} of {:.2}", ByteSize(self.bytes()), ByteSize(self.total_bytes))?;
        for (number, MemoryPart { purpose, bytes }) in self.parts.iter().enumerate() {
            write!(f, "{} {purpose} {:.2}", if number == 0 { ":" } else { "," }, ByteSize(*bytes))?;
        }
        write!(f, "; {:.2} remain free", ByteSize(self.free_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_taken_for_what() {
        let part = |purpose: &str, bytes| MemoryPart { purpose: purpose.into(), bytes };
        let memory = DeviceMemory {
            gpu: 0,
            uuid: String::new(),
            parts: vec![part("tables", 96_160_000_000), part("routes", 1_500_000_000)],
            free_bytes: 50_000_000_000,
            total_bytes: 150_110_000_000,
        };
        let line = "90.95 GiB of 139.80 GiB: tables 89.56 GiB, routes 1.40 GiB; 46.57 GiB remain free";
        assert_eq!(memory.to_string(), line);
    }

    #[test]
    fn the_fullest_device_is_that_on_which_the_job_uses_most() {
        let device = |gpu, tables, total_bytes| {
            let parts = [("tables", tables), ("routes", 10)];
            let parts = parts.map(|(purpose, bytes)| MemoryPart { purpose: purpose.into(), bytes });
            DeviceMemory {
                gpu,
                uuid: String::new(),
                parts: parts.into(),
                free_bytes: 1000 - tables,
                total_bytes,
            }
        };
        assert_eq!(device(0, 60, 2000).bytes(), 70);
        let devices = vec![device(0, 60, 2000), device(1, 80, 1000), device(2, 70, 3000)];
        assert_eq!(DeviceMemory::fullest(devices).map(|device| device.gpu), Some(1));
        assert_eq!(DeviceMemory::fullest(Vec::new()), None);
    }
}
