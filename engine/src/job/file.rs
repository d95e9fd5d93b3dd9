//! From text to job: parses the file, applies `--set`s, reads the types, and locates problems.

use std::path::Path;

use rankine_reader::nearest;

use super::definition::Job;
use super::error::{Conflict, JobError, Problem, Source, SourceName};
use super::tree::{Node, Origin, SyntaxError, Value};
use super::typed::{self, KIND, Misfit, Reason};

/// Most problems that are shown; more of them usually have one cause.
const CONFLICTS_SHOWN: usize = 100;

/// A job file with its `--set`s applied, which knows where every key is written.
///
/// [`Job::load`] is enough to get a job. To check the job against a dataset or a machine, keep the file: it turns a
/// [`Conflict`] into an error that points at the key.
#[derive(Debug)]
pub struct JobFile {
    /// The file, then the `--set`s.
    sources: Vec<Source>,
    root: Node,
}

impl JobFile {
    /// Reads and parses a file, and applies `sets`, each of the form `a.b=VALUE`.
    ///
    /// # Errors
    /// [`JobError::Read`] if it cannot be read, [`JobError::Invalid`] if it is not TOML or a set has no key.
    pub fn read(path: &Path, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        Self::parse(&path.display().to_string(), &read_text(path)?, sets)
    }

    /// Parses a text and applies `sets`; messages name the file `name`.
    ///
    /// # Errors
    /// [`JobError::Invalid`] if it is not TOML or a set has no key.
    pub fn parse(name: &str, text: &str, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        let mut sources = vec![Source { name: SourceName::File(name.into()), text: text.into() }];
        let sets = sets.iter().map(|set| Source { name: SourceName::Set, text: set.as_ref().into() });
        sources.extend(sets);
        let tree = Node::parse(text).and_then(|mut root| {
            for (i, set) in sources[1..].iter().enumerate() {
                root.set(&set.text, i)?;
            }
            Ok(root)
        });
        match tree {
            Ok(root) => Ok(Self { sources, root }),
            Err(SyntaxError { message, origin }) => {
                let problem = Problem::new(&sources[origin.source], &origin, message, Vec::new());
                Err(JobError::Invalid(vec![problem]))
            }
        }
    }

    /// Returns the job, with all checks across fields done.
    ///
    /// # Errors
    /// [`JobError::Invalid`] with the first value of a wrong type, or otherwise with all contradictions.
    pub fn job(&self) -> Result<Job, JobError> {
        let job: Job = typed::read(&self.root)
            .map_err(|misfit| JobError::Invalid(vec![self.problem_of_misfit(&misfit)]))?;
        let conflicts = job.conflicts();
        if conflicts.is_empty() { Ok(job) } else { Err(self.error(&conflicts)) }
    }

    /// Returns an error that points at the keys of conflicts, or at the table if a key is not written.
    pub fn error(&self, conflicts: &[Conflict]) -> JobError {
        let problem = |conflict: &Conflict| {
            let origin = self.root.origin_of(&conflict.key);
            self.problem(origin, conflict.message.clone(), Vec::new())
        };
        let mut problems: Vec<_> = conflicts.iter().take(CONFLICTS_SHOWN).map(problem).collect();
        if let Some(more @ 1..) = conflicts.len().checked_sub(CONFLICTS_SHOWN) {
            let message = format!("{more} more problems are not shown");
            problems.push(self.problem(&self.root.origin, message, Vec::new()));
        }
        JobError::Invalid(problems)
    }

    fn problem(&self, origin: &Origin, message: String, help: Vec<String>) -> Problem {
        Problem::new(&self.sources[origin.source], origin, message, help)
    }

    fn problem_of_misfit(&self, misfit: &Misfit) -> Problem {
        let path = misfit.path();
        let (message, help) = match &misfit.reason {
            Reason::UnknownKey { key, known } => self.unknown_key(key, known, &path),
            Reason::UnknownChoice { found, known } => (
                format!("unknown value `{found}` for `{}`", path.join(".")),
                suggestions(found, known, "known values"),
            ),
            Reason::MissingKey(key) => (format!("missing key `{key}`{}", in_table(&path)), Vec::new()),
            Reason::Other(message) => (format!("`{}`: {message}", path.join(".")), Vec::new()),
        };
        let origin = misfit.origin.as_ref().unwrap_or(&self.root.origin);
        self.problem(origin, message, help)
    }

    fn unknown_key(&self, key: &str, known: &[&str], path: &[String]) -> (String, Vec<String>) {
        let kinds = self.kinds_with_key(key, path);
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
    fn kinds_with_key(&self, key: &str, path: &[String]) -> Vec<&'static str> {
        let read_with = |kind: &str| {
            let mut probe = self.root.clone();
            let entries = probe.entries_at(path)?;
            entries.retain(|entry| entry.key == KIND || entry.key == key);
            entries.iter_mut().find(|entry| entry.key == KIND)?.node.value = Value::String(kind.into());
            typed::read::<Job>(&probe).err()
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

impl Job {
    /// Reads a job file and applies `sets`, each of the form `a.b=VALUE`.
    ///
    /// # Errors
    /// [`JobError::Read`] if the file cannot be read, [`JobError::Invalid`] with all problems if it is not a valid job.
    pub fn load(path: &Path, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        JobFile::read(path, sets)?.job()
    }

    /// Parses a job from a text and applies `sets`; messages name the file `name`.
    ///
    /// # Errors
    /// [`JobError::Invalid`] with all problems if the text is not a valid job.
    pub fn from_toml(name: &str, text: &str, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        JobFile::parse(name, text, sets)?.job()
    }
}

/// Reads a job file's text.
fn read_text(path: &Path) -> Result<String, JobError> {
    rankine_reader::files::read_text(path).map_err(|error| match error {
        rankine_reader::Error::Io { source, .. } => JobError::Read { path: path.to_owned(), source },
        error => JobError::NotText(error.to_string()),
    })
}
