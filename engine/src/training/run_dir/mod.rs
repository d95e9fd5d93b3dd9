//! A run folder: the effective job, the metrics as they are recorded, the summary and the model.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rankine_base::files::check_folder;
use rankine_base::publish::{Lock, PartialDir, ReservedDir, create_folders, replace_file_under};
use rankine_job::Job;
use rankine_model::evaluation::SavedScores;
use serde::Serialize;

use super::devices::RunDevices;
use super::error::TrainError;
use super::identity::TrainingIdentity;
use super::start::Start;
use super::summary::Summary;
use crate::run_paths;

mod attempts;
mod folder;

pub(super) use folder::RunFolder;

/// The folder of one run; only this process writes to it.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    metrics: File,
    /// Where the model is saved. Reserved before training: at the end it would be too late to find out that the file
    /// system has no locks, or that another process writes there.
    model: Option<ReservedDir>,
    /// On the folder and its contents, except for the model. Dropped last.
    lock: Lock,
}

impl RunDir {
    /// Makes a run folder, by default `runs/NAME-TIME`, and writes the effective job into it.
    ///
    /// # Errors
    /// [`TrainError::RunDir`] if the folder is not empty; [`TrainError::Data`] if another process writes there;
    /// [`TrainError::Write`].
    pub fn create(path: Option<&Path>, job: &Job) -> Result<Self, TrainError> {
        let path = match path {
            Some(path) => create_folders(path).map(|()| path.to_owned())?,
            None => fresh_for(job)?,
        };
        let lock = Lock::within(&path)?;
        Self::refuse_used(&path)?;
        let run = Self::locked(path, lock)?;
        run.write_job(job)?;
        Ok(run)
    }

    /// Checks that the path is a folder that no other process writes to, before a dataset is generated in vain.
    ///
    /// # Errors
    /// [`TrainError::Data`] if it is a file, or another process writes to it, or may.
    pub(super) fn refuse_locked(path: &Path) -> Result<(), TrainError> {
        rankine_base::url::refuse(path, "a run, with its checkpoints,")?;
        check_folder(path, "a run")?;
        if path.is_dir() {
            Lock::within(path)?;
        }
        Ok(())
    }

    /// Checks that the path is an empty folder, or none yet; see [`is_unused`].
    ///
    /// # Errors
    /// [`TrainError::RunDir`] if it is not, or cannot be read.
    pub(super) fn refuse_used(path: &Path) -> Result<(), TrainError> {
        if is_unused(path)? {
            return Ok(());
        }
        let what = format!(
            "the run folder {} is not empty: choose another --run-dir, remove it, or continue with --resume",
            path.display()
        );
        Err(TrainError::RunDir { path: path.to_owned(), what })
    }

    /// Opens the log of a locked folder, and reserves the model's path.
    fn locked(path: PathBuf, lock: Lock) -> Result<Self, TrainError> {
        let log = path.join(run_paths::METRICS_NAME);
        let metrics = File::options().append(true).create(true).open(&log);
        let metrics = metrics.map_err(TrainError::write(log))?;
        let model = ReservedDir::new(&run_paths::model(&path))?;
        model.discard_leftover()?;
        Ok(Self { path, metrics, model: Some(model), lock })
    }

    /// Opens a run folder to resume or restart the run, or creates it. The log and the job stay as they are until
    /// [`RunDir::continue_after`].
    ///
    /// # Errors
    /// [`TrainError::Unresumable`] if the folder is not a run's; [`TrainError::Data`] if another process writes there;
    /// [`TrainError::Write`].
    pub(super) fn open(path: &Path, job: &Job, start: Start) -> Result<Self, TrainError> {
        if is_unused(path)? {
            return Self::create(Some(path), job);
        }
        if !path.join(run_paths::METRICS_NAME).exists() && !path.join(run_paths::JOB_NAME).exists() {
            let option = if start == Start::Restart { "--restart" } else { "--resume" };
            let what =
                format!("{} is not empty and is not a run folder, which {option} needs", path.display());
            return Err(TrainError::Unresumable { what, way_out: "check --run-dir" });
        }
        Self::locked(path.to_owned(), Lock::within(path)?)
    }

    /// Writes the effective job, atomically.
    fn write_job(&self, job: &Job) -> Result<(), TrainError> {
        self.replace(run_paths::JOB_NAME, &job.to_toml())
    }

    /// Replaces a file durably.
    fn replace(&self, name: &str, text: &str) -> Result<(), TrainError> {
        let replaced = replace_file_under(&self.lock, &self.path.join(name), text.as_bytes());
        replaced.map_err(TrainError::of_folder)
    }

    /// Starts to save the model, in a folder that gets its name once it is complete.
    ///
    /// # Errors
    /// [`TrainError::Data`] if there is a model already, or the folder cannot be made.
    pub(super) fn begin_model(&mut self) -> Result<PartialDir, TrainError> {
        let model = self.model.take().map_or_else(|| ReservedDir::new(&run_paths::model(&self.path)), Ok);
        Ok(model.and_then(ReservedDir::begin)?)
    }

