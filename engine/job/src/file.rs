//! From text to job: parses the file, applies `--set`s, reads the types, and checks them.

use std::path::Path;

use rankine_base::document::{Conflict, Document};
use rankine_base::files::read_named_text;

use super::definition::Job;
use super::error::JobError;

/// Most problems that are shown; more of them usually have one cause.
const CONFLICTS_SHOWN: usize = 100;

/// A job file with its `--set`s applied, which knows where every key is written.
///
/// [`Job::load`] is enough to get a job. To check the job against a dataset or a machine, keep the file: it turns a
/// [`Conflict`] into an error that points at the key.
#[derive(Debug, Clone)]
pub struct JobFile(Document);

impl JobFile {
    /// Reads and parses a file, and applies `sets`, each of the form `a.b=VALUE`.
    ///
    /// # Errors
    /// [`JobError::Read`] if it cannot be read, [`JobError::Invalid`] if it is not TOML or a set has no key.
    pub fn read(path: &Path, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        let text = read_named_text("the job file", path)?;
        Self::parse(&path.display().to_string(), &text, sets)
    }

    /// Parses a text and applies `sets`; messages name the file `name`.
    ///
    /// # Errors
    /// [`JobError::Invalid`] if it is not TOML or a set has no key.
    pub fn parse(name: &str, text: &str, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        Self(Document::parse(name, text)?).apply(sets)
    }

    /// Returns the file with further `sets` applied, each of the form `a.b=VALUE`.
    ///
    /// # Errors
    /// [`JobError::Invalid`] if a set has no key.
    pub fn with(&self, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        self.clone().apply(sets)
    }

    /// Returns the file without some keys, each of the form `a.b`, whose defaults then apply.
    ///
    /// # Errors
    /// [`JobError::Invalid`] if the file has no such key.
    pub fn without(&self, keys: &[impl AsRef<str>]) -> Result<Self, JobError> {
        let mut file = self.clone();
        keys.iter().try_for_each(|key| file.0.unset(key.as_ref()))?;
        Ok(file)
    }

    /// Returns the file with further `sets` applied, to which a problem at these keys refers as to keys of `document`.
    ///
    /// # Errors
    /// [`JobError::Invalid`] if a set has no key.
    pub fn with_settings_of(&self, document: &Document, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        let mut file = self.clone();
        for set in sets {
            file.0.set_from(set.as_ref(), document)?;
        }
        Ok(file)
    }

    fn apply(mut self, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        sets.iter().try_for_each(|set| self.0.set(set.as_ref()))?;
        Ok(self)
    }

    /// Returns the job, with all checks across fields done.
    ///
    /// # Errors
    /// [`JobError::Invalid`] with the first value of a wrong type, or otherwise with all contradictions.
    pub fn job(&self) -> Result<Job, JobError> {
        let job: Job = self.0.read()?;
        let conflicts = job.conflicts();
        if conflicts.is_empty() { Ok(job) } else { Err(self.error(&conflicts)) }
    }

    /// Returns an error that points at the keys of conflicts, or at the table if a key is not written.
    pub fn error(&self, conflicts: &[Conflict]) -> JobError {
        let shown = conflicts.iter().take(CONFLICTS_SHOWN);
        let mut problems: Vec<_> = shown.map(|conflict| self.0.problem(conflict)).collect();
        if let Some(more @ 1..) = conflicts.len().checked_sub(CONFLICTS_SHOWN) {
            let what = match more {
                1 => "1 more problem is not shown".into(),
                _ => format!("{more} more problems are not shown"),
            };
            problems.push(self.0.problem(&Conflict::new("", what)));
        }
        JobError::Invalid(problems)
    }
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
