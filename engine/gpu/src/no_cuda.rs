//! What the rest of Rankine asks of the CUDA back end, in a build without it: there are no GPUs.

use std::fmt;
use std::time::Duration;

use rankine_base::build::Build;
use rankine_embedding::plan::Machine;
use rankine_job::Precision;
use serde::Serialize;

use rankine_launch::{Link, MeetError, Meeting, ProcessInfo};

/// Whether this build has the CUDA back end.
pub const IN_BUILD: bool = false;

const NO_CUDA: &str = "this build has no CUDA support (the feature `cuda`)";

/// Measured GPUs; there are none.
#[derive(Debug, Serialize)]
pub enum Measurement {}

impl fmt::Display for Measurement {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

/// The GPUs that this process sees: none.
pub fn gpu_count() -> usize {
    0
}

/// Opens each GPU, of which there are none.
pub fn open_each() -> Vec<Result<u64, String>> {
    Vec::new()
}

/// Measures all GPUs together.
///
/// # Errors
/// There are none.
pub fn measure_all(_: &Build) -> Result<Measurement, String> {
    Err(NO_CUDA.into())
}

/// Describes the GPUs of this machine to the planner.
///
/// # Errors
/// There are none.
pub fn machine_here(_: usize, _: Precision, _: &Build) -> Result<Machine, String> {
    Err(NO_CUDA.into())
}

/// Measures all-reduces over the GPUs of processes, of which there are none.
///
/// # Errors
/// None.
pub fn links(_: &mut Meeting, _: &[ProcessInfo], _: Duration) -> Result<Vec<Link>, MeetError> {
    Ok(Vec::new())
}
