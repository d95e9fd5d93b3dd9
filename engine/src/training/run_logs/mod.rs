//! The logs of a run for other tools, beside `metrics.jsonl`: TensorBoard's event files and MLPerf's log. [`RunLogs`]
//! receives the events of a run and writes those that the job asks for. Here are no metrics: `metrics.jsonl` has the
//! same ones.

use std::io;
use std::path::PathBuf;

use rankine_model::evaluation::{EvalMetrics, Metrics};
use rankine_reader::Part;

use super::context::RunContext;
use super::error::TrainError;
use super::event::Progress;
use super::run_dir::RunDir;
use crate::run_paths;
use mllog::{RunLog, RunSettings, RunStatus};
use tensorboard::EventFile;

mod mllog;
mod records;
mod tensorboard;

/// The logs of a run that its job asks for; by default none, as in all processes but the first one.
#[derive(Debug, Default)]
pub(super) struct RunLogs {
    events: Option<EventFile>,
    mllog: Option<MlperfLog>,
    /// The AUC that the training is to reach.
    target_auc: Option<f64>,
}

/// MLPerf's log until the run's end is written.
#[derive(Debug)]
struct MlperfLog {
    path: PathBuf,
    log: RunLog,
}

/// Where a run begins or continues.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogStart {
    /// Steps completed.
    pub(super) step: u64,
    /// Samples trained on.
    pub(super) samples: u64,
    /// The precision of matrix products, as a job file names it.
    pub(super) precision: &'static str,
}

impl RunLogs {
    /// Creates or continues the logs in a run's folder. For MLPerf, the time to train starts here: no sample may have
    /// been read before.
    ///
    /// # Errors
    /// [`TrainError::Write`].
    pub(super) fn begin(context: &RunContext<'_>, run: &RunDir, start: LogStart) -> Result<Self, TrainError> {
        let job = context.job;
        let mut logs = Self { target_auc: job.eval.target_auc.map(|target| target.get()), ..Self::default() };
        if job.metrics.tensorboard {
            let path = run_paths::tensorboard(run.path());
            let first_step = if start.step == 0 { 0 } else { start.step + 1 };
            logs.events = Some(EventFile::create(&path, first_step).map_err(TrainError::write(path))?);
        }
        if job.metrics.mllog {
            let path = run_paths::mllog(run.path());
            let settings = RunSettings::of(context, start.precision);
            let begin = || {
                if start.step > 0
                    && let Some(log) = RunLog::resume(&path, &settings, start.samples)?
                {
                    return Ok(log);
                }
                let mut log = RunLog::begin(&path, &settings, context.began)?;
                log.train_begins(start.samples)?;
                Ok(log)
            };
            let log = begin().map_err(TrainError::write(&path))?;
            logs.mllog = Some(MlperfLog { path, log });
        }
        Ok(logs)
    }

    /// Logs a report.
    ///
    /// # Errors
    /// [`TrainError::Write`].
    pub(super) fn report(&mut self, progress: &Progress) -> Result<(), TrainError> {
        let values = [
            ("train/loss", progress.loss),
            ("train/dense_learning_rate", progress.dense_learning_rate),
            ("train/sparse_learning_rate", progress.sparse_learning_rate),
            ("train/samples_per_second", progress.samples_per_second),
        ];
        self.in_events(|events| events.scalars(progress.step, &values))
    }

    /// Logs the start of an evaluation on the dataset or one of the `[[eval.set]]`s, after this number of samples of
    /// the training.
    ///
    /// # Errors
    /// [`TrainError::Write`].
    pub(super) fn evaluation_begins(&mut self, set: Option<&str>, samples: u64) -> Result<(), TrainError> {
        if !is_in_mllog(set) {
            return Ok(());
        }
        self.in_mllog(|log| log.evaluation_begins(samples))
    }

    /// Logs the result of an evaluation.
    ///
    /// # Errors
    /// [`TrainError::Write`].
    pub(super) fn evaluation_ends(
        &mut self,
        part: Part,
        set: Option<&str>,
        step: u64,
        metrics: &EvalMetrics,
    ) -> Result<(), TrainError> {
        // The time until the training ends is part of MLPerf's result.
        if is_in_mllog(set) {
            self.in_mllog(|log| log.evaluation_ends(metrics.first.and_then(|first| first.auc)))?;
        }
        let name = set.map_or_else(|| part.to_string(), |set| format!("eval.sets/{set}"));
        let values = scalars(&name, metrics);
        let values: Vec<_> = values.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
        self.in_events(|events| if values.is_empty() { Ok(()) } else { events.scalars(step, &values) })
    }

