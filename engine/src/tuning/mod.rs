//! A search for the settings of a job (`rankine tune`): random search with successive halving.
//!
//! A trial is a training of the job with settings drawn from a [`Space`]; the first trial is the job itself. All trials
//! of a bracket train on a share of the samples, the best third trains on three times as many, and so on
//! (`halving.rs`). Trials are compared by their best evaluation on a validation set, and never see the evaluation part.
//! The step of the best evaluation is part of the result.
//!
//! Each trial has a run folder, in which it resumes at the next round, or after an interruption.

mod error;
mod halving;
mod plan;
mod round;
mod space;
mod trial;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rankine_base::Stop;
use rankine_job::{Conflict, Job, JobError, JobFile, StoppingMetric};
use rankine_reader::{Dataset, Part, Split};
use serde::Serialize;

use crate::training::{TrainError, TrainingPart, open_or_generate, refit, translate, with_shape};
use halving::{BRACKET, rounds};
use round::{Failure, Rivals, Workers};
use trial::{Standing, Trial, best_first, held_out};

pub use error::TuneError;
pub use space::{Drawn, Space};
pub use trial::Evaluation;

/// The validation set of a job that holds none out.
const VALIDATION: Split = Split::Last { share: 0.1 };

/// A search.
#[derive(Debug, Clone, Copy)]
pub struct Tuning<'a> {
    /// The job whose settings are varied.
    pub file: &'a JobFile,
    /// The settings that vary, and their values.
    pub space: &'a Space,
    /// The seed of the draws.
    pub seed: u64,
    /// When the search ends.
    pub extent: Extent,
    /// The folder of the trials.
    pub dir: &'a Path,
    /// Whether to continue a search in that folder; otherwise it must be empty or not exist.
    pub resume: bool,
    /// A request to stop.
    pub stop: &'a Stop,
}

/// When a search ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// After this number of trials, in one bracket.
    Trials(u64),
    /// After this time, in brackets of nine trials.
    Budget(Duration),
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tuned {
    /// The metric that trials are compared by.
    pub metric: StoppingMetric,
    /// The samples that were held out.
    pub validation: String,
    /// All trials, the best first.
    pub trials: Vec<TrialResult>,
    /// The job of the best trial, to be trained on the whole training part, as TOML.
    #[serde(skip)]
    pub job: String,
}

/// A trial, and how far it got.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrialResult {
    /// Its number; 0 is the job itself.
    pub trial: u64,
    /// What was drawn.
    pub settings: Drawn,
    /// Steps of its last round.
    pub steps: u64,
    /// Its best evaluation; `None` if the metric was never defined.
    pub best: Option<Evaluation>,
    /// Whether its loss or weights became non-finite.
    pub diverged: bool,
}

/// Searches for the best settings. `observe` receives each trial at the end of each of its rounds, from any thread.
///
/// # Errors
/// [`TuneError`].
pub fn tune(tuning: Tuning<'_>, observe: &(dyn Fn(&TrialResult) + Sync)) -> Result<Tuned, TuneError> {
    let job = tuning.file.job()?;
    let job = held_out(
        job.clone(),
        if job.train.validation == Split::None { VALIDATION } else { job.train.validation },
    );
    let cases: Vec<_> = tuning
        .space
        .cases()
        .iter()
        .map(|drawn| file_and_job(tuning, &job, drawn))
        .collect::<Result<_, _>>()?;
    let dataset = open_or_generate(&job, tuning.stop, &mut ())?;
    let model = translate(&job, dataset.schema());
    let model = model.map_err(|conflicts| TuneError::Job(tuning.file.error(&conflicts)))?;
    let workers = Workers::of(&job, model.table_bytes());
    let began = Instant::now();
    let deadline = match tuning.extent {
        Extent::Trials(_) => None,
        Extent::Budget(budget) => Some(began + budget),
    };
    let search = Search { tuning, job: &job, dataset: &dataset, workers, deadline, observe };
    cases.iter().try_for_each(|(file, job)| search.check_columns(file, job))?;
    let lock = plan::begin(&tuning, &job, &dataset)?;
    let trials = search.trials()?;
    let tuned = search.result(trials)?;
    plan::finish(&tuning, (&job, &dataset), &tuned, &lock)?;
    Ok(tuned)
}

/// The job with the settings of a trial, and its file.
fn file_and_job(tuning: Tuning<'_>, job: &Job, drawn: &Drawn) -> Result<(JobFile, Job), JobError> {
    let file = tuning.space.applied_to(tuning.file, &space::sets(job, drawn))?;
    let job = file.job()?;
    Ok((file, job))
}

