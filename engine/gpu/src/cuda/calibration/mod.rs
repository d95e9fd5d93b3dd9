//! Measures the rates of this machine's GPUs for planning, once, and caches them; `rankine doctor --bandwidth` shows
//! them.
//!
//! The cache (`$XDG_CACHE_HOME/rankine`, or `~/.cache/rankine`) has one file per number and kind of GPUs, version of
//! the driver and version of Rankine. Thus plans are the same from one training to the next, though measurements vary.
//! The figures that a training was planned with are in its run folder, as `machine.toml`, which `device.machine` and
//! `rankine plan --machine` accept.

mod cache;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use rankine_base::build::Build;
use rankine_cuda::Device;
use rankine_cuda::calibration::{Figures, Links, Sum};
use rankine_embedding::plan::{LinkSpeed, Machine};
use rankine_job::Precision;
use serde::Serialize;

pub use cache::cached;

/// The kind and number of this machine's GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gpus {
    /// The name of the first one.
    pub name: String,
    /// Their number.
    pub count: usize,
    /// The driver's version.
    pub driver: String,
    /// The build of Rankine that uses them.
    #[serde(skip)]
    pub build: Build,
}

impl Gpus {
    /// Returns the name, number and driver version of `devices`, which a build uses.
    ///
    /// # Errors
    /// If the driver does not report a name.
    pub fn of(devices: &[Arc<Device>], build: &Build) -> rankine_cuda::Result<Self> {
        let name = devices.first().map_or(Ok(String::new()), |device| device.name())?;
        Ok(Self { name, count: devices.len(), driver: cache::driver_version(), build: build.clone() })
    }
}

/// Returns the cached figures of GPUs. Without a cache file it measures them now if `devices` has all of the GPUs, and
/// caches the figures; if that fails, it logs a warning.
///
/// # Errors
/// If the GPUs cannot be measured.
fn figures(devices: &[Arc<Device>], gpus: &Gpus) -> rankine_cuda::Result<Option<Figures>> {
    match cached(gpus) {
        Some(figures) => Ok(Some(figures)),
        None if devices.len() == gpus.count => measure(devices, gpus).map(Some),
        None => Ok(None),
    }
}

/// Measures GPUs, regardless of the cache, and caches the figures.
///
/// # Errors
/// If the GPUs cannot be measured.
pub fn measure(devices: &[Arc<Device>], gpus: &Gpus) -> rankine_cuda::Result<Figures> {
    let figures = Figures::measure(devices)?;
    cache::store(gpus, &figures);
    Ok(figures)
}

/// Figures of all GPUs of this machine, and the time that measuring took.
#[derive(Debug, Serialize)]
pub struct Measurement {
    gpus: Gpus,
    figures: Figures,
    #[serde(skip)]
    took: Duration,
}

/// Measures all GPUs together, and caches the figures for this number of GPUs.
///
/// # Errors
/// What is wrong with the GPUs.
pub fn measure_all(build: &Build) -> rankine_cuda::Result<Measurement> {
    let all = Device::count()?;
    let opened = (0..all.max(1)).map(Device::open).collect::<Result<Vec<_>, _>>()?;
    let gpus = Gpus::of(&opened, build)?;
    let began = Instant::now();
    let figures = measure(&opened, &gpus)?;
    Ok(Measurement { gpus, figures, took: began.elapsed() })
}

/// Describes the first `count` GPUs of this machine to the planner.
///
/// # Errors
/// What is wrong with the GPUs.
pub fn machine_here(count: usize, precision: Precision, build: &Build) -> rankine_cuda::Result<Machine> {
    let opened = (0..count).map(Device::open).collect::<Result<Vec<_>, _>>()?;
    machine_of(&opened, count, precision, Some(build))
}

/// Describes the `count` GPUs of a node to the planner; `devices` has some or all of them. It uses measured figures, or
/// the built-in figures of an H200 with the memory of these GPUs: without the `build` that measures, if measuring
/// fails, or if no figures are cached and other processes have some of the GPUs.
///
/// # Errors
/// If the driver does not report the memory or name of a GPU.
pub fn machine_of(
    devices: &[Arc<Device>],
    count: usize,
    precision: Precision,
    build: Option<&Build>,
) -> rankine_cuda::Result<Machine> {
    let memory = devices.iter().map(|device| Ok(device.budget()?.total_bytes));
    let memory_bytes =
        memory.collect::<rankine_cuda::Result<Vec<_>>>()?.into_iter().min().unwrap_or_default();
    let Some(build) = build else { return Ok(known(memory_bytes, precision)) };
    let gpus = Gpus { count, ..Gpus::of(devices, build)? };
    match figures(devices, &gpus) {
        Ok(Some(figures)) => Ok(machine(&gpus, &figures, memory_bytes, precision)),
        Ok(None) => Ok(known(memory_bytes, precision)),
        Err(error) => {
            tracing::warn!(%error, "cannot measure the GPUs, so the planner uses the speeds of H200 GPUs");
            Ok(known(memory_bytes, precision))
        }
    }
}

