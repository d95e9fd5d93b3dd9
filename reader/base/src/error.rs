//! Errors about outside bytes, worded so that a person can act on them.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use crate::document::Problem;
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
    /// Rows of a source do not have its format, and bad rows are an error or there are too many of them.
    #[error("{what}")]
    BadRows {
        /// The file, if the error is about one.
        path: Option<PathBuf>,
        /// The number of the first bad row of the file, from 1, if the error is about one row.
        row: Option<u64>,
        /// Which rows are bad, why, and the way out.
        what: String,
    },
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
    /// An output exists already, and is not replaced.
    #[error("{} {why}", path.display())]
    Exists {
        /// The existing file or folder.
        path: PathBuf,
        /// Why it stays, and the way out, after the path.
        why: String,
    },
    /// Another process is writing an output, or may be.
    #[error("{}", locked(path, holder, lock.as_deref()))]
    Locked {
        /// The output.
        path: PathBuf,
        /// The process that holds its lock.
        holder: String,
        /// The lock file to remove if the holder has ended; `None` if the holder is known to run.
        lock: Option<PathBuf>,
    },
    /// A file or folder cannot be used as it was named: it is of another kind or format, or lacks what is needed.
    #[error("{what}")]
    Unsuitable {
        /// The file or folder.
        path: PathBuf,
        /// What it is, what it should be, and the way out.
        what: String,
    },
    /// An input was changed while it was read.
    #[error("{what}")]
    Changed {
        /// The input, if only one can be.
        path: Option<PathBuf>,
        /// What happened to it, and the way out.
        what: String,
    },
    /// An option or a setting is out of its range, or contradicts another one or the data.
    #[error("{what}")]
    Setting {
        /// Its name: "depth", "--split".
        setting: &'static str,
        /// What is wrong with it, and the way out.
        what: String,
    },
    /// A text is not a value of an option.
    #[error(transparent)]
    Value(#[from] InvalidValue),
    /// A document, such as a schema file, is not valid.
    #[error(transparent)]
    Document(Box<Problem>),
    /// The columns of a schema are not valid, or files, vocabularies or rules do not have them.
    #[error("{what}")]
    Columns {
        /// The first wrong or missing column, if it is one.
        column: Option<String>,
        /// What is wrong, and the way out.
        what: String,
    },
    /// Something is larger than a limit.
    #[error("{what}")]
    TooLarge {
        /// The limit, in the unit of the message.
        limit: u64,
        /// What is too large, and the way out.
        what: String,
    },
    /// The operating system refused a thread, memory, or something else that work needs besides files.
    #[error("cannot {doing}: {source}")]
    Refused {
        /// The operation that failed, as a verb: "start a thread".
        doing: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// This build of Rankine lacks a feature.
    #[error(
        "this build of Rankine cannot {doing}: build it with `cargo build --release --features {feature}`"
    )]
    Unsupported {
        /// The operation that it lacks, as a verb: "read Parquet".
        doing: &'static str,
        /// The feature of Cargo that has it.
        feature: &'static str,
    },
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

    /// Returns an error about bad rows, with the file and the row if it is about one.
    #[doc(hidden)]
    pub fn bad_rows(path: Option<&Path>, row: Option<u64>, what: impl Into<String>) -> Self {
        Self::BadRows { path: path.map(Path::to_owned), row, what: what.into() }
    }

    /// Returns an error about a file or folder that cannot be used.
    #[doc(hidden)]
    pub fn unsuitable(path: &Path, what: impl Into<String>) -> Self {
        Self::Unsuitable { path: path.to_owned(), what: what.into() }
    }

    /// Returns an error about an option or a setting.
    #[doc(hidden)]
    pub fn setting(setting: &'static str, what: impl Into<String>) -> Self {
        Self::Setting { setting, what: what.into() }
    }

    /// Returns an error about columns, or about one.
    #[doc(hidden)]
    pub fn columns(column: Option<&str>, what: impl Into<String>) -> Self {
        Self::Columns { column: column.map(str::to_owned), what: what.into() }
    }

    /// Returns an error about a column; `what` follows its name.
    #[doc(hidden)]
    pub fn column(column: &str, what: impl Display) -> Self {
        Self::columns(Some(column), format!("column {column} {what}"))
    }

    /// Returns an error about a limit.
    #[doc(hidden)]
    pub fn too_large(limit: u64, what: impl Into<String>) -> Self {
        Self::TooLarge { limit, what: what.into() }
    }

    /// Returns an error about an operation that the operating system refused.
    #[doc(hidden)]
    pub fn refused(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Refused { doing: doing.into(), source }
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self::Document(Box::new(problem))
    }
}

fn locked(path: &Path, holder: &str, lock: Option<&Path>) -> String {
    let path = path.display();
    match lock {
        Some(lock) => format!(
            "{path} is locked by {holder}. This process cannot check whether that process still runs, and the file \
             system has no locks that would show it. Wait for it to end or choose another output. If it has ended, \
             remove the lock: rm '{}'",
            lock.display()
        ),
        None => format!(
            "another process is writing {path} now ({holder}): wait for it to end, or choose another output"
        ),
    }
}

/// A text is not a value of its type: the value of an option, a key or a variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct InvalidValue {
    /// The text.
    pub value: String,
    /// What it should be.
    pub why: String,
}

impl InvalidValue {
    /// Returns the error "`VALUE` is not EXPECTED".
    pub fn is_not(value: &str, expected: impl Display) -> Self {
        Self::new(value, format!("`{value}` is not {expected}"))
    }

    /// Returns the error "expected EXPECTED", for callers that quote the value themselves.
    pub fn expected(value: &str, expected: impl Display) -> Self {
        Self::new(value, format!("expected {expected}"))
    }

    /// Returns an error with its whole message.
    pub fn new(value: &str, why: impl Into<String>) -> Self {
        Self { value: value.into(), why: why.into() }
    }
}

/// What is wrong with bytes that were read, or samples that cannot be written. The caller knows their file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Malformed {
    /// What was expected and what was found.
    pub what: String,
}

impl From<String> for Malformed {
    fn from(what: String) -> Self {
        Self { what }
    }
}

impl From<&str> for Malformed {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}

impl From<Malformed> for String {
    fn from(malformed: Malformed) -> Self {
        malformed.what
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
    /// An error that holds an [`Error`], as reading an object returns it, becomes that one.
    fn context(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| match source.downcast::<Error>() {
            Ok(error) => error,
            Err(source) => Error::Io { doing, path: path.to_owned(), source },
        })
    }
}
