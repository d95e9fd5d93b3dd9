//! The seam between training and devices: what training asks of a device, and what it passes to it.
//!
//! Training knows a device as a [`Backend`], which may be [measured](Profile) and always [scores](Scorer). It opens
//! [`Batches`], which the device may unpack itself, and passes each [`Batch`] on. `rankine-engine-gpu` has the back end
//! on GPUs; the engine adapts [`CpuModel`](rankine_engine_cpu::CpuModel), the specification of all others.
//!
//! This crate is a part of `rankine` and may change with any version; `rankine::prelude` is stable.

#![forbid(unsafe_code)]

mod backend;
mod batches;
mod error;
mod memory;
mod profile;
mod report;
mod resident;
mod scored;
mod scorer;

pub use backend::{Backend, RankVisit};
pub use batches::{Batch, BatchSource, Batches, CopiedBytes, PackedBatch};
pub use error::{BackendError, Cause};
pub use memory::{DeviceMemory, MemoryPart};
pub use profile::{Ceilings, MeasuredPhase, Profile, TraceEvent};
pub use report::{ExchangedBytes, LookUpCount, PhaseRun, ReportDetails};
pub use resident::ResidentPart;
pub use scored::{PendingMetrics, Scored};
pub use scorer::{Scorer, ScoringProgress, score_on_cpu};