fn known(memory_bytes: u64, precision: Precision) -> Machine {
    Machine { memory_bytes, vector_element_bytes: precision.vector_element_bytes(), ..Machine::h200() }
}

/// The rate of all products of a model, as a share of the rate of one large product. 690 TFLOP/s fit the products of
/// the reference models on an H200, where one large product reaches 790 TFLOP/s.
const PRODUCTS_SHARE: f64 = 0.87;

/// Describes GPUs to the planner: an H200 with measured figures in place of the built-in ones. The rate of links is
/// that of one rank while all ranks send. The latency and efficiency of all-reduces are fitted to measured all-reduces.
pub fn machine(gpus: &Gpus, figures: &Figures, memory_bytes: u64, precision: Precision) -> Machine {
    let base = Machine::h200();
    let within_nodes = figures.links.as_ref().map_or(base.within_nodes, |links| link(links, gpus.count));
    Machine {
        name: format!("{} x {}", gpus.count, gpus.name),
        memory_bytes,
        memory_bytes_per_s: figures.gather_bytes_per_s,
        flops: PRODUCTS_SHARE * figures.product_flops_per_s,
        within_nodes,
        vector_element_bytes: precision.vector_element_bytes(),
        ..base
    }
}

/// Fits the model of an all-reduce: each rank sends `2 S (ranks - 1) / ranks` bytes, after a latency. The largest
/// all-reduces determine the rate, the smallest the latency.
fn link(links: &Links, ranks: usize) -> LinkSpeed {
    let moved = |sum: &Sum| 2.0 * sum.bytes as f64 * (ranks - 1) as f64 / ranks as f64;
    let latency = links.sums.first().map_or(links.barrier_s, |sum| sum.seconds);
    let efficiency = links.sums.last().map_or(1.0, |sum| {
        let rate = moved(sum) / (sum.seconds - latency).max(0.1 * sum.seconds);
        (rate / links.all_bytes_per_s).clamp(0.05, 1.0)
    });
    LinkSpeed {
        bytes_per_s: links.all_bytes_per_s,
        latency_s: links.barrier_s,
        reduction_efficiency: efficiency,
        reduction_latency_s: latency,
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpus: Gpus { name, count, driver, .. }, figures, took } = self;
        let gb = |bytes_per_s: f64| format!("{:.0} GB/s", bytes_per_s / 1e9);
        let us = |seconds: f64| format!("{:.1} us", seconds * 1e6);
        writeln!(f, "{count} x {name}, driver {driver}: measured in {:.1} s\n", took.as_secs_f64())?;
        let mut line = |what: &str, value: String| writeln!(f, "{what:<52} {value:>12}");
        line("copy within device memory, read + write", gb(figures.copy_bytes_per_s))?;
        line("random rows of 512 bytes, read + write", gb(figures.gather_bytes_per_s))?;
        line("large bf16 matrix products", format!("{:.0} TFLOP/s", figures.product_flops_per_s / 1e12))?;
        line("short kernel after another", us(figures.kernel_s))?;
        line("host to device, one GPU", gb(figures.upload_bytes_per_s))?;
        if *count > 1 {
            line("host to device, per GPU, all at once", gb(figures.upload_all_bytes_per_s))?;
        }
        if let Some(Links { one_bytes_per_s, all_bytes_per_s, barrier_s, sums }) = &figures.links {
            line("rows of 256 bytes to one other GPU", gb(*one_bytes_per_s))?;
            line("rows of 256 bytes to all others, all sending", gb(*all_bytes_per_s))?;
            line("barrier of all GPUs", us(*barrier_s))?;
            for Sum { bytes, seconds } in sums {
                line(&format!("all-reduce over all GPUs, {} each", ByteSize(*bytes)), us(*seconds))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_fitted_to_all_reduces() {
        // 10 us plus the bytes that each of 3 ranks sends, at 2/3 of 3 GB/s.
        let seconds = |bytes: u64| 10e-6 + 2.0 * bytes as f64 * (2.0 / 3.0) / 2e9;
        let sum = |bytes| Sum { bytes, seconds: seconds(bytes) };
        let links = Links {
            one_bytes_per_s: 4e9,
            all_bytes_per_s: 3e9,
            barrier_s: 5e-6,
            sums: vec![sum(0), sum(1 << 20), sum(1 << 24)],
        };
        let found = link(&links, 3);
        assert_eq!((found.bytes_per_s, found.latency_s, found.reduction_latency_s), (3e9, 5e-6, 10e-6));
        assert!((found.reduction_efficiency - 2.0 / 3.0).abs() < 1e-9, "{found:?}");
    }
}
