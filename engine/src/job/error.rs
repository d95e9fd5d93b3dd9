//! Errors in a job, with file, line and column, the line itself, and a caret under the words.

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;

use rankine_reader::Excerpt;

use super::tree::Origin;

/// Why a job cannot be read. `Display` writes the whole message, which has several lines.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The file cannot be read.
    #[error("cannot read the job file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is a pipe or a device, too long or not UTF-8.
    #[error("cannot read the job file: {0}")]
    NotText(String),
    /// The file or a `--set` is not valid.
    #[error("{}", ProblemList(.0))]
    Invalid(Vec<Problem>),
}

impl JobError {
    /// Returns the problems; none if the file cannot be read at all.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read { .. } | Self::NotText(_) => &[],
            Self::Invalid(problems) => problems,
        }
    }
}

struct ProblemList<'a>(&'a [Problem]);

impl Display for ProblemList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() > 1 {
            writeln!(f, "{} problems with the job\n", self.0.len())?;
        }
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

/// A value that contradicts other settings, the dataset or the machine.
///
/// [`JobFile::error`](super::JobFile::error) finds where the key is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The key, with dots: `model.bottom_mlp`.
    pub key: String,
    /// What is wrong with its value, and why.
    pub message: String,
}

impl Conflict {
    /// Creates a conflict at a key.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}

impl Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// A problem with a job, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    location: String,
    in_file: bool,
    message: String,
    excerpt: Option<Excerpt>,
    help: Vec<String>,
}

impl Problem {
    pub(super) fn new(source: &Source, origin: &Origin, message: String, help: Vec<String>) -> Self {
        // A syntax error at the very end has an empty span, too, but not at the start.
        let whole = origin.span == (0..0);
        let excerpt = (!whole).then(|| Excerpt::of(&source.text, origin.span.clone()));
        let location = match (&source.name, &excerpt) {
            (SourceName::Set, _) => format!("--set {}", source.text),
            (SourceName::File(name), Some(at)) => format!("{name}:{}:{}", at.line, at.column),
            (SourceName::File(name), None) => name.clone(),
        };
        let in_file = matches!(source.name, SourceName::File(_));
        Self { location, in_file, message, excerpt, help }
    }

    /// Returns where the problem is: `criteo.toml:12:1`, or `--set train.bach_size=5`.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Returns what is wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns hints.
    pub fn help(&self) -> &[String] {
        &self.help
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.message)?;
        let mut margin = 1;
        if let Some(excerpt) = &self.excerpt {
            // An argument has a single line, whose number is not shown.
            let number = if self.in_file { excerpt.line.to_string() } else { " ".into() };
            margin = number.len();
            write!(f, "\n{}", excerpt.with_margin(&number))?;
        }
        for help in &self.help {
            write!(f, "\n{:margin$} = {help}", "")?;
        }
        Ok(())
    }
}

/// A text that problems refer to.
#[derive(Debug)]
pub(super) struct Source {
    pub name: SourceName,
    pub text: String,
}

#[derive(Debug)]
pub(super) enum SourceName {
    /// A file, with the name that the user gave.
    File(String),
    /// The argument of a `--set`.
    Set,
}
