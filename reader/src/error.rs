//! What can go wrong with outside bytes, said so that a person can act on it.

use std::io;
use std::path::{Path, PathBuf};

use crate::stop::{Stop, StopCause};

/// An error of the reader: names the file, the place in it, the likely cause and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused or failed an operation on a file.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb: "open", "write".
        doing: &'static str,
        /// The file or folder concerned.
        path: PathBuf,
        /// The operating system's own words.
        source: io::Error,
    },
    /// A file of a dataset is not what was written: truncated, flipped or mixed up.
    #[error("{}{} is damaged: {what}", path.display(), at(.offset))]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// The byte offset of the damaged piece, where one can be named.
        offset: Option<u64>,
        /// What was expected and what was found.
        what: String,
    },
    /// Rows of a source that is converted are not what its format says, and were not to be left out, or are too many.
    #[error("{0}")]
    BadRows(String),
    /// Somebody asked the work to stop: see [`crate::Stop`]. What it had written is removed.
    #[error("stopped by {0}: nothing was kept of what was written")]
    Stopped(StopCause),
    /// The caller asked for something that cannot be: a bad option, a mismatch, an existing folder.
    #[error("{0}")]
    Invalid(String),
}

/// The result of the reader's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn at(offset: &Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

impl Error {
    /// A damaged file, with the byte offset of the damage.
    pub fn damaged(path: &Path, offset: impl Into<Option<u64>>, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset: offset.into(), what: what.into() }
    }

    /// A request that cannot be met.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid(what.into())
    }
}

impl Stop {
    /// # Errors
    /// [`Error::Stopped`] once somebody has asked.
    pub fn check(&self) -> Result<()> {
        self.asked().map_or(Ok(()), |cause| Err(Error::Stopped(cause)))
    }
}

/// Adds to an `io::Error` what was being done, and to which file.
pub(crate) trait IoContext<T> {
    /// `doing` is a verb that reads well after "cannot".
    fn context(self, doing: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { doing, path: path.to_owned(), source })
    }
}
