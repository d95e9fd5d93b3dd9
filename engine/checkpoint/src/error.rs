//! Errors of checkpoints.

use std::io;
use std::path::{Path, PathBuf};

use rankine_base::sealed::SealedError;
use rankine_embedding::rows::RowsError;

use rankine_base::blame::Blame;

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
        /// The operating system's message.
        source: io::Error,
    },
    /// There is no checkpoint.
    #[error(
        "no checkpoint at {}: a checkpoint is a folder `checkpoints/step-N` of a run, with a manifest.json",
        .0.display()
    )]
    Missing(PathBuf),
    /// There is no delta.
    #[error("no delta at {}: `rankine ckpt delta BASE RUN --out DIR` writes one", .0.display())]
    NoDelta(PathBuf),
    /// A file differs from what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Another version of Rankine wrote it: it may be intact, but this version cannot read it.
    #[error("{} cannot be read: {source}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version that it names.
        source: SealedError,
    },
    /// It cannot be determined whether the latest checkpoint is good. Resuming from an older one could lose work, so
    /// nothing is renamed and nothing is trained.
    #[error(
        "{}. Nothing was changed. {} To resume from the checkpoint before it, move that folder elsewhere; --restart \
         starts over",
        unreadable(path, why),
        remedy(why)
    )]
    Unreadable {
        /// The checkpoint.
        path: PathBuf,
        /// The error.
        why: Box<Self>,
    },
    /// It cannot be determined whether an earlier checkpoint is good, from which the run may take its model.
    #[error(
        "the checkpoint {}, which the run needs for its model, cannot be read, but may be intact: {why}. {} To go on \
         without that checkpoint, move its folder elsewhere and resume",
        path.display(), remedy(why)
    )]
    NeededUnreadable {
        /// The checkpoint.
        path: PathBuf,
        /// The error.
        why: Box<Self>,
    },
    /// There are checkpoints, and all of them are damaged.
    #[error(
        "{}\nRestore one of them from a copy and resume again, or start over with --restart or in another --run-dir",
        none_usable(dir, found)
    )]
    NoneUsable {
        /// The folder.
        dir: PathBuf,
        /// The checkpoints in it, each with its damage.
        found: Vec<String>,
    },
    /// It belongs to another job or dataset.
    #[error("{}. Undo this change, or train in another --run-dir", mismatch(path, what))]
    Mismatch {
        /// The checkpoint.
        path: PathBuf,
        /// The first difference.
        what: String,
    },
    /// The state is not worth saving.
    #[error(
        "{tensor} has non-finite values: training diverged, and the usual cause is a learning rate that is too \
         high; this checkpoint was not saved"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
    },
    /// The model's state cannot be read from its device, or restored there.
    #[error("the model's state cannot be read: {0}")]
    State(String),
}

impl From<RowsError> for CheckpointError {
    fn from(error: RowsError) -> Self {
        Self::State(error.to_string())
    }
}

fn unreadable(path: &Path, why: &CheckpointError) -> String {
    format!("the latest checkpoint {} cannot be read, but may be intact: {why}", path.display())
}

fn none_usable(dir: &Path, found: &[String]) -> String {
    let found: String = found.iter().map(|line| format!("\n  {line}")).collect();
    format!("no checkpoint in {} is usable, and nothing was changed:{found}", dir.display())
}

fn mismatch(path: &Path, what: &str) -> String {
    format!("the checkpoint {} does not match this job: {what}", path.display())
}

/// How to make the checkpoint readable.
fn remedy(why: &CheckpointError) -> &'static str {
    match why {
        CheckpointError::Version { .. } => "Resume with the version of Rankine that wrote it.",
        CheckpointError::Missing(_) => "Put the missing files back and resume again.",
        CheckpointError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            "Put the missing files back and resume again."
        }
        _ => "Make the file readable and resume again.",
    }
}

impl CheckpointError {
    /// Whether bytes were read that differ from those that were written. All other errors leave open whether the
    /// checkpoint is good: another process, machine or version of Rankine may be able to read it.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    /// Who has to act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Io { .. } | Self::NotFinite { .. } | Self::State(_) => Blame::System,
            Self::Damaged { .. } | Self::NoneUsable { .. } => Blame::Data,
            Self::Missing(_) | Self::NoDelta(_) | Self::Mismatch { .. } | Self::Version { .. } => {
                Blame::Usage
            }
            Self::Unreadable { why, .. } | Self::NeededUnreadable { why, .. } => why.blame(),
        }
    }

    /// Why a run cannot be resumed from its checkpoints, without the options of `rankine train`; `None` if this is
    /// another error.
    pub fn unresumable(&self) -> Option<String> {
        match self {
            Self::Unreadable { path, why } => Some(unreadable(path, why)),
            Self::NoneUsable { dir, found } => Some(none_usable(dir, found)),
            Self::Mismatch { path, what } => Some(mismatch(path, what)),
            _ => None,
        }
    }

    /// From the error of a sealed file.
    pub(super) fn sealed(path: &Path, source: SealedError) -> Self {
        if source.is_damage() {
            return Self::damaged(path, source.to_string());
        }
        Self::Version { path: path.to_owned(), source }
    }

    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }
}

/// Adds the operation and the file to an `io::Error`.
pub(super) trait IoContext<T> {
    /// `doing` is a verb that reads well after "cannot".
    fn context(self, doing: &'static str, path: &Path) -> Result<T, CheckpointError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, doing: &'static str, path: &Path) -> Result<T, CheckpointError> {
        self.map_err(|source| match source.kind() {
            // Not an error of the operating system: bytes are missing.
            io::ErrorKind::UnexpectedEof => CheckpointError::damaged(path, "it ends before its last byte"),
            _ => CheckpointError::Io { doing, path: path.to_owned(), source },
        })
    }
}
