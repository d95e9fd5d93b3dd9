//! The run folder, which the first process chooses.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rankine_launch::ProcessGroup;

use crate::training::error::TrainError;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::in_group;

    #[test]
    fn all_processes_get_the_folder_of_the_first() {
        let name = OsString::from_vec(b"runs/\xff \xe6\x98\xa0".to_vec());
        let paths = in_group(3, |group| {
            let own = [Some(Path::new(&name)), None, Some(Path::new("other"))][group.process().0];
            path_of_first(group, own).expect("all processes are there")
        });
        assert!(paths.iter().all(|path| path == Path::new(&name)), "{paths:?}");
        let own = path_of_first(&ProcessGroup::alone(), Some(Path::new("runs/1"))).expect("nobody is missed");
        assert_eq!(own, Path::new("runs/1"));
    }
}
