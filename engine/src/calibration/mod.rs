//! What the GPUs of this machine do in a second, for planning: measured once and kept, shown by `rankine doctor
//! --bandwidth`.
//!
//! Figures are kept where caches are (`$XDG_CACHE_HOME/rankine`, or `~/.cache/rankine`), in a file for each number and
//! kind of GPUs, version of the driver and version of Rankine. So plans are the same from one training to the next,
//! though measurements never are; what a training was planned with goes into its run's folder, as `machine.toml`, which
//! `device.machine` and `rankine plan --machine` take again.

mod cache;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rankine_cuda::Device;
use rankine_cuda::calibrate::{Figures, Links, Sum};
use rankine_embedding::plan::{LinkSpeed, Machine};
use serde::Serialize;

use crate::job::Precision;
use crate::planning::in_precision;

pub use cache::recall;

/// The GPUs of this machine, as they are found by their name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gpus {
    /// What the first one is called.
    pub name: String,
    /// How many.
    pub count: usize,
    /// The driver's version.
    pub driver: String,
}

impl Gpus {
    /// Some GPUs.
    ///
    /// # Errors
    /// Where the driver does not tell a name.
    pub fn of(devices: &[Arc<Device>]) -> rankine_cuda::Result<Self> {
        let name = devices.first().map_or(Ok(String::new()), |device| device.name())?;
        Ok(Self { name, count: devices.len(), driver: cache::driver_version() })
    }
}

/// The figures of GPUs: those that were kept, or else measured now and kept, where all of them are here. Where they
/// cannot be kept they are measured each time, which a warning says.
///
/// # Errors
/// Where the GPUs cannot be measured.
fn figures(devices: &[Arc<Device>], gpus: &Gpus) -> rankine_cuda::Result<Option<Figures>> {
    match recall(gpus) {
        Some(figures) => Ok(Some(figures)),
        None if devices.len() == gpus.count => measure(devices, gpus).map(Some),
        None => Ok(None),
    }
}

/// Measures GPUs, whatever was kept of them, and keeps what was measured.
///
/// # Errors
/// Where the GPUs cannot be measured.
pub fn measure(devices: &[Arc<Device>], gpus: &Gpus) -> rankine_cuda::Result<Figures> {
    let figures = Figures::measure(devices)?;
    cache::keep(gpus, &figures);
    Ok(figures)
}

/// The GPUs of a node to the planner, `count` of them, some or all of which are given: as they were measured or, where
/// that is not wanted or fails, or was not done and others have some of them, as what is known of H200s with as much
/// memory.
///
/// # Errors
/// Where the driver does not tell what a GPU is.
pub fn machine_of(
    devices: &[Arc<Device>],
    count: usize,
    precision: Precision,
    measured: bool,
) -> rankine_cuda::Result<Machine> {
    let memory = devices.iter().map(|device| Ok(device.budget()?.total_bytes));
    let memory_bytes =
        memory.collect::<rankine_cuda::Result<Vec<_>>>()?.into_iter().min().unwrap_or_default();
    if !measured {
        return Ok(known(memory_bytes, precision));
    }
    let gpus = Gpus { count, ..Gpus::of(devices)? };
    match figures(devices, &gpus) {
        Ok(Some(figures)) => Ok(machine(&gpus, &figures, memory_bytes, precision)),
        Ok(None) => Ok(known(memory_bytes, precision)),
        Err(error) => {
            tracing::warn!(%error, "the GPUs cannot be measured: tables are placed as on H200s");
            Ok(known(memory_bytes, precision))
        }
    }
}

fn known(memory_bytes: u64, precision: Precision) -> Machine {
    in_precision(Machine { memory_bytes, ..Machine::h200() }, precision)
}

/// What part of the rate of one large product the products of a model reach together: 690 TFLOP/s fit those of the
/// reference models on an H200, where a large one alone comes to 790.
const PRODUCTS_SHARE: f64 = 0.87;

/// GPUs to the planner: what was measured in place of what is known of an H200. Of `links` a rank's bytes cross while
/// all others' do; latencies and sums are fitted to what was measured of sums over all ranks.
pub fn machine(gpus: &Gpus, figures: &Figures, memory_bytes: u64, precision: Precision) -> Machine {
    let base = Machine::h200();
    let within_nodes = figures.links.as_ref().map_or(base.within_nodes, |links| link(links, gpus.count));
    let measured = Machine {
        name: format!("{} x {}", gpus.count, gpus.name),
        memory_bytes,
        memory_bytes_per_s: figures.gather_bytes_per_s,
        flops: PRODUCTS_SHARE * figures.product_flops_per_s,
        within_nodes,
        ..base
    };
    in_precision(measured, precision)
}

/// A sum over `ranks` moves `2 S (ranks - 1) / ranks` bytes out of each, and takes a latency beside. The largest sums
/// tell the rate, the smallest the latency.
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

/// Figures in words, and how long it took to measure them.
pub struct Shown<'a>(pub &'a Gpus, pub &'a Figures, pub Duration);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Gpus { name, count, driver }, figures, took) = self;
        let gb = |bytes_per_s: f64| format!("{:.0} GB/s", bytes_per_s / 1e9);
        let us = |seconds: f64| format!("{:.1} us", seconds * 1e6);
        writeln!(f, "{count} x {name}, driver {driver}: measured in {:.1} s\n", took.as_secs_f64())?;
        let mut line = |what: &str, value: String| writeln!(f, "{what:<52} {value:>12}");
        line("copy within memory, read and written", gb(figures.copy_bytes_per_s))?;
        line("rows of 512 bytes at random places, read and written", gb(figures.gather_bytes_per_s))?;
        line("large products in bf16", format!("{:.0} TFLOP/s", figures.product_flops_per_s / 1e12))?;
        line("a short kernel behind another", us(figures.kernel_s))?;
        line("from the host, one GPU alone", gb(figures.upload_bytes_per_s))?;
        if *count > 1 {
            line("from the host, each of all at once", gb(figures.upload_all_bytes_per_s))?;
        }
        if let Some(Links { one_bytes_per_s, all_bytes_per_s, barrier_s, sums }) = &figures.links {
            line("rows of 256 bytes to one other GPU", gb(*one_bytes_per_s))?;
            line("rows of 256 bytes to all others, while all send", gb(*all_bytes_per_s))?;
            line("all GPUs waiting for each other", us(*barrier_s))?;
            for Sum { bytes, seconds } in sums {
                line(&format!("sum over all GPUs of {} KiB each", bytes >> 10), us(*seconds))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_fitted_to_sums() {
        // 10 us, and 3 GB/s times 2/3 of what leaves a rank of 3 GPUs.
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
