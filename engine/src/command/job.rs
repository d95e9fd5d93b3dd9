//! The job file as an argument, the same for every command that takes one.

use std::path::PathBuf;

use rankine::job::{JobError, JobFile};

/// A job file and what replaces parts of it.
#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// The job file
    #[arg(value_name = "JOB.toml")]
    pub(crate) path: PathBuf,

    /// Replace a value of the job file, or add one; may be repeated, and the last one wins
    ///
    /// VALUE is TOML. What is not is a string, so names and paths need no quotes.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl JobArgs {
    /// Reads the file and applies the sets.
    pub(crate) fn read(&self) -> Result<JobFile, JobError> {
        JobFile::read(&self.path, &self.sets)
    }
}
