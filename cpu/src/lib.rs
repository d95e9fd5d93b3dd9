//! What Rankine computes on CPUs with SIMD instructions: matrix products and dot interactions.
//!
//! This crate is a part of `rankine` and may change with any version; `rankine::prelude` is stable.
//!
//! - [`PackedWeights`] and [`weight_gradients`] are the three products of a fully connected layer, with [`Epilogue`]s
//!   for biases and ReLUs. They read [`Operand`]s, in f32 or, as [`Arithmetic`] says, rounded to bf16.
//! - [`DotInteraction`] multiplies the vectors of a sample pair by pair.
//!
//! Everything runs on the calling thread. The instruction set is chosen at run time, and changes no bit of results in
//! f32: AVX-512, AVX2 or the base instructions. Threads, models and tables belong to the callers.
//!
//! Debug builds optimize this crate, but not the engine, which compiles faster that way.

mod amx;
mod dot;
mod kernel;
mod layer;
mod matmul;
mod panels;
mod simd;
#[cfg(test)]
mod tests;

pub use dot::{DotInteraction, DotScratch};
pub use layer::{PackedWeights, weight_gradients};
pub use matmul::{Epilogue, Mask, Output};
pub use panels::{Arithmetic, Matrix, MatrixMut, Operand, Pairs, Panels};
pub use simd::{has_amx, has_bf16};