    /// The log, for another thread that makes it durable.
    pub(super) fn metrics(&self) -> Result<File, TrainError> {
        self.metrics.try_clone().map_err(TrainError::write(self.path.join(run_paths::METRICS_NAME)))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the saved model.
    ///
    /// # Errors
    /// [`TrainError::FolderLost`], [`TrainError::Write`].
    pub(super) fn discard_model(&self) -> Result<(), TrainError> {
        self.lock.check().map_err(TrainError::of_folder)?;
        let model = run_paths::model(&self.path);
        fs::remove_dir_all(&model).map_err(TrainError::write(&model))
    }

    /// Appends a line to `metrics.jsonl`: an object with the fields `kind`, `time` and those of `record`.
    ///
    /// # Errors
    /// [`TrainError::FolderLost`], [`TrainError::Write`].
    pub(super) fn append(&mut self, kind: &'static str, record: &impl Serialize) -> Result<(), TrainError> {
        #[derive(Serialize)]
        struct Line<'a, T> {
            kind: &'static str,
            /// RFC 3339, in UTC.
            time: String,
            #[serde(flatten)]
            record: &'a T,
        }
        self.lock.check().map_err(TrainError::of_folder)?;
        let time = format!("{:.3}", Timestamp::now());
        let mut line = serde_json::to_vec(&Line { kind, time, record }).expect("records are plain data");
        line.push(b'\n');
        self.metrics
            .write_all(&line)
            .map_err(|source| TrainError::Write { path: self.path.join(run_paths::METRICS_NAME), source })
    }

    /// Writes `tuning.json`: the algorithms of a GPU's matrix products; `device.tuning` uses them again.
    pub(super) fn write_tuning(&self, record: &str) -> Result<(), TrainError> {
        self.replace(run_paths::TUNING_NAME, record)
    }

    /// Writes `devices.json`.
    pub(super) fn write_devices(&self, devices: &RunDevices) -> Result<(), TrainError> {
        let text = serde_json::to_string(devices).expect("it is plain data") + "\n";
        self.replace(run_paths::DEVICES_NAME, &text)
    }

    /// Writes `machine.toml`: the performance that the planner assumed for the GPUs; `device.machine` plans with it
    /// again.
    pub(super) fn write_machine(&self, text: &str) -> Result<(), TrainError> {
        self.replace(run_paths::MACHINE_NAME, text)
    }

    /// Writes `summary.json` atomically, and before it the scores of the last evaluation, if they are known, and the
    /// record of what was trained.
    pub(super) fn finish(
        &self,
        summary: &Summary,
        trained: &TrainingIdentity,
        scores: Option<&SavedScores>,
    ) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(summary).expect("a summary is plain data") + "\n";
        self.metrics.sync_all().map_err(TrainError::write(self.path.join(run_paths::METRICS_NAME)))?;
        if let Some(scores) = scores {
            let text = serde_json::to_string(scores).expect("scores are plain data") + "\n";
            self.replace(run_paths::SCORES_NAME, &text)?;
        }
        self.write_trained(trained)?;
        self.replace(run_paths::SUMMARY_NAME, &text)
    }
}

/// The steps of the finished run in a folder; `None` if there is none, or it is not finished.
///
/// # Errors
/// [`TrainError::RunDir`] if its summary cannot be read.
pub(crate) fn finished_steps(path: &Path) -> Result<Option<u64>, TrainError> {
    Ok(RunDir::finished(path)?.map(|summary| summary.train.steps))
}

/// Whether a run folder is missing, or empty except for its lock files and the run that found the number of steps.
fn is_unused(path: &Path) -> Result<bool, TrainError> {
    let is_searched = run_paths::job(&run_paths::search(path)).exists();
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        entries => entries.map_err(|error| TrainError::unreadable(path, &error))?,
    };
    for entry in entries {
        let name = entry.map_err(|error| TrainError::unreadable(path, &error))?.file_name();
        let is_search = is_searched && name == run_paths::SEARCH_NAME;
        if !is_search && !Lock::is_lock_name(&name) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes a new folder `runs/NAME-TIME` for a run.
///
/// # Errors
/// [`TrainError::Write`].
pub(super) fn fresh_for(job: &Job) -> Result<PathBuf, TrainError> {
    fresh(Path::new(run_paths::RUNS), &run_paths::with_time(job.name.as_str()))
}

/// Makes a new folder of this name below `runs`, with a number appended if another run has the name, which may have
/// started in the same second.
fn fresh(runs: &Path, name: &str) -> Result<PathBuf, TrainError> {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    create_folders(runs)?;
    for name in std::iter::once(name.to_owned()).chain(numbered) {
        let path = runs.join(name);
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => (),
            Err(source) => return Err(TrainError::Write { path, source }),
        }
    }
    unreachable!("numbers do not run out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_begin_at_the_same_time_have_folders_of_their_own() {
        let place = tempfile::tempdir().expect("there is room");
        let runs = place.path().join("made/runs");
        for name in ["small-1", "small-1-2", "small-1-3"] {
            let path = fresh(&runs, "small-1").expect("a folder can be made");
            assert_eq!(path, runs.join(name));
            assert!(path.is_dir());
        }
    }
}
