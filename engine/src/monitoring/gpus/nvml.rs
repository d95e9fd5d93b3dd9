//! Power and energy, read from NVML when metrics are asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nvml_wrapper::{Device, Nvml};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use super::super::catalog::{Catalog, Family};
use super::FAMILIES;

/// Asks NVML when metrics are asked for. Clones share the GPUs.
#[derive(Debug, Clone)]
pub(in super::super) struct GpuCollector {
    descs: Vec<Desc>,
    /// The ordinal and the UUID of each GPU.
    gpus: Arc<Mutex<Vec<(usize, String)>>>,
    /// Loaded at the first request, on the thread that answers it.
    nvml: Arc<OnceLock<Option<Nvml>>>,
}

impl GpuCollector {
    pub(in super::super) fn new() -> Self {
        let desc = |family: &Family| {
            let labels = family.labels.iter().map(|&label| label.to_owned()).collect();
            Desc::new(family.name.into(), family.meaning.into(), labels, HashMap::new())
                .expect("names and labels are valid constants")
        };
        Self { descs: FAMILIES.iter().map(desc).collect(), gpus: Arc::default(), nvml: Arc::default() }
    }

    /// Registers the metrics.
    pub(in super::super) fn register(&self, catalog: &mut Catalog) {
        catalog.collector(self.clone(), &FAMILIES);
    }

    /// Sets the GPUs of this process.
    pub(in super::super) fn watch(&self, gpus: Vec<(usize, String)>) {
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
            watts.iter().for_each(|&watts| power.push(metric(gpu, &uuid, watts, MetricType::GAUGE)));
            joules.iter().for_each(|&joules| energy.push(metric(gpu, &uuid, joules, MetricType::COUNTER)));
        }
        let kinds = [(power, MetricType::GAUGE), (energy, MetricType::COUNTER)];
        let families = FAMILIES.iter().zip(kinds).filter(|(_, (metrics, _))| !metrics.is_empty());
        let made = families.map(|(family, (metrics, kind))| {
            let mut made = MetricFamily::default();
            made.set_name(family.name.to_owned());
            made.set_help(family.meaning.to_owned());
            made.set_field_type(kind);
            made.set_metric(metrics);
            made
        });
        made.collect()
    }
}

/// Returns the power in watts and the energy in joules.
fn read(device: &Device<'_>) -> (Option<f64>, Option<f64>) {
    let thousandths = |value: u64| value as f64 / 1e3;
    let power = device.power_usage().ok().map(|milliwatts| thousandths(milliwatts.into()));
    (power, device.total_energy_consumption().ok().map(thousandths))
}

fn metric(gpu: usize, uuid: &str, value: f64, kind: MetricType) -> Metric {
    let pair = |name: &str, value: String| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        pair
    };
    let mut metric = Metric::default();
    metric.set_label(vec![pair("gpu", gpu.to_string()), pair("uuid", uuid.to_owned())]);
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}
