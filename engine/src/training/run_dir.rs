//! A run's folder: the effective job, the metrics as they come, the summary and the model.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{Summary, TrainError};
use crate::job::Job;

/// The folder of one run.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    metrics: File,
}

impl RunDir {
    const JOB_NAME: &str = "job.toml";
    const METRICS_NAME: &str = "metrics.jsonl";
    const SUMMARY_NAME: &str = "summary.json";
    const MODEL_NAME: &str = "model";
    const CHECKPOINTS_NAME: &str = "checkpoints";

    /// Makes a run's folder, by default `runs/NAME-TIME`, and puts the effective job into it.
    ///
    /// # Errors
    /// [`TrainError::RunDir`] where the folder is not empty; [`TrainError::Write`].
    pub fn create(path: Option<&Path>, job: &Job) -> Result<Self, TrainError> {
        let path = path.map_or_else(|| fresh(&job.name.to_string()), Path::to_owned);
        let write = |path: &Path| {
            let path = path.to_owned();
            move |source| TrainError::Write { path, source }
        };
        fs::create_dir_all(&path).map_err(write(&path))?;
        if fs::read_dir(&path).map_err(write(&path))?.next().is_some() {
            return Err(TrainError::RunDir(format!(
                "the run folder {} is not empty: choose another --run-dir, remove it, or go on there with --resume",
                path.display()
            )));
        }
        let metrics = open_metrics(&path)?;
        let run = Self { path, metrics };
        run.write_job(job)?;
        Ok(run)
    }

    /// Goes on in a run's folder, or begins where there is nothing. The log and the job stay as they are until
    /// [`RunDir::go_on`].
    ///
    /// # Errors
    /// [`TrainError::RunDir`] where another process is at work there, or where there is something that is no run;
    /// [`TrainError::Write`].
    pub(super) fn resume(path: &Path, job: &Job) -> Result<Self, TrainError> {
        let is_empty = match fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => return Err(unreadable(path, &error)),
        };
        if is_empty {
            return Self::create(Some(path), job);
        }
        if !path.join(Self::METRICS_NAME).exists() && !path.join(Self::JOB_NAME).exists() {
            return Err(TrainError::RunDir(format!(
                "{} is not empty and is no run's folder: --resume goes on in the folder of a run",
                path.display()
            )));
        }
        Ok(Self { path: path.to_owned(), metrics: open_metrics(path)? })
    }

    /// The summary of a run that has come to its end.
    ///
    /// # Errors
    /// [`TrainError::RunDir`] where it is not what was written.
    pub(super) fn finished(path: &Path) -> Result<Option<Summary>, TrainError> {
        let path = path.join(Self::SUMMARY_NAME);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| unreadable(&path, &error))?,
        };
        let summary = serde_json::from_slice(&text);
        summary
            .map(Some)
            .map_err(|error| TrainError::RunDir(format!("{} is damaged: {error}", path.display())))
    }

    /// Goes on after a step: what the log has of later ones is dropped, the job is this one, and what an interrupted
    /// end left of a model goes.
    pub(super) fn go_on(&mut self, step: u64, job: &Job) -> Result<(), TrainError> {
        let path = self.path.join(Self::METRICS_NAME);
        let write = |path: &Path| {
            let path = path.to_owned();
            move |source| TrainError::Write { path, source }
        };
        let text = fs::read(&path).map_err(|error| unreadable(&path, &error))?;
        let kept = lines_up_to(&text, step);
        self.metrics.set_len(kept as u64).map_err(write(&path))?;
        self.metrics.sync_all().map_err(write(&path))?;
        let model = Self::model_path(&self.path);
        if model.exists() {
            fs::remove_dir_all(&model).map_err(write(&model))?;
        }
        self.write_job(job)
    }

    /// Puts the effective job into the folder, whole or not at all.
    fn write_job(&self, job: &Job) -> Result<(), TrainError> {
        self.replace(Self::JOB_NAME, &job.to_toml())
    }

    /// Writes a file durably, in place of one that is there.
    fn replace(&self, name: &str, text: &str) -> Result<(), TrainError> {
        let (path, temporary) = (self.path.join(name), self.path.join(format!(".{name}.partial")));
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.path)?.sync_all()
        });
        written.map_err(|source| TrainError::Write { path, source })
    }

    /// Where the checkpoints of a run lie.
    pub fn checkpoints_path(run: &Path) -> PathBuf {
        run.join(Self::CHECKPOINTS_NAME)
    }

    /// The log, to be made durable by another thread.
    pub(super) fn metrics(&self) -> Result<File, TrainError> {
        let path = || self.path.join(Self::METRICS_NAME);
        self.metrics.try_clone().map_err(|source| TrainError::Write { path: path(), source })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the effective job of a run lies.
    pub fn job_path(run: &Path) -> PathBuf {
        run.join(Self::JOB_NAME)
    }

    /// Where the model of a run lies.
    pub fn model_path(run: &Path) -> PathBuf {
        run.join(Self::MODEL_NAME)
    }

    /// Appends a line to `metrics.jsonl`: an object with the field `kind` and those of `record`.
    pub(super) fn append(&mut self, kind: &'static str, record: &impl Serialize) -> Result<(), TrainError> {
        #[derive(Serialize)]
        struct Line<'a, T> {
            kind: &'static str,
            #[serde(flatten)]
            record: &'a T,
        }
        let mut line = serde_json::to_vec(&Line { kind, record }).expect("records are plain data");
        line.push(b'\n');
        self.metrics
            .write_all(&line)
            .map_err(|source| TrainError::Write { path: self.path.join(Self::METRICS_NAME), source })
    }

    /// Writes `tuning.json`: the algorithms that a GPU's products take, with which `device.tuning` computes alike.
    pub(super) fn write_tuning(&self, record: &str) -> Result<(), TrainError> {
        let path = self.path.join("tuning.json");
        fs::write(&path, record).map_err(|source| TrainError::Write { path, source })
    }

    /// Writes `machine.toml`: what the planner took GPUs to do in a second, with which `device.machine` plans alike.
    pub(super) fn write_machine(&self, text: &str) -> Result<(), TrainError> {
        let path = self.path.join("machine.toml");
        fs::write(&path, text).map_err(|source| TrainError::Write { path, source })
    }

    /// Writes `summary.json`, whole or not at all.
    pub(super) fn finish(&self, summary: &Summary) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(summary).expect("a summary is plain data") + "\n";
        let path = self.path.join(Self::METRICS_NAME);
        self.metrics.sync_all().map_err(|source| TrainError::Write { path, source })?;
        self.replace(Self::SUMMARY_NAME, &text)
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> TrainError {
    TrainError::RunDir(format!("cannot read {}: {error}", path.display()))
}

