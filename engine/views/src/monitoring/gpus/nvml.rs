//! Power and energy, read from NVML when metrics are asked for.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nvml_wrapper::{Device, Nvml};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use super::FAMILIES;
use crate::monitoring::catalog::{Catalog, Family};

/// Asks NVML when metrics are asked for. Clones share the GPUs.
#[derive(Debug, Clone)]
pub(in crate::monitoring) struct GpuCollector {
    descs: Vec<Desc>,
    /// The ordinal and the UUID of each GPU.
    gpus: Arc<Mutex<Vec<(usize, String)>>>,
    /// Loaded at the first request, on the thread that answers it.
    nvml: Arc<OnceLock<Option<Nvml>>>,
}

impl GpuCollector {
    pub(in crate::monitoring) fn new() -> Self {
        Self {
            descs: FAMILIES.iter().map(Family::desc).collect(),
            gpus: Arc::default(),
            nvml: Arc::default(),
        }
    }

    /// Registers the metrics.
    pub(in crate::monitoring) fn register(&self, catalog: &mut Catalog) {
        catalog.collector(self.clone(), &FAMILIES);
    }

    /// Sets the GPUs of this process.
    pub(in crate::monitoring) fn watch(&self, gpus: Vec<(usize, String)>) {
        *self.gpus.lock().unwrap_or_else(PoisonError::into_inner) = gpus;
    }
}

impl Collector for GpuCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if gpus.is_empty() {
            return Vec::new();
        }
        let Some(nvml) = self.nvml.get_or_init(|| Nvml::init().ok()) else { return Vec::new() };
        let (mut power, mut energy) = (Vec::new(), Vec::new());
        for (gpu, uuid) in gpus {
            let Ok(device) = nvml.device_by_uuid(uuid.as_str()) else { continue };
            let (watts, joules) = read(&device);
            let labels = [gpu.to_string(), uuid];
            power.extend(watts.map(|watts| (labels.clone(), watts)));
            energy.extend(joules.map(|joules| (labels, joules)));
        }
        let families = FAMILIES.iter().zip([power, energy]).filter(|(_, values)| !values.is_empty());
        families.map(|(family, values)| family.with_values(values)).collect()
    }
}

/// Returns the power in watts and the energy in joules.
fn read(device: &Device<'_>) -> (Option<f64>, Option<f64>) {
    let thousandths = |value: u64| value as f64 / 1e3;
    let power = device.power_usage().ok().map(|milliwatts| thousandths(milliwatts.into()));
    (power, device.total_energy_consumption().ok().map(thousandths))
}
