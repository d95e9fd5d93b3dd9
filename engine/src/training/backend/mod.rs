//! The devices that train a job. [`DeviceChoice`] selects one, on which training has a
//! [`Backend`](rankine_backend::Backend): GPUs, or the CPU.

mod choice;
mod cpu;
mod gpu;
mod initialized;
mod look_ups;
mod measurements;
mod refusal;
mod threads;

pub(super) use choice::{DeviceChoice, check_build, device_of};
pub(super) use initialized::InitializedDevice;
pub(super) use measurements::Measurements;
pub use threads::thread_pool;
