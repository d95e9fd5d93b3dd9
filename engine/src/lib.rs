//! Rankine, a training engine for ranking models: DLRM and its family.
//!
//! Start at [`job`], which describes a training, and at [`training`], which runs it.

// `eprintln!` panics if stderr is closed or full.
#![warn(clippy::print_stderr)]

pub mod blame;
pub mod checkpoint;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
pub mod cuda;
pub mod doctor;
pub mod evaluation;
pub mod features;
pub mod guard;
pub mod hooks;
pub mod job;
pub mod launch;
mod logit;
pub mod model;
pub mod monitoring;
pub mod overlap;
pub mod planning;
pub mod prediction;
pub mod ranker;
pub mod report;
pub mod saved;
pub mod source;
pub mod system;
pub mod trainer;
pub mod training;

/// The code of the guide compiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/scoring.md")]
#[doc = include_str!("../../docs/guide/pushing.md")]
struct Guides;
