//! The folder of a run in progress: whether its path still leads to it, and the files of its checkpoints.
//!
//! While a run trains, its folder may be removed or moved, and another run may start at its path. Checkpoints are
//! therefore written through a descriptor of the folder, wherever it is, and never by its path. Everything else is
//! written by path, after a check that the folder's lock is in its place.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_base::Error;
use rankine_base::publish::LockMark;
use rankine_checkpoint::{Files, Input, Output};
use rankine_launch::ProcessGroup;

use super::RunDir;
use crate::training::error::TrainError;
use crate::training::processes::path_of_first;

/// The run folder that the first process locked, as each process sees it.
#[derive(Debug, Clone)]
pub(in crate::training) struct RunFolder {
    path: PathBuf,
    held: Arc<HeldFolder>,
}

#[derive(Debug)]
struct HeldFolder {
    lock: LockMark,
    folder: File,
}

impl RunFolder {
    /// The folder of the first process, which is the only one with a `run`. All processes call this.
    ///
    /// # Errors
    /// [`TrainError::Processes`]; [`TrainError::Data`] if the folder cannot be opened.
    pub(in crate::training) fn of(
        processes: &ProcessGroup,
        run: Option<&RunDir>,
    ) -> Result<Self, TrainError> {
        let path = path_of_first(processes, run.map(RunDir::path))?;
        let lock = run.map_or_else(|| LockMark::within(&path), |run| run.lock.mark())?;
        let opened = File::open(&path);
        let folder = opened.map_err(|source| Error::Io { doing: "open", path: path.clone(), source })?;
        Ok(Self { path, held: Arc::new(HeldFolder { lock, folder }) })
    }

    pub(in crate::training) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the path leads to this folder.
    ///
    /// # Errors
    /// [`TrainError::FolderLost`]; [`TrainError::Data`] if that is unknown.
    pub(in crate::training) fn check(&self) -> Result<(), TrainError> {
        self.held.lock.check().map_err(TrainError::of_folder)
    }

    /// Files that are in this folder if their paths are below its path. All operations fail once it is lost.
    pub(in crate::training) fn files(&self, files: &Arc<dyn Files>) -> Arc<dyn Files> {
        Arc::new(HeldFiles { folder: self.clone(), files: Arc::clone(files) })
    }
}

/// See [`RunFolder::files`].
#[derive(Debug)]
struct HeldFiles {
    folder: RunFolder,
    files: Arc<dyn Files>,
}

impl HeldFiles {
    /// The path by which an operation reaches the folder itself, and not another one that has its path by then.
    fn reach(&self, path: &Path) -> io::Result<PathBuf> {
        let RunFolder { path: run, held } = &self.folder;
        held.lock.check().map_err(io::Error::other)?;
        let own = Path::new("/proc/self/fd").join(held.folder.as_raw_fd().to_string());
        Ok(match path.strip_prefix(run) {
            Ok(rest) if own.is_dir() => own.join(rest),
            // Without /proc, the check is all there is.
            _ => path.to_owned(),
        })
    }
}

impl Files for HeldFiles {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.files.create_dir(&self.reach(path)?)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        self.files.create(&self.reach(path)?)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.files.sync_dir(&self.reach(path)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.files.rename(&self.reach(from)?, &self.reach(to)?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.files.remove_dir(&self.reach(path)?)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        self.files.names(&self.reach(path)?)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Input>> {
        self.files.open(&self.reach(path)?)
    }

    fn tree_bytes(&self, path: &Path) -> io::Result<u64> {
        self.files.tree_bytes(&self.reach(path)?)
    }
}
