//! What a model is, apart from the device that computes it: its parts, their sizes, the layout of its parameters, and
//! the rules by which they learn. [`translate`] makes one of a job and a dataset's columns.
//!
//! No layer is computed here. Also what all devices share: the outcome of a step ([`guard`]), the names of what a GPU
//! overlaps ([`overlap`]), and the metrics of predictions ([`evaluation`]).
//!
//! This crate is a part of `rankine` and may change with any version; `rankine::prelude` is stable.

#![forbid(unsafe_code)]

mod attention;
pub mod evaluation;
pub mod guard;
mod initial;
mod interaction;
mod layout;
pub mod logit;
pub mod overlap;
mod rules;
mod spec;
mod translate;
mod validate;

pub use attention::{AttentionSpec, AttentionUnit};
pub use initial::initial_parameters;
pub use interaction::{Interaction, InteractionWork, VectorSizes};
pub use layout::{DenseLayout, Layer, MlpSpec};
pub use rules::{Model, TrainingRules};
pub use spec::{FeatureSpec, HeadSpec, ModelSpec};
pub use translate::translate;
pub use validate::InvalidModel;