/// How [`compare`] trains.
#[derive(Debug, Clone, Copy)]
pub struct Comparison<'a> {
    /// Samples that each job trains on.
    pub samples: u64,
    /// The folder of their run folders.
    pub dir: &'a Path,
    /// A request to stop.
    pub stop: &'a Stop,
}

/// Trains jobs of one dataset side by side, with the last tenth of the training part held out. Returns the best
/// evaluation of each by AUC; `None` if it diverged, or its AUC was never defined. The evaluation part is not read.
///
/// # Errors
/// [`TuneError`].
pub fn compare(
    jobs: &[Job],
    Comparison { samples, dir, stop }: Comparison<'_>,
) -> Result<Vec<Option<Evaluation>>, TuneError> {
    let Some(first) = jobs.first() else { return Ok(Vec::new()) };
    let dataset = open_or_generate(&held_out(first.clone(), VALIDATION), stop, &mut ())?;
    let (mut trials, mut table_bytes) = (Vec::new(), 0);
    for (number, job) in (0..).zip(jobs) {
        let model = translate(job, dataset.schema()).map_err(TrainError::Conflicts)?;
        table_bytes = model.table_bytes().max(table_bytes);
        let steps_max = steps_for(samples, dataset.samples(Part::Train), job.train.batch_size.get());
        let job = held_out(job.clone(), VALIDATION);
        trials.push(Trial { number, job, path: dir.join(number.to_string()), steps_max });
    }
    let rivals = Rivals { trials: &trials, divisor: 1, metric: StoppingMetric::Auc };
    let standings = Workers::of(first, table_bytes).run(rivals, stop, None, &|_, _| ());
    let standings = standings.map_err(|Failure { error, .. }| error)?;
    if let Some(cause) = stop.asked() {
        return Err(TuneError::Ended(cause));
    }
    let best = |standing: Option<Standing>| standing.filter(|standing| !standing.diverged)?.best;
    Ok(standings.into_iter().map(best).collect())
}

/// The steps that a job takes for a number of samples, with epochs of `epoch` samples, whose last batch may be smaller.
fn steps_for(samples: u64, epoch: u64, batch_size: u32) -> u64 {
    let (epoch, batch_size) = (epoch.max(1), u64::from(batch_size));
    let steps = (samples / epoch).saturating_mul(epoch.div_ceil(batch_size));
    steps.saturating_add((samples % epoch).div_ceil(batch_size)).max(1)
}

/// A search that has begun.
struct Search<'a> {
    tuning: Tuning<'a>,
    /// The job, with a validation set.
    job: &'a Job,
    dataset: &'a Dataset,
    workers: Workers,
    deadline: Option<Instant>,
    observe: &'a (dyn Fn(&TrialResult) + Sync),
}

