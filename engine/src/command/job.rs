//! The job file as an argument, shared by all commands that need one.

use std::path::PathBuf;

use rankine::job::{JobError, JobFile, ThreadCount};

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
}

impl JobArgs {
    /// Reads the file and applies the sets.
    pub(crate) fn read(&self) -> Result<JobFile, JobError> {
        JobFile::read(&self.path, &self.sets)
    }

    /// Reads the file, applies the sets, and then sets the number of threads.
    pub(crate) fn read_with_threads(&self, threads: Option<ThreadCount>) -> Result<JobFile, JobError> {
        let threads = threads.map(|threads| format!("device.threads={threads}"));
        let sets: Vec<_> = self.sets.iter().cloned().chain(threads).collect();
        JobFile::read(&self.path, &sets)
    }
}
