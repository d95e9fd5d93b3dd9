//! A run's folder: the effective job, the metrics as they come, the summary and the model.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

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
                "the run folder {} is not empty: choose another --run-dir, or remove it",
                path.display()
            )));
        }
        let job_path = path.join(Self::JOB_NAME);
        fs::write(&job_path, job.to_toml()).map_err(write(&job_path))?;
        let metrics_path = path.join(Self::METRICS_NAME);
        let metrics = File::create_new(&metrics_path).map_err(write(&metrics_path))?;
        Ok(Self { path, metrics })
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
        let path = self.path.join(Self::SUMMARY_NAME);
        let temporary = self.path.join(".summary.json.partial");
        let text = serde_json::to_string_pretty(summary).expect("a summary is plain data") + "\n";
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.path)?.sync_all()
        });
        written.and_then(|()| self.metrics.sync_all()).map_err(|source| TrainError::Write { path, source })
    }
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
    fn dates_are_right() {
        assert_eq!(utc(0), "19700101-000000");
        assert_eq!(utc(951_782_399), "20000228-235959");
        assert_eq!(utc(951_782_400), "20000229-000000");
        assert_eq!(utc(4_107_542_399), "21000228-235959");
        assert_eq!(utc(4_107_542_400), "21000301-000000");
    }
}
