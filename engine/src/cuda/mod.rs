//! Training and scoring on GPUs: the same model as [`crate::cpu`] has, from the same initial weights.
//!
//! An iteration is captured once as a graph and replayed: the batch and what the step is told lie in a slot in the
//! GPU's memory, which a lane of its own fills while the iteration before runs. The host waits for nothing inside of an
//! iteration; losses come back some steps later. Batches that are shorter than the rest are filled up with samples
//! without label, which count for nothing.
//!
//! Over several GPUs each has a rank, on a thread of its own: a run of the samples of every batch, a replica of the
//! dense parts and its part of the tables. Rows and their gradients are exchanged; dense gradients, losses and what was
//! found to be wrong are added up in the order of ranks. So the verdict on a step is the same everywhere, and so are
//! the replicas, bit by bit.
//!
//! Activations and the gradients by them are f32, bf16 or f16, as `device.precision` says; weights, their gradients and
//! all sums are f32. Sums are taken in a fixed order, so that a run has the same bits each time on the same GPU with
//! the same cuBLASLt.

mod batch;
mod error;
mod evaluation;
mod feed;
mod input;
mod iteration;
mod model;
mod network;
mod pieces;
mod rank;
mod refusal;
mod tables;
mod together;
mod trainer;
mod unpack;
mod work;
mod workers;

pub use error::{Error, Result};
pub use evaluation::{CudaEvaluation, JudgedPart, Judgement, Scored};
pub use feed::{FedBatch, FedPart, Feed};
pub use input::{InputLayout, InputSlot};
pub use model::{BatchShape, CudaModel, Execution};
pub use refusal::refusals;
pub use unpack::Unpacker;
