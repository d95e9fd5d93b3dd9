//! What a model is, apart from the device that computes it: its parts, their sizes, the layout of its parameters, and
//! the rules by which they learn.
//!
//! This module has no arithmetic; `cpu` has that.

mod layout;
mod rules;
mod spec;
mod validate;

pub use layout::{DenseLayout, Layer, MlpSpec};
pub use rules::{Model, TrainingRules};
pub use spec::{FeatureSpec, HeadSpec, Interaction, ModelSpec};
