//! Training and scoring on a GPU: the same model as [`crate::cpu`] has, from the same initial weights.
//!
//! An iteration is captured once as a graph and replayed: the batch and what the step is told lie in a slot in the
//! GPU's memory, which a lane of its own fills while the iteration before runs. The host waits for nothing inside of an
//! iteration; losses come back some steps later. Batches that are shorter than the rest are filled up with samples
//! without label, which count for nothing.
//!
//! Activations and the gradients by them are f32, bf16 or f16, as `device.precision` says; weights, their gradients and
//! all sums are f32. Sums are taken in a fixed order, so that a run has the same bits each time on the same GPU with
//! the same cuBLASLt.

mod error;
mod evaluation;
mod feed;
mod input;
mod iteration;
mod model;
mod network;
mod refusal;
mod unpack;
mod work;

pub use error::{Error, Result};
pub use evaluation::{CudaEvaluation, Judgement, Scored};
pub use feed::{FedBatch, Feed};
pub use input::{InputLayout, InputSlot};
pub use model::{BatchShape, CudaModel};
pub use refusal::refusals;
pub use unpack::Unpacker;
