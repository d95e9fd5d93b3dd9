//! The run folder, which the first process chooses.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::super::TrainError;
use crate::launch::ProcessGroup;

/// The path of the first process's run folder, which only that process knows. All processes write checkpoints there.
///
/// # Errors
/// [`TrainError::Processes`].
pub(in crate::training) fn path_of_first(
    processes: &ProcessGroup,
    own: Option<&Path>,
) -> Result<PathBuf, TrainError> {
    let path = own.map_or(&[][..], |path| path.as_os_str().as_bytes());
    Ok(PathBuf::from(OsString::from_vec(processes.of_first("the run's folder", path)?)))
}
