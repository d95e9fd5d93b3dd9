//! What is wrong with a job, said with its place: file, line and column, the line itself and a caret under the words.

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;

use rankine_reader::Excerpt;

use super::tree::Origin;

/// Why there is no job. Its `Display` is the whole message, of several lines.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The file cannot be read.
    #[error("cannot read the job file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's own words.
        source: io::Error,
    },
    /// There is no text to read: a pipe, a device, or a file that is too long or not UTF-8.
    #[error("cannot read the job file: {0}")]
    NotText(String),
    /// The file, or a `--set`, is not a job.
    #[error("{}", Listed(.0))]
    Invalid(Vec<Problem>),
}

impl JobError {
    /// What is wrong, piece by piece; nothing where the file cannot be read at all.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read { .. } | Self::NotText(_) => &[],
            Self::Invalid(problems) => problems,
        }
    }
}

struct Listed<'a>(&'a [Problem]);

impl Display for Listed<'_> {
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

/// Something that is wrong with a job across fields: a key, and what speaks against its value.
///
/// [`JobFile::error`](super::JobFile::error) finds the place of the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The key, with dots: `model.bottom_mlp`.
    pub key: String,
    /// What is wrong with its value, and why.
    pub message: String,
}

impl Conflict {
    /// A conflict at a key.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}

impl Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// One thing that is wrong with a job, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    place: String,
    in_file: bool,
    message: String,
    excerpt: Option<Excerpt>,
    help: Vec<String>,
}

impl Problem {
    pub(super) fn new(source: &Source, origin: &Origin, message: String, help: Vec<String>) -> Self {
        // A syntax error at the very end has an empty span, too, but not the beginning's.
        let whole = origin.span == (0..0);
        let excerpt = (!whole).then(|| Excerpt::of(&source.text, origin.span.clone()));
        let place = match (&source.name, &excerpt) {
            (SourceName::Set, _) => format!("--set {}", source.text),
            (SourceName::File(name), Some(at)) => format!("{name}:{}:{}", at.line, at.column),
            (SourceName::File(name), None) => name.clone(),
        };
        let in_file = matches!(source.name, SourceName::File(_));
        Self { place, in_file, message, excerpt, help }
    }

    /// `criteo.toml:12:1`, or `--set train.bach_size=5`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// What is wrong, in a sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What may help.
    pub fn help(&self) -> &[String] {
        &self.help
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)?;
        let mut margin = 1;
        if let Some(excerpt) = &self.excerpt {
            // The only line of an argument has no number worth telling.
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

/// The text that a place refers to.
#[derive(Debug)]
pub(super) struct Source {
    pub name: SourceName,
    pub text: String,
}

#[derive(Debug)]
pub(super) enum SourceName {
    /// A file, under the name that the user gave.
    File(String),
    /// The argument of a `--set`.
    Set,
}
