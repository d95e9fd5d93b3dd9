//! Training and scoring on GPUs: the same model as in [`rankine_engine_cpu`], from the same initial weights.
//!
//! An iteration is captured once as a CUDA graph and replayed. The batch and the step's parameters are in a slot in
//! the GPU's memory, which a separate lane fills while the iteration before runs. The host waits for nothing within an
//! iteration; losses are read some steps later. Shorter batches are padded with samples without labels, which do not
//! count.
//!
//! With several GPUs, each has a rank, on its own thread: a share of every batch's samples, a replica of the dense
//! parts and its part of the tables. Rows and their gradients are exchanged; dense gradients, losses and the findings
//! on non-finite values are summed in the order of ranks. So the verdict on a step is the same on every rank, and the
//! replicas stay bitwise identical.
//!
//! Activations and the gradients with respect to them are f32, bf16 or f16, according to `device.precision`; weights,
//! their gradients and all sums are f32. Sums are taken in a fixed order, so that a run has the same bits each time on
//! the same GPU with the same cuBLASLt.

mod batch;
mod binding;
pub mod calibration;
mod capture;
mod context;
mod delivery;
mod dynamic;
mod error;
mod evaluation;
mod factors;
mod feed;
mod gpu_rank;
mod gpus;
mod group;
mod input;
mod iteration;
mod lanes;
mod links;
mod model;
mod network;
mod phase;
mod phase_timer;
mod phase_work;
mod rank;
mod refusal;
mod score_size;
mod scoring;
mod setup;
mod slots;
mod tables;

pub use calibration::{Measurement, machine_here, measure_all};
pub use delivery::Delivery;
pub use error::{Error, Result};
pub use evaluation::{CudaEvaluation, EvaluationResult, EvaluationShape, ScoredBatch};
pub use feed::{Feed, FeedBatch, FeedPart, FeedRanks};
pub use gpus::OpenGpus;
pub use input::{InputLanes, InputLayout, InputSlot, StepParameters, Unpacker};
pub use links::links;
pub use model::CudaModel;
pub(crate) use refusal::refused_by_kernels;
pub use setup::{BatchShape, Execution, ModelSetup, ScoreSize};

/// Whether this build has the CUDA back end.
pub const IN_BUILD: bool = true;

/// The GPUs that this process sees.
pub fn gpu_count() -> usize {
    rankine_cuda::Device::count().unwrap_or(0)
}

/// Opens each GPU, which loads the kernels: the free bytes of its memory, or why it cannot be used.
pub fn open_each() -> Vec<rankine_cuda::Result<u64>> {
    use rankine_cuda::Device;

    let open = |ordinal| Device::open(ordinal).and_then(|device| Ok(device.budget()?.free_bytes));
    (0..gpu_count()).map(open).collect()
}
