//! The job file as an argument, shared by all commands that need one.

use std::fmt;
use std::path::PathBuf;

use rankine_job::JobFile;
use rankine_reader::Dataset;

use super::{CommandError, Exit};

/// A job file and changes to it.
#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// The job file
    #[arg(value_name = "JOB.toml")]
    pub(crate) path: PathBuf,

    /// Replace or add a value of the job file; may be repeated, and the last one wins
    ///
    /// VALUE is TOML. A value that is not valid TOML is a string, so names and paths need no quotes.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,

    /// Remove a key of the job file, such as train.early_stopping, so that its default applies; may be repeated, and
    /// comes before --set
    #[arg(long = "unset", value_name = "KEY")]
    unsets: Vec<String>,
}

impl JobArgs {
    /// Reads the file, removes the keys to unset, and applies the sets.
    pub(crate) fn read(&self) -> Result<JobFile, CommandError> {
        self.read_with([])
    }

    /// Reads the file as [`JobArgs::read`] does, and then applies the settings of other arguments.
    pub(crate) fn read_with(
        &self,
        settings: impl IntoIterator<Item = String>,
    ) -> Result<JobFile, CommandError> {
        if Dataset::exists(&self.path) {
            let path = self.path.display();
            let what = format!(
                "{path} is a dataset, not a job file: `rankine init --data {path}` writes job.toml, a job that trains \
                 on it"
            );
            return Err(CommandError::new(Exit::Usage, what));
        }
        let sets: Vec<_> = self.sets.iter().cloned().chain(settings).collect();
        Ok(JobFile::read(&self.path, &[] as &[&str])?.without(&self.unsets)?.with(&sets)?)
    }
}

/// Returns what `--set` takes for an argument that sets a key, if the argument is given.
pub(crate) fn setting(key: &str, value: Option<impl fmt::Display>) -> Option<String> {
    value.map(|value| format!("{key}={value}"))
}
