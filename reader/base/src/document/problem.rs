//! What is wrong with a document, and where it is.

use std::fmt::{self, Display};

use super::excerpt::Excerpt;
use super::tree::Origin;

/// A value that contradicts other settings, the dataset or the machine.
///
/// [`Document::problem`](super::Document::problem) finds where the key is written.
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

/// A problem with a document. `Display` writes the place and the message, then the line with carets, and hints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    location: String,
    message: String,
    /// The lines below the message.
    details: String,
}

impl Problem {
    pub(super) fn new(source: &Source, origin: &Origin, message: String, help: &[String]) -> Self {
        // A syntax error at the very end has an empty span, too, but not at the start.
        let whole = origin.span == (0..0);
        let excerpt = (!whole).then(|| Excerpt::of(&source.text, origin.span.clone()));
        let location = match (&source.file, &excerpt) {
            (None, _) => format!("--set {}", source.text),
            (Some(name), Some(at)) => format!("{name}:{}:{}", at.line, at.column),
            (Some(name), None) => name.clone(),
        };
        // An argument has a single line, whose number is not shown.
        let number = excerpt.as_ref().filter(|_| source.file.is_some());
        let margin = number.map_or_else(|| " ".into(), |excerpt| excerpt.line.to_string());
        let mut details = excerpt.map_or_else(String::new, |excerpt| excerpt.with_margin(&margin));
        for help in help {
            details += &format!("\n{:1$} = {help}", "", margin.len());
        }
        Self { location, message, details }
    }

    /// Returns where the problem is: `criteo.toml:12:1`, or `--set train.bach_size=5`.
    pub fn location(&self) -> &str {
        &self.location
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{}", self.location, self.message, self.details)
    }
}

impl std::error::Error for Problem {}

/// A text that problems refer to.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// The name of the file as the user gave it, or `None` for the argument of a `--set`.
    pub file: Option<String>,
    pub text: String,
}
