//! Training and scoring on the CPU, in f32, on rayon's threads: the executable specification of every other back end.
//!
//! A batch is cut into tiles of samples. Each tile goes forward and back through the whole model on one thread, so its
//! activations stay in cache; then the weight gradients are summed over tiles, in order, a piece of a layer a task;
//! then parameters and tables are updated, unless the verdict is that something is no finite number. Tiles and pieces
//! depend on the batch alone: any number of threads gives the same bits.

mod dense;
mod interaction;
mod kernel;
mod loss;
mod matmul;
mod mlp;
mod model;
#[cfg(test)]
mod oracle;
mod ranks;
mod replica;
mod tables;
mod tile;
mod verdict;

pub use model::CpuModel;
pub use ranks::{RankTraffic, Sharding};
#[cfg(feature = "cuda")]
pub(crate) use replica::initial_parameters;
