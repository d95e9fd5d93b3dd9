//! What every part of Rankine builds on: files that people write, outputs that appear whole, locks, stop requests, and
//! errors that say who must act.
//!
//! This crate is a part of `rankine` and may change with any version; `rankine::prelude` is stable.
//!
//! [`document`] reads TOML files and shows where they are wrong. [`publish`] locks outputs and makes them appear
//! complete or not at all, and [`sealed`] stores JSON with a checksum of itself. Nothing here knows datasets, models
//! or devices.

// Tests watch system calls.
#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod blame;
pub mod build;
pub mod document;
pub mod error;
pub mod escape;
pub mod file_identity;
pub mod files;
pub mod hooks;
pub mod nearest;
pub mod numa;
pub mod publish;
pub mod sealed;
pub mod size;
pub mod stop;
pub mod system;
pub mod url;

pub use error::{Error, InvalidValue, Malformed, Result};
pub use nearest::{did_you_mean, nearest};
pub use stop::{Stop, StopCause};
