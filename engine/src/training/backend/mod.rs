//! The devices that train a job. Training knows a device as a [`Backend`]; [`Choice`] selects one for a job. Whether a
//! build has GPUs is decided here.

mod batches;
mod choice;
mod cpu;
mod device;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu.rs"]
mod gpu;
mod refusal;

pub(super) use batches::Batches;
pub(super) use choice::{Choice, device_of};
pub(super) use device::{Backend, Profile};
pub(super) use gpu::gpus_seen;
