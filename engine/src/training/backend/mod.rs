//! The devices that train a job. Training knows a device as a [`Backend`]; [`DeviceChoice`] selects one for a job.
//! Whether a build has GPUs is decided here.

mod batches;
mod choice;
mod cpu;
mod device;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu.rs"]
mod gpu;
mod look_ups;
mod measurements;
mod memory;
mod phases;
mod refusal;
mod scorer;
mod threads;

pub(super) use batches::{Batch, Batches};
pub(super) use choice::{DeviceChoice, check_build, device_of};
pub(super) use device::{Backend, InitializedDevice, Profile};
pub(super) use measurements::Measurements;
pub use memory::{DeviceMemory, MemoryPart};
pub(super) use phases::TraceEvent;
pub use phases::{Ceilings, MeasuredPhase};
pub use scorer::{Scorer, ScoringProgress};
pub use threads::thread_pool;