impl Search<'_> {
    /// Runs all trials. Returns their results, by number.
    fn trials(&self) -> Result<Vec<TrialResult>, TuneError> {
        let mut results = Vec::new();
        match self.tuning.extent {
            Extent::Trials(trials) => self.bracket(trials.max(1), &mut results)?,
            Extent::Budget(_) => {
                while !self.is_over() {
                    self.bracket(BRACKET, &mut results)?;
                }
            }
        }
        Ok(results)
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Runs the trials of a bracket, which follow those that have results, and adds their results.
    fn bracket(&self, trials: u64, results: &mut Vec<TrialResult>) -> Result<(), TuneError> {
        let first = results.len() as u64;
        let mut going = Vec::new();
        for number in first..first + trials {
            let settings = self.draw(number);
            going.push(self.trial(number, &settings)?);
            results.push(TrialResult { trial: number, settings, steps: 0, best: None, diverged: false });
        }
        let metric = self.metric();
        for round in rounds(trials) {
            if self.is_over() {
                break;
            }
            let best = |trial: &Trial| results[trial.number as usize].best;
            // Stable: of equally good trials, the first one goes on.
            going.sort_by(|one, other| best_first(metric, best(one), best(other)));
            for trial in going.drain(round.trials.min(going.len())..) {
                trial.remove_weights()?;
            }
            let rivals = Rivals { trials: &going, divisor: round.divisor, metric };
            let observe = |trial: &Trial, standing: &Standing| {
                (self.observe)(&results[trial.number as usize].clone().after(standing));
            };
            let standings = self.workers.run(rivals, self.tuning.stop, self.deadline, &observe);
            let standings = standings.map_err(|failure| self.failed(failure))?;
            if let Some(cause) = self.tuning.stop.asked() {
                return Err(TuneError::Stopped { cause, dir: self.tuning.dir.to_owned() });
            }
            for (trial, standing) in going.iter().zip(standings) {
                let result = &mut results[trial.number as usize];
                if let Some(standing) = standing {
                    *result = result.clone().after(&standing);
                }
            }
            going.retain(|trial| !results[trial.number as usize].diverged);
        }
        going.iter().try_for_each(Trial::remove_weights)?;
        Ok(())
    }

    /// The error of a search in which a trial failed for another reason than its settings.
    fn failed(&self, Failure { trial, error }: Failure) -> TuneError {
        if error.unresumable().is_none() {
            return error.into();
        }
        let dir = self.tuning.dir.to_owned();
        TuneError::Trial { number: trial, trial: self.path_of(trial), dir, error: Box::new(error) }
    }

    fn path_of(&self, trial: u64) -> PathBuf {
        self.tuning.dir.join("trials").join(format!("{trial:03}"))
    }

    /// The settings of a trial; none for the first, which is the job itself.
    fn draw(&self, number: u64) -> Drawn {
        if number == 0 { Vec::new() } else { self.tuning.space.draw(self.tuning.seed, number) }
    }

    fn metric(&self) -> StoppingMetric {
        self.job.train.early_stopping.map_or_else(StoppingMetric::default, |stopping| stopping.metric)
    }

    /// The job of a trial.
    fn job_of(&self, drawn: &Drawn) -> Result<Job, TuneError> {
        let (file, job) = file_and_job(self.tuning, self.job, drawn)?;
        self.check_columns(&file, &job)?;
        Ok(job)
    }

    /// Checks that a job suits the columns of the dataset; `file` has the lines that errors show.
    fn check_columns(&self, file: &JobFile, job: &Job) -> Result<(), TuneError> {
        let of_file = |conflicts: Vec<Conflict>| TuneError::Job(file.error(&conflicts));
        let schema = with_shape(job, self.dataset.schema().stored()).map_err(|error| match error {
            TrainError::Conflicts(conflicts) => of_file(conflicts),
            error => error.into(),
        })?;
        translate(job, &schema).map_err(of_file)?;
        Ok(())
    }

    fn trial(&self, number: u64, drawn: &Drawn) -> Result<Trial, TuneError> {
        let job = held_out(self.job_of(drawn)?, self.job.train.validation);
        Ok(Trial { number, steps_max: self.steps_max(&job), job, path: self.path_of(number) })
    }

    /// The steps that a trial takes for the most samples, which are those of the job's training.
    fn steps_max(&self, trial: &Job) -> u64 {
        let epoch = self.dataset.samples(Part::Train);
        let samples = self.job.train.samples(epoch);
        steps_for(samples, epoch, trial.train.batch_size.get())
    }

    /// The result: all trials, the best first, and its job.
    fn result(&self, mut trials: Vec<TrialResult>) -> Result<Tuned, TuneError> {
        let metric = self.metric();
        trials.sort_by(|one, other| best_first(metric, one.best, other.best));
        let Some((best, Evaluation { step, value })) =
            trials.first().and_then(|best| Some((best, best.best?)))
        else {
            return Err(TuneError::NoResult(metric));
        };
        let part = TrainingPart::of(self.dataset);
        let job = refit(&self.job_of(&best.settings)?, part.steps(step), part.all);
        let validation = self.job.train.validation.to_string();
        let header = format!(
            "# Found by rankine tune: trial {} of {}. Its {} on the validation set (\"{validation}\") was {value:.5}\n\
             # after {step} steps on {} samples; train.max_steps is in proportion for all {}.\n",
            best.trial,
            trials.len(),
            metric.name(),
            part.searched,
            part.all
        );
        Ok(Tuned { metric, validation, job: header + &job.to_toml(), trials })
    }
}

impl TrialResult {
    /// The result after a further round.
    fn after(self, standing: &Standing) -> Self {
        let Standing { steps, best, diverged } = *standing;
        Self { steps, best, diverged, ..self }
    }
}

impl From<TrainError> for TuneError {
    fn from(error: TrainError) -> Self {
        Self::Train(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_whole_epochs_and_of_a_rest() {
        // An epoch of 2400 samples has 18 batches of 128, and one of 96.
        assert_eq!(steps_for(640, 2400, 128), 5);
        assert_eq!(steps_for(641, 2400, 128), 6);
        assert_eq!(steps_for(2304, 2400, 128), 18);
        assert_eq!(steps_for(2400, 2400, 128), 19);
        assert_eq!(steps_for(2 * 2400 + 640, 2400, 128), 2 * 19 + 5);
        assert_eq!((steps_for(1, 2400, 128), steps_for(0, 2400, 128), steps_for(5, 0, 128)), (1, 1, 5));
        assert_eq!(steps_for(u64::MAX, 1, 1), u64::MAX);
    }
}
