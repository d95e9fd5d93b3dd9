//! TOML files that people write: jobs, schemas, shapes and machines. They are read strictly, and every error names the
//! file, line and column, marks the words with carets, and suggests the nearest known key or value.
//!
//! A text becomes a tree, then types. Checks across keys report [`Conflict`]s, which the document turns into problems
//! at the place of the key.

mod excerpt;
mod problem;
mod tree;
mod typed;

use serde::de::DeserializeOwned;

use crate::nearest;

use problem::Source;
pub use problem::{Conflict, Problem};
pub use tree::not_an_index;
use tree::{Node, Origin, SyntaxError, Value};
pub use typed::OneOrMany;
use typed::{KIND, Misfit, Reason};

/// A TOML file with its `--set`s applied, which knows where every key is written.
#[derive(Debug, Clone)]
pub struct Document {
    /// The file, then the `--set`s and the documents that settings come from.
    sources: Vec<Source>,
    root: Node,
}

impl Document {
    /// Parses a text; messages name the file `name`.
    ///
    /// # Errors
    /// The place of a syntax error.
    pub fn parse(name: &str, text: &str) -> Result<Self, Problem> {
        let file = Source { file: Some(name.into()), text: text.into() };
        match Node::parse(text) {
            Ok(root) => Ok(Self { sources: vec![file], root }),
            Err(SyntaxError { message, origin }) => Err(Problem::new(&file, &origin, message, &[])),
        }
    }

    /// Applies `a.b=VALUE`, which replaces or adds a value.
    ///
    /// # Errors
    /// If there is no key, or it cannot be set.
    pub fn set(&mut self, argument: &str) -> Result<(), Problem> {
        self.sources.push(Source { file: None, text: argument.into() });
        self.root
            .set(argument, self.sources.len() - 1, None)
            .map_err(|SyntaxError { message, origin }| self.problem_at(&origin, message, &[]))
    }

    /// Removes a value, so that its default applies.
    ///
    /// # Errors
    /// If the document has no such key.
    pub fn unset(&mut self, key: &str) -> Result<(), Problem> {
        if self.root.remove(key) {
            return Ok(());
        }
        let message = format!("--unset {key}: there is no such key to remove");
        Err(self.problem_at(self.root.origin_of(key), message, &[]))
    }

    /// Applies `a.b=VALUE`, a setting that another document asks for at this key, or else at the table around it.
    /// Problems with the setting point there.
    ///
    /// # Errors
    /// As [`Document::set`].
    pub fn set_from(&mut self, argument: &str, other: &Self) -> Result<(), Problem> {
        let origin = other.root.origin_of(argument.split('=').next().unwrap_or_default());
        self.sources.push(other.sources[origin.source].clone());
        let source = self.sources.len() - 1;
        let place = Origin { source, span: origin.span.clone() };
        self.root
            .set(argument, source, Some(&place))
            .map_err(|SyntaxError { message, .. }| self.problem_at(&place, message, &[]))
    }

    /// Returns the document as a type.
    ///
    /// # Errors
    /// The first key or value that does not fit the type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        T::deserialize(&self.root).map_err(|misfit| self.problem_of::<T>(&misfit))
    }

    /// Returns a problem at the key of a conflict, or at the table around it if the key is not written.
    pub fn problem(&self, conflict: &Conflict) -> Problem {
        self.problem_at(self.root.origin_of(&conflict.key), conflict.message.clone(), &[])
    }

    fn problem_at(&self, origin: &Origin, message: String, help: &[String]) -> Problem {
        Problem::new(&self.sources[origin.source], origin, message, help)
    }

    fn problem_of<T: DeserializeOwned>(&self, misfit: &Misfit) -> Problem {
        let path = misfit.path();
        let (message, help) = match &misfit.reason {
            Reason::UnknownKey { key, known } => self.unknown_key::<T>(key, known, &path),
            Reason::UnknownChoice { found, known } => (
                format!("unknown value `{found}` for `{}`", path.join(".")),
                suggestions(found, known, "known values"),
            ),
            Reason::MissingKey(key) => {
                let needs = self.kind_of(&path).map(|kind| format!(", which the kind `{kind}` needs"));
                (format!("missing key `{key}`{}{}", in_table(&path), needs.unwrap_or_default()), Vec::new())
            }
            Reason::Other(message) => (format!("`{}`: {message}", path.join(".")), Vec::new()),
        };
        self.problem_at(misfit.origin.as_ref().unwrap_or(&self.root.origin), message, &help)
    }

    fn unknown_key<T: DeserializeOwned>(
        &self,
        key: &str,
        known: &[&str],
        path: &[String],
    ) -> (String, Vec<String>) {
        let kinds = self.kinds_with_key::<T>(key, path);
        let Some(kind) = self.kind_of(path).filter(|_| !kinds.is_empty()) else {
            let with_kind = self.kind_of(path).map(|_| KIND).filter(|kind| !known.contains(kind));
            let known: Vec<&str> = with_kind.into_iter().chain(known.iter().copied()).collect();
            let message = format!("unknown key `{key}`{}", in_table(path));
            return (message, suggestions(key, &known, "known keys"));
        };
        let takers: Vec<String> = kinds.iter().map(|kind| format!("`{kind}`")).collect();
        let message = format!("the kind `{kind}` has no key `{key}`{}", in_table(path));
        (message, vec![format!("only with kind {}", takers.join(" or "))])
    }

    fn kind_of(&self, path: &[String]) -> Option<&str> {
        let mut node = &self.root;
        for key in path.iter().map(String::as_str).chain([KIND]) {
            node = node.child(key)?;
        }
        match &node.value {
            Value::String(kind) => Some(kind),
            _ => None,
        }
    }

    /// Returns the kinds of the table at `path` that have a key. The types know them: the table is reduced to its kind
    /// and the key, and read once for each kind.
    fn kinds_with_key<T: DeserializeOwned>(&self, key: &str, path: &[String]) -> Vec<&'static str> {
        let read_with = |kind: &str| {
            let mut probe = self.root.clone();
            let entries = probe.entries_at(path)?;
            entries.retain(|entry| entry.key == KIND || entry.key == key);
            entries.iter_mut().find(|entry| entry.key == KIND)?.node.value = Value::String(kind.into());
            T::deserialize(&probe).err()
        };
        // No kind is named "", so the error lists them all.
        let Some(Reason::UnknownChoice { known, .. }) = read_with("").map(|misfit| misfit.reason) else {
            return Vec::new();
        };
        let has_key = |kind: &&&str| {
            !read_with(kind).is_some_and(|misfit| {
                matches!(&misfit.reason, Reason::UnknownKey { key: unknown, .. } if unknown == key)
                    && misfit.path() == path
            })
        };
        known.iter().filter(has_key).copied().collect()
    }
}

fn in_table(path: &[String]) -> String {
    if path.is_empty() { String::new() } else { format!(" in [{}]", path.join(".")) }
}

fn suggestions(word: &str, known: &[&str], what: &str) -> Vec<String> {
    let nearest = nearest(word, known.iter().copied()).map(|word| format!("did you mean `{word}`?"));
    nearest.into_iter().chain([format!("{what}: {}", known.join(", "))]).collect()
}
