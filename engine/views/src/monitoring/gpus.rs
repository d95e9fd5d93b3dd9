//! Power and energy of GPUs, read when metrics are asked for.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use rankine_engine_gpu::PowerMeter;

use super::catalog::{Catalog, Family};

const LABELS: &[&str] = &["gpu", "uuid"];

/// What the collector exports.
const FAMILIES: [Family; 2] = [
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

/// Reads the meters when metrics are asked for. Clones share the GPUs.
#[derive(Debug, Clone)]
pub(super) struct GpuCollector {
    descs: Vec<Desc>,
    /// The ordinal and the UUID of each GPU.
    gpus: Arc<Mutex<Vec<(usize, String)>>>,
    meter: Arc<PowerMeter>,
}

impl GpuCollector {
    pub(super) fn new() -> Self {
        Self {
            descs: FAMILIES.iter().map(Family::desc).collect(),
            gpus: Arc::default(),
            meter: Arc::default(),
        }
    }

    /// Registers the metrics.
    pub(super) fn register(&self, catalog: &mut Catalog) {
        catalog.collector(self.clone(), &FAMILIES);
    }

    /// Sets the GPUs of this process.
    pub(super) fn watch(&self, gpus: Vec<(usize, String)>) {
        *self.gpus.lock().unwrap_or_else(PoisonError::into_inner) = gpus;
    }
}

impl Collector for GpuCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut watts, mut joules) = (Vec::new(), Vec::new());
        for (gpu, uuid) in gpus {
            let power = self.meter.read(&uuid);
            let labels = [gpu.to_string(), uuid];
            watts.extend(power.watts.map(|watts| (labels.clone(), watts)));
            joules.extend(power.joules.map(|joules| (labels, joules)));
        }
        let families = FAMILIES.iter().zip([watts, joules]).filter(|(_, values)| !values.is_empty());
        families.map(|(family, values)| family.with_values(values)).collect()
    }
}
