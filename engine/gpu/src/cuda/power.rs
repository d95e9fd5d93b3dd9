//! Power and energy of GPUs, as NVML reports them.

use std::sync::OnceLock;

use nvml_wrapper::Nvml;

use crate::request::Power;

/// Reads the power of GPUs from NVML, which is loaded at the first reading.
#[derive(Debug, Default)]
pub struct PowerMeter(OnceLock<Option<Nvml>>);

impl PowerMeter {
    /// Returns the power and energy of the GPU with this UUID, as far as NVML knows them.
    pub fn read(&self, uuid: &str) -> Power {
        let nvml = self.0.get_or_init(|| Nvml::init().ok());
        let Some(device) = nvml.as_ref().and_then(|nvml| nvml.device_by_uuid(uuid).ok()) else {
            return Power::default();
        };
        let thousandths = |value: u64| value as f64 / 1e3;
        Power {
            watts: device.power_usage().ok().map(|milliwatts| thousandths(milliwatts.into())),
            joules: device.total_energy_consumption().ok().map(thousandths),
        }
    }
}
