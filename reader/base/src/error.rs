//! Errors about outside bytes, worded so that a person can act on them.

use std::io;
use std::path::{Path, PathBuf};

use crate::stop::{Stop, StopCause};

/// An error of the reader. It names the file, the position in it, the likely cause and the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused or failed an operation on a file.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The operation that failed, as a verb: "open", "write".
        doing: &'static str,
        /// The file or folder concerned.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file of a dataset is not as it was written: truncated, changed or swapped.
    #[error("{}{} is damaged: {what}", path.display(), at(.offset))]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// The byte offset of the damage, if known.
        offset: Option<u64>,
        /// What was expected and what was found.
        what: String,
    },
    /// Rows of a converted source do not have its format, and bad rows are an error or there are too many of them.
    #[error("{0}")]
    BadRows(String),
    /// A stop was requested: see [`crate::Stop`]. Everything written so far is removed.
    #[error("stopped by {0}: everything written so far was removed")]
    Stopped(StopCause),
    /// A locked output is no longer where it was locked: another process may write there now.
    #[error(
        "{} was removed, moved or replaced while this process was writing it, or its lock file was removed: the \
         process stopped, and changed nothing that is there now. Run the command again",
        path.display()
    )]
    Lost {
        /// The output.
        path: PathBuf,
    },
    /// The request is invalid: a bad option, a mismatch, an existing folder.
    #[error("{0}")]
    Invalid(String),
}

/// The result of the reader's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn at(offset: &Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

impl Error {
    /// Returns an error about a damaged file, with the byte offset of the damage.
    #[doc(hidden)]
    pub fn damaged(path: &Path, offset: impl Into<Option<u64>>, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset: offset.into(), what: what.into() }
    }

    /// Returns an error about an invalid request.
    #[doc(hidden)]
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid(what.into())
    }
}

impl Stop {
    /// Checks for a stop request.
    ///
    /// # Errors
    /// [`Error::Stopped`] once a stop was requested.
    pub fn check(&self) -> Result<()> {
        self.asked().map_or(Ok(()), |cause| Err(Error::Stopped(cause)))
    }
}

/// Adds the operation and the file to an `io::Error`.
pub trait IoContext<T> {
    /// `doing` is a verb that reads well after "cannot".
    fn context(self, doing: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { doing, path: path.to_owned(), source })
    }
}
