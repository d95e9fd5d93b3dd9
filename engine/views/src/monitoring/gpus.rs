//! What the GPUs draw, how busy they are, and what slows them down, read when metrics are asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use rankine_engine_gpu::{GpuMeter, GpuReading, NvmlMeter};

use super::catalog::{Catalog, Family};

const LABELS: &[&str] = &["gpu", "uuid"];

const fn gauge(name: &'static str, labels: &'static [&'static str], meaning: &'static str) -> Family {
    Family { name, kind: "gauge", labels, meaning }
}

/// What the collector exports.
const FAMILIES: [Family; 8] = [
    gauge(
        "rankine_gpu_power_watts",
        LABELS,
        "Power of each GPU of this process, from NVML; absent without it, as are all that follow.",
    ),
    gauge("rankine_gpu_power_limit_watts", LABELS, "The limit of that power which applies."),
    Family {
        name: "rankine_gpu_energy_joules_total",
        kind: "counter",
        labels: LABELS,
        meaning: "Energy of each GPU of this process since its driver was loaded.",
    },
    gauge(
        "rankine_gpu_utilization_ratio",
        LABELS,
        "Fraction of the last sample period (at most one second) in which a kernel was running. It does not measure \
         how well kernels use the GPU.",
    ),
    gauge(
        "rankine_gpu_memory_used_bytes",
        LABELS,
        "Memory of the GPU that all processes and the driver use now.",
    ),
    gauge("rankine_gpu_temperature_celsius", LABELS, "Temperature of the GPU's chip."),
    gauge(
        "rankine_gpu_clock_hertz",
        &["gpu", "uuid", "clock"],
        "Clocks of the GPU: `sm` of its multiprocessors, `memory` of its memory.",
    ),
    gauge(
        "rankine_gpu_throttled",
        &["gpu", "uuid", "reason"],
        "1 for each reason why the clocks of the GPU are lower than they could be, 0 for the others. `power_cap`: the \
         GPU is at its power limit; `software_thermal` and `hardware_thermal`: it is too hot.",
    ),
];

/// Reads the meters when metrics are asked for. Clones share the GPUs.
#[derive(Debug, Clone)]
pub(super) struct GpuCollector {
    descs: Vec<Desc>,
    /// The ordinal and the UUID of each GPU.
    gpus: Arc<Mutex<Vec<(usize, String)>>>,
    meter: Arc<dyn GpuMeter>,
}

impl GpuCollector {
    pub(super) fn new() -> Self {
        Self::with(Arc::new(NvmlMeter::default()))
    }

    fn with(meter: Arc<dyn GpuMeter>) -> Self {
        Self { descs: FAMILIES.iter().map(Family::desc).collect(), gpus: Arc::default(), meter }
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

/// Values of a reading that are known: the family's name, its last label if it has a third one, and the value.
fn values(reading: &GpuReading) -> Vec<(&'static str, Option<&'static str>, f64)> {
    let &GpuReading { watts, limit_watts, joules, busy_share, memory_bytes, celsius, .. } = reading;
    let single = [
        ("rankine_gpu_power_watts", watts),
        ("rankine_gpu_power_limit_watts", limit_watts),
        ("rankine_gpu_energy_joules_total", joules),
        ("rankine_gpu_utilization_ratio", busy_share),
        ("rankine_gpu_memory_used_bytes", memory_bytes.map(|bytes| bytes as f64)),
        ("rankine_gpu_temperature_celsius", celsius),
    ];
    let single = single.into_iter().filter_map(|(name, value)| Some((name, None, value?)));
    let clocks = [("sm", reading.sm_hertz), ("memory", reading.memory_hertz)];
    let clocks = clocks
        .into_iter()
        .filter_map(|(clock, hertz)| Some(("rankine_gpu_clock_hertz", Some(clock), hertz?)));
    let reasons = reading.throttling.into_iter().flat_map(|throttling| throttling.reasons());
    let reasons =
        reasons.map(|(reason, holds)| ("rankine_gpu_throttled", Some(reason), f64::from(u8::from(holds))));
    single.chain(clocks).chain(reasons).collect()
}

impl Collector for GpuCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (gpu, uuid) in gpus {
            let reading = self.meter.read(&uuid).unwrap_or_default();
            for (name, label, value) in values(&reading) {
                let mut labels = vec![gpu.to_string(), uuid.clone()];
                labels.extend(label.map(ToOwned::to_owned));
                found.entry(name).or_default().push((labels, value));
            }
        }
        FAMILIES.iter().filter_map(|family| Some(family.with_values(found.remove(family.name)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use rankine_engine_gpu::Throttling;

    use super::*;
    use crate::monitoring::text;

    /// Knows two GPUs, one of them only by its power.
    #[derive(Debug)]
    struct Meter;

    impl GpuMeter for Meter {
        fn read(&self, uuid: &str) -> Option<GpuReading> {
            let known = GpuReading { watts: Some(650.5), ..GpuReading::default() };
            match uuid {
                "GPU-1" => Some(GpuReading {
                    limit_watts: Some(700.0),
                    joules: Some(9000.25),
                    busy_share: Some(0.75),
                    memory_bytes: Some(1 << 30),
                    celsius: Some(61.0),
                    sm_hertz: Some(1.755e9),
                    memory_hertz: Some(3.201e9),
                    throttling: Some(Throttling::from_bits(0x4)),
                    ..known
                }),
                "GPU-2" => Some(known),
                _ => None,
            }
        }

        fn absence(&self) -> Option<String> {
            None
        }
    }

    #[test]
    fn each_gpu_has_the_values_that_its_meter_knows() {
        let collector = GpuCollector::with(Arc::new(Meter));
        assert!(collector.collect().is_empty(), "no GPU is watched");
        collector.watch(vec![(0, "GPU-1".into()), (3, "GPU-2".into()), (4, "GPU-3".into())]);
        let families = collector.collect();
        let names: Vec<_> = families.iter().map(MetricFamily::name).collect();
        assert_eq!(names, FAMILIES.map(|family| family.name));
        let mut catalog = Catalog::default();
        collector.register(&mut catalog);
        let text = String::from_utf8(text::of(&catalog.registry)).expect("it is text");
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let one = r#"{gpu="0",uuid="GPU-1""#;
        for expected in [
            format!("rankine_gpu_power_watts{one}}} 650.5"),
            r#"rankine_gpu_power_watts{gpu="3",uuid="GPU-2"} 650.5"#.into(),
            format!("rankine_gpu_power_limit_watts{one}}} 700"),
            format!("rankine_gpu_energy_joules_total{one}}} 9000.25"),
            format!("rankine_gpu_utilization_ratio{one}}} 0.75"),
            format!("rankine_gpu_memory_used_bytes{one}}} 1073741824"),
            format!("rankine_gpu_temperature_celsius{one}}} 61"),
            format!("rankine_gpu_clock_hertz{one},clock=\"sm\"}} 1755000000"),
            format!("rankine_gpu_clock_hertz{one},clock=\"memory\"}} 3201000000"),
            format!("rankine_gpu_throttled{one},reason=\"power_cap\"}} 1"),
            format!("rankine_gpu_throttled{one},reason=\"idle\"}} 0"),
        ] {
            assert!(lines.contains(&expected.as_str()), "{expected} is missing in\n{text}");
        }
        assert_eq!(lines.iter().filter(|line| line.contains("GPU-2")).count(), 1);
        assert!(!text.contains("GPU-3"));
    }
}
