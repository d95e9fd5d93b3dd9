//! A trial: a training of the job with drawn settings, which goes on at each round.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rankine_base::Stop;
use rankine_job::{AucTarget, Checkpoint, Count, Eval, Job, Metrics, Schedule, StoppingMetric, ThreadCount};
use rankine_reader::Split;

use super::curve::Curve;
use crate::run_paths;
use crate::training::{Start, TrainError, TrainOptions, finished_steps, train};

/// The evaluations that a trial makes at most until its last round ends: each third of the shortest round.
const EVALUATIONS: u64 = 27;
/// The evaluations of a round that trains with a schedule of its own length, whose best step is near its end.
const EVALUATIONS_OF_ROUND: u64 = 6;
/// Samples that are trained on for each one that is evaluated, which takes about 0.8 of the time of training on it:
/// evaluations take a tenth of the time.
const TRAINED_PER_EVALUATED: u64 = 8;
/// Likewise for a trial whose time to an AUC is measured: evaluations, which do not count, take less than half of its
/// time.
const TRAINED_PER_EVALUATED_IF_TIMED: u64 = 1;
/// Its evaluations in a round, at least: an extrapolation needs three, and the first batch, which waits for the reader,
/// must not decide the median time of a step.
const EVALUATIONS_IF_TIMED_MIN: u64 = 3;

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
    /// Whether the time to an AUC is measured; `None` if the metric counts.
    pub(super) timing: Option<Timing>,
}

/// How the time of a trial to an AUC is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timing {
    /// The AUC that ends the trial; `None` if it is not known yet.
    pub(super) target: Option<AucTarget>,
    /// Steps between two evaluations. All trials are evaluated after the same numbers of samples: a trial that is
    /// evaluated more often reaches the target earlier.
    pub(super) steps_per_evaluation: u64,
}

impl Timing {
    /// `steps_max` are the steps of the job for as many samples as the other trials have.
    pub(super) fn new(target: Option<AucTarget>, job: &Job, steps_max: u64, validation_samples: u64) -> Self {
        let least =
            TRAINED_PER_EVALUATED_IF_TIMED * validation_samples / u64::from(job.train.batch_size.get());
        Self { target, steps_per_evaluation: (steps_max / EVALUATIONS).max(least).max(1) }
    }
}

/// The resources of a trial that runs beside others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) threads: ThreadCount,
    /// The first of its GPUs.
    pub(super) gpu: usize,
}

/// How far a trial got.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Standing {
    /// Steps completed, or at which it would have ended if it had not reached its target before.
    pub(super) steps: u64,
    /// The evaluations so far.
    pub(super) curve: Curve,
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
        if let Some(done) = finished_steps(&path)? {
            let ended = standing(&path, metric, steps)?;
            let target = self.timing.and_then(|timing| timing.target);
            if done >= steps || target.is_some_and(|target| ended.curve.reaching(target).is_some()) {
                return Ok(ended);
            }
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

    /// Sets the steps until its last round ends; the schedule has the same share of them.
    pub(super) fn set_steps_max(&mut self, steps: u64) {
        self.job.optimizer.schedule = self.job.optimizer.schedule.scaled(steps, self.steps_max);
        self.steps_max = steps;
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
        let length = if self.restarts() { steps } else { self.steps_max };
        job.optimizer.schedule = job.optimizer.schedule.scaled(length, self.steps_max);
        let batch_size = u64::from(job.train.batch_size.get());
        let steps_per_evaluation = match self.timing {
            Some(timing) => timing.steps_per_evaluation.min(steps.div_ceil(EVALUATIONS_IF_TIMED_MIN)),
            None => {
                let evaluations = if self.restarts() { EVALUATIONS_OF_ROUND } else { EVALUATIONS };
                let least = TRAINED_PER_EVALUATED * self.validation_samples / batch_size;
                (length / evaluations).max(least).min(steps)
            }
        };
        job.train.max_steps = Some(Count::nearest(steps));
        job.train.epochs = Count::nearest(u64::MAX);
        job.train.early_stopping = None;
        job.train.average = None;
        job.train.log_every_steps = Count::nearest(steps_per_evaluation);
        job.eval = Eval {
            every_steps: Some(job.train.log_every_steps),
            every: None,
            target_auc: self.timing.and_then(|timing| timing.target),
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

/// How far a run got by a step, by its log.
fn standing(run: &Path, metric: StoppingMetric, steps: u64) -> Result<Standing, TrainError> {
    Ok(Standing { steps, curve: Curve::read(run, metric, steps)?, diverged: false })
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
    use super::*;

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
            let path = "trials/003".into();
            Trial { number: 3, job, path, steps_max: 900, validation_samples, timing: None }
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
        let mut slow = trial("", 250);
        assert_eq!((every(&slow, 100), every(&slow, 900)), (Some(100), Some(200)));
        // If its time is measured, 25 steps of 10 samples are enough for 250, in each round.
        let target = AucTarget::new(0.75);
        let timing = |job: &Job, steps_max, validation| Some(Timing::new(target, job, steps_max, validation));
        for (steps_max, validation, expected) in [(900, 250, 33), (270, 250, 25), (9, 0, 1)] {
            slow.timing = timing(&slow.job, steps_max, validation);
            assert_eq!(every(&slow, 900), Some(expected));
            assert_eq!(every(&slow, 9), Some(expected.min(3)), "three evaluations, at least");
        }
        assert_eq!(slow.until(100, threads).eval.target_auc, target);
        let mut timed = cosine;
        timed.timing = timing(&timed.job, 900, 0);
        assert_eq!((every(&timed, 99), every(&timed, 900)), (Some(33), Some(33)));
        let own = timed.job.optimizer.schedule.clone();
        timed.set_steps_max(450);
        assert_eq!((timed.steps_max, &timed.job.optimizer.schedule), (450, &own.scaled(1, 2)));
        assert_eq!(timed.until(450, threads).optimizer.schedule, own.scaled(1, 2));
    }
}
