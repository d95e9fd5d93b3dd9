//! What the rest of Rankine asks of the CUDA back end, in a build without it: there are no GPUs.

use std::fmt;
use std::time::Duration;

use rankine_backend::{Backend, BackendError, Cause};
use rankine_base::build::Build;
use rankine_embedding::plan::Machine;
use rankine_job::{Conflict, Job, Precision};
use rankine_launch::{Link, MeetError, Meeting, ProcessInfo};
use rankine_model::ModelSpec;
use serde::Serialize;

use crate::request::{CreateError, ModelRequest, OpenError};

/// Whether this build has the CUDA back end.
pub const IN_BUILD: bool = false;

/// This build has no CUDA back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCuda;

impl fmt::Display for NoCuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this build has no CUDA support (the feature `cuda`)")
    }
}

impl std::error::Error for NoCuda {}

/// Measured GPUs; there are none.
#[derive(Debug, Serialize)]
pub enum Measurement {}

impl fmt::Display for Measurement {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

/// Returns nothing: without kernels it is not known what they refuse.
pub(crate) fn refused_by_kernels(_: &Job, _: &ModelSpec) -> Vec<Conflict> {
    Vec::new()
}

/// Open GPUs, of which there are none.
#[derive(Debug, Clone)]
pub enum OpenGpus {}

impl OpenGpus {
    /// Opens GPUs.
    ///
    /// # Errors
    /// [`OpenError::NotBuilt`].
    pub fn open(_: &[usize]) -> Result<Self, OpenError> {
        Err(OpenError::NotBuilt)
    }

    /// Returns their number.
    pub fn count(&self) -> usize {
        match *self {}
    }

    /// Returns the name of the first GPU.
    ///
    /// # Errors
    /// None.
    pub fn name(&self) -> Result<String, BackendError> {
        match *self {}
    }

    /// Returns the name of the first GPU that does not multiply in fp8.
    ///
    /// # Errors
    /// None.
    pub fn without_fp8(&self) -> Result<Option<String>, BackendError> {
        match *self {}
    }

    /// Loads the libraries of GPUs.
    ///
    /// # Errors
    /// None.
    pub fn check_libraries(&self, _: &Job, _: usize) -> Result<(), Cause> {
        match *self {}
    }

    /// Returns the free bytes of each GPU's memory.
    ///
    /// # Errors
    /// None.
    pub fn free_bytes(&self) -> Result<Vec<u64>, Cause> {
        match *self {}
    }

    /// Describes the GPUs of a node to the planner.
    ///
    /// # Errors
    /// None.
    pub fn machine(&self, _: usize, _: Precision, _: Option<&Build>) -> Result<Machine, BackendError> {
        match *self {}
    }

    /// Creates a model on the GPUs.
    ///
    /// # Errors
    /// None.
    pub fn create(&self, _: &ModelRequest<'_>) -> Result<Box<dyn Backend>, CreateError> {
        match *self {}
    }
}

/// The GPUs that this process sees: none.
pub fn gpu_count() -> usize {
    0
}

/// Opens each GPU, of which there are none.
pub fn open_each() -> Vec<Result<u64, NoCuda>> {
    Vec::new()
}

/// Measures all GPUs together.
///
/// # Errors
/// There are none.
pub fn measure_all(_: &Build) -> Result<Measurement, NoCuda> {
    Err(NoCuda)
}

/// Describes the GPUs of this machine to the planner.
///
/// # Errors
/// There are none.
pub fn machine_here(_: usize, _: Precision, _: &Build) -> Result<Machine, NoCuda> {
    Err(NoCuda)
}

/// Measures all-reduces over the GPUs of processes, of which there are none.
///
/// # Errors
/// None.
pub fn links(_: &mut Meeting, _: &[ProcessInfo], _: Duration) -> Result<Vec<Link>, MeetError> {
    Ok(Vec::new())
}
