//! Threads that run near their GPUs.

use std::sync::Arc;

use rankine_base::numa::{Binding, NumaNodes};
use rankine_cuda::{Device, Result};

/// Returns where the threads of some GPUs run, if they are bound: on the NUMA node of all of them, if it is one.
///
/// # Errors
/// If the driver does not report where a GPU is.
pub(super) fn near(devices: &[Arc<Device>], binds: bool) -> Result<Binding> {
    if !binds {
        return Ok(Binding::ANYWHERE);
    }
    let addresses = devices.iter().map(|device| device.pci_address()).collect::<Result<Vec<_>>>()?;
    Ok(NumaNodes::here().near(addresses.iter().map(String::as_str)))
}
