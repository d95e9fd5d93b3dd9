//! What people and Prometheus see of a training: [`monitoring`] exports metrics and serves the live page, and
//! [`report`] shows runs as pages.
//!
//! This crate is a part of `rankine` and may change with any version; `rankine::prelude` is stable.

// `eprintln!` panics if stderr is closed or full.
#![warn(clippy::print_stderr)]

pub mod monitoring;
pub mod report;
