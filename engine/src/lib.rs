//! The engine of Rankine: training, evaluating and scoring with models of the DLRM family.
//!
//! This crate is a part of `rankine` and may change with any version; `rankine::prelude` is stable.
//!
//! [`training`] has the loop, which knows a device as a back end: the crate `rankine-engine-cpu` is the specification,
//! and `rankine-engine-gpu` has the GPUs. [`source`], [`ranker`], [`prediction`] and [`mod@evaluate`] score with saved
//! models. [`planning`], [`tuning`] and [`starter`] choose settings.

#![cfg_attr(docsrs, feature(doc_cfg))]
// `eprintln!` panics if stderr is closed or full.
#![warn(clippy::print_stderr)]
#![forbid(unsafe_code)]

pub mod build;
pub mod delta;
pub mod doctor;
pub mod evaluate;
pub mod features;
#[cfg(test)]
#[path = "../../tests/support/groups.rs"]
#[allow(dead_code, reason = "only whole groups are used here")]
mod groups;
pub mod import;
pub mod importance;
#[cfg(test)]
#[path = "../../tests/support/json_schema.rs"]
mod json_schema;
pub mod planning;
pub mod prediction;
pub mod ranker;
mod raw_rows;
pub mod run_paths;
pub mod source;
pub mod starter;
#[cfg(test)]
mod tests;
pub mod trainer;
pub mod training;
pub mod tuning;
