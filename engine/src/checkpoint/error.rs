//! What can go wrong with a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use rankine_embedding::rows::RowsError;

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused or failed an operation.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's words.
        source: io::Error,
    },
    /// There is no checkpoint.
    #[error("no checkpoint at {}: it is a folder `checkpoints/step-N` of a run, and has a manifest.json", .0.display())]
    Missing(PathBuf),
    /// A file is not what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It does not suit the job, or the dataset.
    #[error("the checkpoint {} is not one of this job: {what}", path.display())]
    Mismatch {
        /// The checkpoint.
        path: PathBuf,
        /// The first difference, and the way out.
        what: String,
    },
    /// There is nothing worth saving.
    #[error(
        "some of {tensor} are not numbers: training diverged, and the usual cause is a learning rate that is too \
         high; no checkpoint was saved of that"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
    },
    /// The model's state cannot be had from where it is, or put there.
    #[error("the model's state cannot be reached: {0}")]
    State(String),
}

impl From<RowsError> for CheckpointError {
    fn from(error: RowsError) -> Self {
        Self::State(error.to_string())
    }
}

impl CheckpointError {
    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }
}

/// Adds to an `io::Error` what was being done, and to which file.
pub(super) trait Doing<T> {
    /// `doing` is a verb that reads well after "cannot".
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, CheckpointError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, CheckpointError> {
        self.map_err(|source| CheckpointError::Io { doing, path: path.to_owned(), source })
    }
}
