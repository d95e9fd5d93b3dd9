//! A trial: a training of the job with drawn settings, which goes on at each round.

use std::cmp::Ordering;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rankine_base::Stop;
use rankine_job::{Checkpoint, Count, Eval, Job, Metrics, StoppingMetric, ThreadCount};
use rankine_reader::Split;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::run_paths;
use crate::training::{Start, TrainError, TrainOptions, finished_steps, train};

/// The evaluations that a training makes at most: each third of the shortest round.
const EVALUATIONS: u64 = 27;

/// A trial of a search.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) number: u64,
    /// The job, whose number of steps does not count.
    pub(super) job: Job,
    /// Its run folder.
    pub(super) path: PathBuf,
    /// Steps until its last round ends.
    pub(super) steps_max: u64,
}

/// The resources of a trial that runs beside others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) threads: ThreadCount,
    /// The first of its GPUs.
    pub(super) gpu: usize,
}

/// An evaluation on the validation set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps completed.
    pub step: u64,
    /// The metric.
    pub value: f64,
}

/// How far a trial got.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Standing {
    /// Steps completed.
    pub(super) steps: u64,
    /// The best evaluation so far; `None` if the metric was never defined.
    pub(super) best: Option<Evaluation>,
    /// Whether the loss or weights became non-finite.
    pub(super) diverged: bool,
}

impl Trial {
    /// Trains until a number of steps is completed, or until a stop is requested.
    ///
    /// # Errors
    /// As [`train`], except that a training that diverges is a result.
    pub(super) fn train(
        &self,
        steps: u64,
        metric: StoppingMetric,
        share: Share,
        stop: &Stop,
    ) -> Result<Standing, TrainError> {
        let done = finished_steps(&self.path)?;
        if done.is_some_and(|done| done >= steps) {
            return self.standing(metric, steps);
        }
        let job = self.until(steps, share.threads);
        let options = TrainOptions {
            run_dir: Some(&self.path),
            start: Start::Resume,
            stop: Some(stop),
            hides_eval: true,
            first_gpu: share.gpu,
            ..TrainOptions::default()
        };
        match train(&job, options, &mut ()) {
            Ok(_) => {
                remove_all(&self.path, |name| name.starts_with("finished-step-"))?;
                self.standing(metric, steps)
            }
            Err(TrainError::Interrupted { step, .. }) => self.standing(metric, step),
            Err(TrainError::NotBegun { .. }) => self.standing(metric, 0),
            Err(error) if error.is_divergence() => {
                Ok(Standing { diverged: true, ..self.standing(metric, steps)? })
            }
            Err(error) => Err(error),
        }
    }

    /// The job of a round. At its end a checkpoint is saved, from which the next round goes on.
    fn until(&self, steps: u64, threads: ThreadCount) -> Job {
        let mut job = self.job.clone();
        job.train.max_steps = Some(Count::nearest(steps));
        job.train.epochs = Count::nearest(u64::MAX);
        job.train.early_stopping = None;
        job.train.average = None;
        job.train.log_every_steps = Count::nearest(self.steps_max.div_ceil(EVALUATIONS));
        job.eval = Eval {
            every_steps: Some(job.train.log_every_steps),
            target_auc: None,
            set: Vec::new(),
            ..job.eval
        };
        job.checkpoint = Checkpoint {
            every_steps: Some(Count::nearest(steps)),
            every_minutes: None,
            keep: Count::nearest(1),
            incremental: false,
            ..job.checkpoint
        };
        job.metrics = Metrics::default();
        job.device.threads = Some(threads);
        job
    }

    /// The best evaluation up to a step, by the run's log.
    fn standing(&self, metric: StoppingMetric, steps: u64) -> Result<Standing, TrainError> {
        let path = run_paths::metrics(&self.path);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.map_err(|error| TrainError::unreadable(&path, &error))?,
        };
        let best = best_of(&text, metric, steps);
        Ok(Standing { steps, best, diverged: false })
    }

    /// Removes the weights of a trial that does not go on. Its job, log and summary stay.
    pub(super) fn remove_weights(&self) -> Result<(), TrainError> {
        let names = [run_paths::MODEL_NAME, run_paths::CHECKPOINTS_NAME];
        remove_all(&self.path, |name| names.contains(&name))
    }
}

/// Returns the best evaluation up to a step, by a run's log.
fn best_of(log: &str, metric: StoppingMetric, steps: u64) -> Option<Evaluation> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let evaluations = lines.filter(|line| line["kind"] == "eval" && line["part"] == "validation");
    let evaluations = evaluations.filter_map(|line| {
        let (step, value) = (line["step"].as_u64()?, line[metric.name()].as_f64()?);
        (step <= steps).then_some(Evaluation { step, value })
    });
    let mut best = None;
    for evaluation in evaluations {
        if best_first(metric, Some(evaluation), best).is_lt() {
            best = Some(evaluation);
        }
    }
    best
}

/// The order of two evaluations, the better one first; an evaluation comes before none.
pub(super) fn best_first(
    metric: StoppingMetric,
    one: Option<Evaluation>,
    other: Option<Evaluation>,
) -> Ordering {
    match (one, other) {
        (Some(one), Some(other)) => metric.gain(other.value, one.value).total_cmp(&0.0),
        (one, other) => other.is_some().cmp(&one.is_some()),
    }
}

/// Sets the samples that are held out.
pub(super) fn held_out(mut job: Job, validation: Split) -> Job {
    job.train.validation = validation;
    job
}

/// Removes the folders in a folder whose names are chosen.
fn remove_all(dir: &Path, is_chosen: impl Fn(&str) -> bool) -> Result<(), TrainError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| TrainError::Write { path, source }
    };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed(dir))?,
    };
    for entry in entries {
        let path = entry.map_err(failed(dir))?.path();
        if path.is_dir() && path.file_name().and_then(|name| name.to_str()).is_some_and(&is_chosen) {
            fs::remove_dir_all(&path).map_err(failed(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::StoppingMetric::{Auc, LogLoss};
    use super::*;

    #[test]
    fn the_best_evaluation_counts_and_not_the_last() {
        let line = |part, step, auc: Option<f64>, log_loss| {
            let line = serde_json::json!({
                "kind": "eval", "part": part, "step": step, "auc": auc, "log_loss": log_loss,
            });
            line.to_string()
        };
        let log = [
            r#"{"kind":"train","step":50,"loss":0.1}"#.to_owned(),
            line("validation", 100, Some(0.70), 0.50),
            line("eval", 150, Some(0.99), 0.01),
            line("validation", 200, Some(0.80), 0.40),
            // Without samples of both classes the metric is not defined.
            line("validation", 300, None, 0.45),
            line("validation", 400, Some(0.75), 0.30),
            line("validation", 500, Some(0.80), 0.35),
            "{\"kind\":\"eval\",".to_owned(),
        ]
        .join("\n");
        let best = |metric, steps| best_of(&log, metric, steps).map(|best| (best.step, best.value));
        assert_eq!(best(Auc, 500), Some((200, 0.80)));
        assert_eq!(best(Auc, 199), Some((100, 0.70)));
        assert_eq!(best(LogLoss, 500), Some((400, 0.30)));
        assert_eq!(best(LogLoss, 300), Some((200, 0.40)));
        assert_eq!(best(Auc, 99), None);
    }
}
