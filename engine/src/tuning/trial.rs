//! A trial: a training of the job with drawn settings, which goes on at each round.

use std::cmp::Ordering;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rankine_base::Stop;
use rankine_job::{Checkpoint, Count, Eval, Job, Metrics, Schedule, StoppingMetric, ThreadCount};
use rankine_reader::Split;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::run_paths;
use crate::training::{Start, TrainError, TrainOptions, finished_steps, train};

/// The evaluations that a trial makes at most until its last round ends: each third of the shortest round.
const EVALUATIONS: u64 = 27;
/// The evaluations of a round that trains with a schedule of its own length, whose best step is near its end.
const EVALUATIONS_OF_ROUND: u64 = 6;
/// Samples that are trained on for each one that is evaluated, which takes about 0.8 of the time of training on it:
/// evaluations take a tenth of the time.
const TRAINED_PER_EVALUATED: u64 = 8;

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
    /// The samples of the validation set.
    pub(super) validation_samples: u64,
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
        let path = self.path_of(steps);
        let done = finished_steps(&path)?;
        if done.is_some_and(|done| done >= steps) {
            return standing(&path, metric, steps);
        }
        let job = self.until(steps, share.threads);
        let options = TrainOptions {
            run_dir: Some(&path),
            start: Start::Resume,
            stop: Some(stop),
            hides_eval: true,
            first_gpu: share.gpu,
            ..TrainOptions::default()
        };
        match train(&job, options, &mut ()) {
            Ok(_) => {
                remove_all(&path, |name| name.starts_with("finished-step-"))?;
                if self.restarts() {
                    remove_weights(&path)?;
                }
                standing(&path, metric, steps)
            }
            Err(TrainError::Interrupted { step, .. }) => standing(&path, metric, step),
            Err(TrainError::NotBegun { .. }) => standing(&path, metric, 0),
            Err(error) if error.is_divergence() => {
                Ok(Standing { diverged: true, ..standing(&path, metric, steps)? })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether each round is a training of its own, with the whole schedule in its steps. At the beginning of a longer
    /// schedule, trials say nothing about its end: the lowest rate looks best.
    fn restarts(&self) -> bool {
        self.job.optimizer.schedule != Schedule::Constant
    }

    /// The run folder of the round that ends at a step.
    fn path_of(&self, steps: u64) -> PathBuf {
        if !self.restarts() || steps >= self.steps_max {
            return self.path.clone();
        }
        let mut name = self.path.clone().into_os_string();
        name.push(format!("-of-{steps}-steps"));
        name.into()
    }

    /// The job of a round. At its end a checkpoint is saved, from which the next round goes on if there is no schedule.
    fn until(&self, steps: u64, threads: ThreadCount) -> Job {
        let mut job = self.job.clone();
        let (length, evaluations) =
            if self.restarts() { (steps, EVALUATIONS_OF_ROUND) } else { (self.steps_max, EVALUATIONS) };
        job.optimizer.schedule = job.optimizer.schedule.scaled(length, self.steps_max);
        let batch_size = u64::from(job.train.batch_size.get());
        let steps_per_evaluation = (length / evaluations)
            .max(TRAINED_PER_EVALUATED * self.validation_samples / batch_size)
            .min(steps);
        job.train.max_steps = Some(Count::nearest(steps));
        job.train.epochs = Count::nearest(u64::MAX);
        job.train.early_stopping = None;
        job.train.average = None;
        job.train.log_every_steps = Count::nearest(steps_per_evaluation);
        job.eval = Eval {
            every_steps: Some(job.train.log_every_steps),
            every: None,
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

    /// Removes the weights of a trial that does not go on. Its job, log and summary stay.
    pub(super) fn remove_weights(&self) -> Result<(), TrainError> {
        remove_weights(&self.path)
    }
}

fn remove_weights(run: &Path) -> Result<(), TrainError> {
    let names = [run_paths::MODEL_NAME, run_paths::CHECKPOINTS_NAME];
    remove_all(run, |name| names.contains(&name))
}

/// The best evaluation up to a step, by a run's log.
fn standing(run: &Path, metric: StoppingMetric, steps: u64) -> Result<Standing, TrainError> {
    let path = run_paths::metrics(run);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text.map_err(|error| TrainError::unreadable(&path, &error))?,
    };
    let best = best_of(&text, metric, steps);
    Ok(Standing { steps, best, diverged: false })
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

    #[test]
    fn a_round_has_the_whole_schedule_and_few_evaluations() {
        let trial = |schedule: &str, validation_samples| {
            let job = format!(
                "name = 'a'\ndata.dir = 'b'\nmodel = {{ kind = 'wide-deep', embedding_dim = 4, top_mlp = [4] }}\n\
                 optimizer.dense = {{ kind = 'sgd', learning_rate = 1 }}\n\
                 optimizer.sparse = {{ kind = 'sgd', learning_rate = 1 }}\n{schedule}\n\
                 train = {{ batch_size = 10, epochs = 3 }}\n"
            );
            let job =
                Job::from_toml("job.toml", &job, &[] as &[&str]).unwrap_or_else(|error| panic!("{error}"));
            Trial { number: 3, job, path: "trials/003".into(), steps_max: 900, validation_samples }
        };
        let threads = ThreadCount::new(1).unwrap_or_else(|| panic!("one thread"));
        let every = |trial: &Trial, steps| trial.until(steps, threads).eval.every_steps.map(Count::get);
        let cosine =
            trial("optimizer.schedule = { kind = 'cosine', warmup_steps = 90, decay_steps = 810 }", 0);
        let own = &cosine.job.optimizer.schedule;
        assert_eq!(cosine.until(100, threads).optimizer.schedule, own.scaled(1, 9));
        assert_eq!(cosine.until(900, threads).optimizer.schedule, *own);
        assert_eq!((every(&cosine, 100), every(&cosine, 900)), (Some(16), Some(150)));
        // Each round has a folder of its own, unless it continues the one before.
        assert_eq!(cosine.path_of(100), Path::new("trials/003-of-100-steps"));
        assert_eq!(cosine.path_of(900), cosine.path);
        let constant = trial("", 0);
        assert_eq!((every(&constant, 100), every(&constant, 900)), (Some(33), Some(33)));
        assert_eq!(constant.path_of(100), constant.path);
        // 250 samples, each an eighth of a sample of training: 200 steps of 10 samples.
        let slow = trial("", 250);
        assert_eq!((every(&slow, 100), every(&slow, 900)), (Some(100), Some(200)));
    }
}
