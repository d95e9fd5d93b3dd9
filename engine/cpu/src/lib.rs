//! Training and scoring on the CPU, on rayon's threads: the executable specification of every other back end. It
//! computes in f32; on request, matrix products round their operands to bf16.
//!
//! A batch is divided into tiles of samples. One thread takes a tile through forward and backward pass of the whole
//! model, so its activations stay in cache. Then the weight gradients are summed over the tiles, in order, with one
//! task per piece of a layer. Then parameters and tables are updated, unless the verdict is that something is not
//! finite. Tiles and pieces depend only on the batch: any number of threads gives the same bits.

#![forbid(unsafe_code)]

mod attention;
mod dense;
mod dynamic;
mod interaction;
mod loss;
mod memory;
mod mlp;
mod model;
mod positions;
mod ranks;
mod replica;
mod scoring;
mod tables;
#[cfg(test)]
mod tests;
mod tile;
mod tiles;
mod verdict;

pub use memory::{scoring_bytes, step_bytes};
pub use model::CpuModel;
pub use ranks::Sharding;
pub use scoring::ScoringModel;
pub use tiles::ScoringBuffers;
