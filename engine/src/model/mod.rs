//! What a model is, apart from the device that computes it: its parts, their sizes, the layout of its parameters.
//!
//! No arithmetic lives here; `cpu` has that.

mod spec;

pub use spec::{Layer, MlpSpec, ModelSpec};