    /// Logs the end of the training after this number of samples. The last evaluation decides whether the training
    /// reached its target. After an earlier call, nothing is logged.
    ///
    /// # Errors
    /// [`TrainError::Write`].
    pub(super) fn end(&mut self, samples: u64, last: Option<&EvalMetrics>) -> Result<(), TrainError> {
        let auc = last.and_then(|metrics| metrics.first?.auc);
        let is_missed = self.target_auc.is_some_and(|target| auc.is_none_or(|auc| auc < target));
        let status = if is_missed { RunStatus::Aborted } else { RunStatus::Success };
        let mllog = self.mllog.take();
        mllog.map_or(Ok(()), |MlperfLog { path, log }| {
            log.end(status, samples).map_err(TrainError::write(path))
        })?;
        self.sync()
    }

    /// Makes everything that was logged durable.
    ///
    /// # Errors
    /// [`TrainError::Write`].
    pub(super) fn sync(&mut self) -> Result<(), TrainError> {
        self.in_events(EventFile::sync)?;
        self.in_mllog(RunLog::sync)
    }

    fn in_events(&mut self, write: impl FnOnce(&mut EventFile) -> io::Result<()>) -> Result<(), TrainError> {
        let Some(events) = &mut self.events else { return Ok(()) };
        write(events).map_err(TrainError::write(events.path()))
    }

    fn in_mllog(&mut self, write: impl FnOnce(&mut RunLog) -> io::Result<()>) -> Result<(), TrainError> {
        let Some(MlperfLog { path, log }) = &mut self.mllog else { return Ok(()) };
        write(log).map_err(TrainError::write(&*path))
    }
}

/// Whether MLPerf's log has the evaluations of a dataset: it has those of the dataset that is trained on, and not those
/// of further sets.
fn is_in_mllog(set: Option<&str>) -> bool {
    set.is_none()
}

/// Returns the scalars of an evaluation of a part by tag: those of the only head, or of each one. Undefined metrics
/// have none.
fn scalars(name: &str, metrics: &EvalMetrics) -> Vec<(String, f64)> {
    let of = |prefix: String, metrics: &Metrics| {
        let values = [
            ("auc", metrics.auc),
            ("log_loss", Some(metrics.log_loss)),
            ("calibration", metrics.calibration),
        ];
        values.into_iter().filter_map(move |(name, value)| Some((format!("{prefix}/{name}"), value?)))
    };
    if metrics.heads.is_empty() {
        return metrics.first.iter().flat_map(|metrics| of(name.to_owned(), metrics)).collect();
    }
    let heads =
        metrics.heads.iter().filter_map(|(label, metrics)| Some((format!("{name}/{label}"), (*metrics)?)));
    heads.flat_map(|(prefix, metrics)| of(prefix, &metrics)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_heads_has_its_own_scalars() {
        let metrics = |auc, calibration| Metrics {
            samples: 4,
            auc,
            log_loss: 0.5,
            normalized_entropy: None,
            calibration,
            calibration_uncorrected: None,
            label_rate: 0.25,
        };
        let one = EvalMetrics { first: Some(metrics(Some(0.75), Some(1.5))), heads: [].into() };
        let names = |of: &EvalMetrics| {
            let text = |(tag, value): (String, f64)| format!("{tag} {value}");
            scalars("eval", of).into_iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(names(&one), ["eval/auc 0.75", "eval/log_loss 0.5", "eval/calibration 1.5"]);
        let heads = [("buy", Some(metrics(None, None))), ("click", one.first), ("like", None)];
        let heads = heads.map(|(label, metrics)| (label.to_owned(), metrics));
        let several = EvalMetrics { first: one.first, heads: heads.into() };
        let expected = [
            "eval/buy/log_loss 0.5",
            "eval/click/auc 0.75",
            "eval/click/log_loss 0.5",
            "eval/click/calibration 1.5",
        ];
        assert_eq!(names(&several), expected);
        assert_eq!(names(&EvalMetrics::default()), [] as [&str; 0]);
    }
}
