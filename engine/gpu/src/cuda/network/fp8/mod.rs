//! The parts of a network in fp8: the hidden layers of the top MLP, and cross layers before it.
//!
//! Activations and gradients between such layers are stored only in fp8, each row by row and also transposed for the
//! weight gradients: products write both. Inputs from other parts are rounded first, and outputs to other parts are
//! bf16.

mod cross;
mod mlp;

pub(super) use cross::{Backward as CrossBackward, CrossGradientOutputs, Forward as CrossForward, Fp8Cross};
pub(super) use mlp::{Backward, Forward, Fp8Mlp, Input};
