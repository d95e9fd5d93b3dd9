//! Rankine, a training engine for ranking models: DLRM and its family.
//!
//! [`prelude`] is the stable interface, and [`job`] has all settings of a training. The guide has a page for those who
//! use the library, "Rankine as a library".

// `eprintln!` panics if stderr is closed or full.
#![warn(clippy::print_stderr)]

pub mod prelude;

#[cfg(test)]
#[path = "../../tests/support/groups.rs"]
#[allow(dead_code, reason = "only whole groups are used here")]
mod groups;
#[cfg(test)]
#[path = "../../tests/support/json_schema.rs"]
mod json_schema;

pub use rankine_job as job;

// For the command and the tests, which are crates of their own: these modules change with any version.
#[doc(hidden)]
pub mod build;
#[doc(hidden)]
pub mod checkpoint;
#[doc(hidden)]
pub mod cpu;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod cuda;
#[cfg(not(feature = "cuda"))]
#[doc(hidden)]
#[path = "no_cuda.rs"]
pub mod cuda;
#[doc(hidden)]
pub mod doctor;
#[doc(hidden)]
pub mod evaluate;
#[doc(hidden)]
pub mod features;
#[doc(hidden)]
pub mod monitoring;
#[doc(hidden)]
pub mod planning;
#[doc(hidden)]
pub mod prediction;
#[doc(hidden)]
pub mod ranker;
mod raw_rows;
#[doc(hidden)]
pub mod report;
#[doc(hidden)]
pub mod run_paths;
#[doc(hidden)]
pub mod saved;
#[doc(hidden)]
pub mod source;
#[doc(hidden)]
pub mod starter;
#[doc(hidden)]
pub mod trainer;
#[doc(hidden)]
pub mod training;
#[doc(hidden)]
pub mod tuning;

/// The code of the guide compiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/rust.md")]
#[doc = include_str!("../../docs/guide/scoring.md")]
#[doc = include_str!("../../docs/guide/pushing.md")]
struct Guides;