/// Opens the log to append to it, and keeps other processes from doing the same.
fn open_metrics(dir: &Path) -> Result<File, TrainError> {
    let path = dir.join(RunDir::METRICS_NAME);
    let metrics = File::options().append(true).create(true).open(&path);
    let metrics = metrics.map_err(|source| TrainError::Write { path, source })?;
    match metrics.try_lock() {
        Err(TryLockError::WouldBlock) => Err(TrainError::RunDir(format!(
            "another process trains in {} now: wait for its end, or choose another --run-dir",
            dir.display()
        ))),
        // Where a file system has no locks, nobody is kept out.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(metrics),
    }
}

/// How many bytes of a log are whole lines of steps up to this one; what follows the first that is not, is not either.
fn lines_up_to(text: &[u8], step: u64) -> usize {
    #[derive(Deserialize)]
    struct Line {
        step: u64,
    }
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    let kept = lines.take_while(|line| {
        let read = serde_json::from_slice::<Line>(line);
        line.ends_with(b"\n") && read.is_ok_and(|line| line.step <= step)
    });
    kept.map(<[u8]>::len).sum()
}

/// A folder below `runs` that is not there yet.
fn fresh(name: &str) -> PathBuf {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let base = Path::new("runs").join(format!("{name}-{}", utc(since_1970.as_secs())));
    let numbered = (2..).map(|number| {
        let mut path = base.clone().into_os_string();
        path.push(format!("-{number}"));
        PathBuf::from(path)
    });
    std::iter::once(base.clone()).chain(numbered).find(|path| !path.exists()).expect("numbers do not run out")
}

/// `YYYYMMDD-HHMMSS` in UTC, of seconds since 1970. Days to dates by Howard Hinnant's `civil_from_days`.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_kept_up_to_a_step() {
        let line = |step: u64| format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":0.5}}\n");
        let text = [10, 20, 20, 30].map(line).concat();
        for (step, lines) in [(9, 0), (10, 1), (19, 1), (20, 3), (40, 4)] {
            assert_eq!(lines_up_to(text.as_bytes(), step), lines * line(10).len());
        }
        // What was cut off in the middle, or is no line at all, ends it.
        assert_eq!(lines_up_to(&text.as_bytes()[..text.len() - 1], 40), 3 * line(10).len());
        let torn = text.replacen("20", "2\0", 1);
        assert_eq!(lines_up_to(torn.as_bytes(), 40), line(10).len());
        assert_eq!(lines_up_to(b"", 40), 0);
    }

    #[test]
    fn dates_are_right() {
        assert_eq!(utc(0), "19700101-000000");
        assert_eq!(utc(951_782_399), "20000228-235959");
        assert_eq!(utc(951_782_400), "20000229-000000");
        assert_eq!(utc(4_107_542_399), "21000228-235959");
        assert_eq!(utc(4_107_542_400), "21000301-000000");
    }
}
