//! The rate at which a GPU multiplies matrices, by its data sheet.

use super::Compute;
use crate::runtime::{Device, Result};

/// The multiplications and additions per second of matrix products at the highest clock rate; `None` if the GPU cannot
/// compute so, or is not in the table here.
///
/// # Errors
/// If the driver reports an error.
pub fn peak_flops_per_s(device: &Device, compute: Compute) -> Result<Option<f64>> {
    let Some(per_clock) = flops_per_clock(device.capability(), compute) else { return Ok(None) };
    let clock_hz = device.clock_hz()?;
    Ok(clock_hz.map(|hz| hz * f64::from(device.multiprocessors()) * f64::from(per_clock)))
}

/// Those of one multiprocessor per clock, for dense matrices: NVIDIA's architecture papers.
fn flops_per_clock(capability: (i32, i32), compute: Compute) -> Option<u32> {
    let [full, tf32, half, fp8] = match capability {
        (8, 0) => [128, 1024, 2048, 0],
        (9, 0) => [256, 2048, 4096, 8192],
        (10, 0) => [256, 4096, 8192, 16384],
        _ => return None,
    };
    let flops = match compute {
        Compute::F32 => full,
        Compute::Tf32 => tf32,
        Compute::Bf16 | Compute::F16 => half,
        Compute::Fp8 => fp8,
    };
    (flops > 0).then_some(flops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_data_sheets() {
        // H100 SXM: 132 multiprocessors, 989 TFLOP/s of bf16 at 1.83 GHz. A100: 108, 312 TFLOP/s at 1.41 GHz.
        let tflop = |capability, compute, multiprocessors: f64, ghz: f64| {
            flops_per_clock(capability, compute).map(|flops| f64::from(flops) * multiprocessors * ghz / 1e3)
        };
        let near = |rate: Option<f64>, expected: f64| (rate.unwrap() / expected - 1.0).abs() < 0.01;
        assert!(near(tflop((9, 0), Compute::Bf16, 132.0, 1.83), 989.0));
        assert!(near(tflop((9, 0), Compute::Fp8, 132.0, 1.83), 1979.0));
        assert!(near(tflop((8, 0), Compute::Bf16, 108.0, 1.41), 312.0));
        assert!(near(tflop((8, 0), Compute::Tf32, 108.0, 1.41), 156.0));
        assert_eq!(flops_per_clock((8, 0), Compute::Fp8), None);
        assert_eq!(flops_per_clock((7, 5), Compute::F32), None);
    }
}
