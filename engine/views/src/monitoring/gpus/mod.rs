//! Power and energy of GPUs, as NVML reports them.

#[cfg(feature = "cuda")]
mod nvml;
#[cfg(not(feature = "cuda"))]
#[path = "no_nvml.rs"]
mod nvml;

pub(super) use nvml::GpuCollector;

use super::catalog::Family;

const LABELS: &[&str] = &["gpu", "uuid"];

/// What the collector exports.
pub(super) const FAMILIES: [Family; 2] = [
    Family {
        name: "rankine_gpu_power_watts",
        kind: "gauge",
        labels: LABELS,
        meaning: "Power of each GPU of this process, from NVML; absent without it.",
    },
    Family {
        name: "rankine_gpu_energy_joules_total",
        kind: "counter",
        labels: LABELS,
        meaning: "Energy of each GPU of this process since its driver was loaded, from NVML; absent without it.",
    },
];
