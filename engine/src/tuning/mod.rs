//! A search for the settings of a job (`rankine tune`): random search with successive halving.
//!
//! A trial is a training of the job with settings drawn from a [`Space`]; the first trial is the job itself. All trials
//! of a bracket train on a share of the samples, the best third trains on three times as many, and so on
//! (`halving.rs`). In later brackets, most settings are drawn near those of the best trial. Trials are compared by
//! their best evaluation on a validation set, and never see the evaluation part. The step of the best evaluation is
//! part of the result.
//!
//! Each trial has a run folder, in which it resumes at the next round, or after an interruption. With a learning-rate
//! schedule each round is a training of its own, with the whole schedule in its steps.
//!
//! A search looks for the best metric, or for the least time to an AUC ([`Objective`], `race.rs`). The rounds of the
//! latter are shares of the time of the fastest trial instead of shares of the samples.

mod curve;
mod error;
mod halving;
mod plan;
mod race;
mod round;
mod space;
mod trial;

use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rankine_base::Stop;
use rankine_job::{Conflict, Job, JobError, JobFile, StoppingMetric};
use rankine_reader::{Dataset, Part, Split};
use serde::Serialize;

use crate::training::{TrainError, TrainingPart, open_or_generate, refit, translate, with_shape};
use curve::{best_first, fastest_first};
use halving::{BRACKET, rounds};
use race::{Race, own_unless_slower};
use round::{Failure, Rivals, Workers};
use trial::{Standing, Timing, Trial, held_out};

pub use curve::{Basis, Evaluation, TimeToTarget};
pub use error::TuneError;
pub use race::Objective;
pub use space::{Drawn, Space};

/// The validation set of a job that holds none out.
const VALIDATION: Split = Split::Last { share: 0.1 };

/// A search.
#[derive(Debug, Clone, Copy)]
pub struct Tuning<'a> {
    /// The job whose settings are varied.
    pub file: &'a JobFile,
    /// The settings that vary, and their values.
    pub space: &'a Space,
    /// What the search looks for.
    pub objective: Objective,
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
    /// The AUC on the validation set whose time counts; `None` if the best metric counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_auc: Option<f64>,
    /// The samples that were held out.
    pub validation: String,
    /// The number of the trial whose job is the result: the first one, unless it is hardly faster than the job itself.
    pub chosen: u64,
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
    /// Steps of its last round, which a trial that reaches the target earlier does not complete.
    pub steps: u64,
    /// Its best evaluation; `None` if the metric was never defined.
    pub best: Option<Evaluation>,
    /// The time until it reaches the target; `None` if there is no target, or no step was timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeToTarget>,
    /// Whether its loss or weights became non-finite.
    pub diverged: bool,
}

/// Searches for the best settings. `observe` receives each trial at the end of each of its rounds, from any thread.
///
/// # Errors
/// [`TuneError`].
pub fn tune(tuning: Tuning<'_>, observe: &(dyn Fn(&TrialResult) + Sync)) -> Result<Tuned, TuneError> {
    let own = tuning.file.job()?;
    let holds_out = own.train.validation != Split::None;
    let mut job = if holds_out { own } else { held_out(own, VALIDATION) };
    let cases: Vec<_> = tuning
        .space
        .cases()
        .iter()
        .map(|drawn| file_and_job(tuning, &job, drawn))
        .collect::<Result<_, _>>()?;
    let dataset = open_or_generate(&job, tuning.stop, &mut ())?;
    let model = translate(&job, dataset.schema());
    let model = model.map_err(|conflicts| TuneError::Job(tuning.file.error(&conflicts)))?;
    if !holds_out {
        // The schedule was written for all samples.
        let part = TrainingPart::of(&dataset);
        job.optimizer.schedule = job.optimizer.schedule.scaled(part.searched, part.all);
    }
    let workers = Workers::of(&job, model.table_bytes());
    let began = Instant::now();
    let deadline = match tuning.extent {
        Extent::Trials(_) => None,
        Extent::Budget(budget) => Some(began + budget),
    };
    let workers = if tuning.objective.is_time() { workers.one_at_a_time() } else { workers };
    let mut search = Search { tuning, job: &job, dataset: &dataset, workers, deadline, race: None, observe };
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

/// The number of trials that [`compare`] trains at once.
pub fn trials_at_once(job: &Job, table_bytes: u64) -> usize {
    Workers::of(job, table_bytes).at_once
}

/// How [`compare`] trains.
#[derive(Clone, Copy)]
pub struct Comparison<'a> {
    /// The folder of the run folders.
    pub dir: &'a Path,
    /// A request to stop.
    pub stop: &'a Stop,
    /// When trials stop.
    pub deadline: Option<Instant>,
    /// Receives the number of each job and its evaluation as it ends, from any thread.
    pub observe: &'a (dyn Fn(usize, Option<Evaluation>) + Sync),
}

/// Trains jobs with the same data and validation set side by side, each for a number of samples and with its whole
/// schedule in that time. Returns the best evaluation of each by AUC; `None` if it diverged, if its AUC was never
/// defined, or if it did not end before the deadline or a request to stop. The evaluation part is not read.
///
/// # Errors
/// [`TuneError`].
pub fn compare(
    jobs: &[(Job, u64)],
    Comparison { dir, stop, deadline, observe }: Comparison<'_>,
) -> Result<Vec<Option<Evaluation>>, TuneError> {
    let Some((first, _)) = jobs.first() else { return Ok(Vec::new()) };
    // Only the training itself needs quantiles, for which it reads samples.
    let mut plain = first.clone();
    plain.features.clear();
    let dataset = open_or_generate(&plain, stop, &mut ())?;
    let (mut trials, mut table_bytes) = (Vec::new(), 0);
    for (number, (job, samples)) in (0..).zip(jobs) {
        let schema = with_shape(job, dataset.schema().stored())?;
        let model = translate(job, &schema).map_err(TrainError::Conflicts)?;
        table_bytes = model.table_bytes().max(table_bytes);
        let (epoch, batch_size) = (dataset.samples(Part::Train), job.train.batch_size.get());
        let steps_max = steps_for(*samples, epoch, batch_size);
        let mut job = job.clone();
        let own_steps = steps_for(job.train.samples(epoch), epoch, batch_size);
        job.optimizer.schedule = job.optimizer.schedule.scaled(steps_max, own_steps);
        let (path, validation_samples) = (dir.join(number.to_string()), dataset.samples(Part::Validation));
        trials.push(Trial { number, job, path, steps_max, validation_samples, timing: None });
    }
    let (metric, steps) =
        (StoppingMetric::Auc, trials.iter().map(|trial| trial.steps_max).collect::<Vec<_>>());
    let rivals = Rivals { trials: &trials, steps: &steps, metric };
    let best = |trial: &Trial, standing: &Standing| {
        let ended = standing.steps >= trial.steps_max && !standing.diverged;
        standing.curve.best(metric).filter(|_| ended)
    };
    let ended = |trial: &Trial, standing: &Standing| observe(trial.number as usize, best(trial, standing));
    let standings = Workers::of(first, table_bytes).run(rivals, stop, deadline, &ended);
    let standings = standings.map_err(|Failure { error, .. }| error)?;
    Ok(trials.iter().zip(standings).map(|(trial, standing)| best(trial, &standing?)).collect())
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
    /// What trials compete with, once the job itself was trained in a search for the least time.
    race: Option<Race>,
    observe: &'a (dyn Fn(&TrialResult) + Sync),
}

impl Search<'_> {
    /// Runs all trials. Returns their results, by number.
    fn trials(&mut self) -> Result<Vec<TrialResult>, TuneError> {
        let mut results = Vec::new();
        if let Objective::Time { target_auc } = self.tuning.objective {
            self.begin_race(target_auc.or(self.job.eval.target_auc), &mut results)?;
        }
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

    /// Runs the trials of a bracket, which follow the earlier brackets, and adds their results. The job itself
    /// may have a result already.
    fn bracket(&self, trials: u64, results: &mut Vec<TrialResult>) -> Result<(), TuneError> {
        let first = results.len() as u64;
        let mut going = Vec::new();
        for number in first..first - first % BRACKET + trials {
            let settings = self.draw(number, results);
            going.push(self.trial(number, &settings)?);
            results.push(TrialResult::begun(number, settings));
        }
        for round in rounds(trials) {
            if self.is_over() || going.is_empty() {
                break;
            }
            let result = |trial: &Trial| &results[trial.number as usize];
            // Stable: of equally good trials, the first one goes on. The job itself always does, so that the result is
            // compared with it.
            going.sort_by(|one, other| self.better_first(result(one), result(other)));
            let (stay, go): (Vec<_>, Vec<_>) = going
                .into_iter()
                .enumerate()
                .partition(|(place, trial)| *place < round.trials || trial.number == 0);
            going = stay.into_iter().map(|(_, trial)| trial).collect();
            go.iter().try_for_each(|(_, trial)| trial.remove_weights())?;
            let steps: Vec<_> = going
                .iter_mut()
                .map(|trial| match &self.race {
                    Some(race) => race.steps_of_round(trial, round.divisor, results),
                    None => trial.steps_max.div_ceil(round.divisor),
                })
                .collect();
            self.round(&going, &steps, results)?;
            let (ended, on) = going.into_iter().partition(|trial| results[trial.number as usize].is_final());
            going = on;
            Vec::into_iter(ended).try_for_each(|trial| trial.remove_weights())?;
        }
        going.iter().try_for_each(Trial::remove_weights)?;
        Ok(())
    }

    /// Trains trials for a number of steps each, and updates their results. Returns how far each got.
    fn round(
        &self,
        trials: &[Trial],
        steps: &[u64],
        results: &mut [TrialResult],
    ) -> Result<Vec<Option<Standing>>, TuneError> {
        let metric = self.metric();
        let after = |results: &[TrialResult], trial: &Trial, standing: &Standing| {
            results[trial.number as usize].clone().after(standing, metric, self.race.as_ref())
        };
        let observe = |trial: &Trial, standing: &Standing| (self.observe)(&after(results, trial, standing));
        let rivals = Rivals { trials, steps, metric };
        let standings = self.workers.run(rivals, self.tuning.stop, self.deadline, &observe);
        let standings = standings.map_err(|failure| self.failed(failure))?;
        if let Some(cause) = self.tuning.stop.asked() {
            return Err(TuneError::Stopped { cause, dir: self.tuning.dir.to_owned() });
        }
        for (trial, standing) in trials.iter().zip(&standings) {
            if let Some(standing) = standing {
                results[trial.number as usize] = after(results, trial, standing);
            }
        }
        Ok(standings)
    }

    /// The order of two trials, the better one first.
    fn better_first(&self, one: &TrialResult, other: &TrialResult) -> Ordering {
        let by_metric = best_first(self.metric(), one.best, other.best);
        match &self.race {
            Some(_) => fastest_first(one.time.as_ref(), other.time.as_ref()).then(by_metric),
            None => by_metric,
        }
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

    /// The settings of a trial; none for the first, which is the job itself. After the first bracket, two thirds of the
    /// trials are near the best one.
    fn draw(&self, number: u64, results: &[TrialResult]) -> Drawn {
        let Tuning { space, seed, .. } = self.tuning;
        let earlier = results.iter().take((number - number % BRACKET) as usize);
        let best = earlier.min_by(|one, other| self.better_first(one, other));
        match best.filter(|_| matches!(self.tuning.extent, Extent::Budget(_)) && !number.is_multiple_of(3)) {
            _ if number == 0 => Vec::new(),
            Some(best) => space.draw_near(seed, number, &best.settings),
            None => space.draw(seed, number),
        }
    }

    fn metric(&self) -> StoppingMetric {
        if self.tuning.objective.is_time() {
            return StoppingMetric::Auc;
        }
        self.job.train.early_stopping.map_or_else(StoppingMetric::default, |stopping| stopping.metric)
    }

    /// The job of a trial. A schedule that is not drawn takes as large a share of the steps as in the job.
    fn job_of(&self, drawn: &Drawn) -> Result<Job, TuneError> {
        let (file, mut job) = file_and_job(self.tuning, self.job, drawn)?;
        self.check_columns(&file, &job)?;
        if !drawn.iter().any(|(key, _)| key.starts_with("optimizer.schedule")) {
            let own = &self.job.optimizer.schedule;
            job.optimizer.schedule = own.scaled(self.steps_max(&job), self.steps_max(self.job));
        }
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
        let steps_max = self.steps_max(&job);
        let validation_samples = self.dataset.samples(Part::Validation);
        let target = self.race.as_ref().map(|race| race.target);
        let timing = self.tuning.objective.is_time();
        let timing = timing.then(|| Timing::new(target, &job, steps_max, validation_samples));
        let mut trial =
            Trial { number, steps_max, job, path: self.path_of(number), validation_samples, timing };
        if let Some(race) = &self.race {
            trial.set_steps_max(race.share_of(steps_max));
        }
        Ok(trial)
    }

    /// The steps that a trial takes for the most samples: those of the job's training, or in proportion to its epochs.
    fn steps_max(&self, trial: &Job) -> u64 {
        let epoch = self.dataset.samples(Part::Train);
        let [samples, epochs, own] =
            [self.job.train.samples(epoch), trial.train.epochs.get(), self.job.train.epochs.get()]
                .map(u128::from);
        let samples = u64::try_from(samples * epochs / own).unwrap_or(u64::MAX);
        steps_for(samples, epoch, trial.train.batch_size.get())
    }

    /// The result: all trials, the best first, and the job of the chosen one.
    fn result(&self, mut trials: Vec<TrialResult>) -> Result<Tuned, TuneError> {
        let metric = self.metric();
        trials.sort_by(|one, other| self.better_first(one, other));
        let chosen = self.race.as_ref().and_then(|_| own_unless_slower(&trials)).or(trials.first());
        let Some((chosen, Evaluation { step, value })) =
            chosen.and_then(|chosen| Some((chosen, chosen.best?)))
        else {
            return Err(TuneError::NoResult(metric));
        };
        let part = TrainingPart::of(self.dataset);
        let validation = self.job.train.validation.to_string();
        let (mut job, mut steps) = (self.job_of(&chosen.settings)?, step);
        let mut found =
            format!("Its {} on the validation set (\"{validation}\") was {value:.5}", metric.name());
        if let (Some(race), Some(time)) = (&self.race, &chosen.time) {
            job.optimizer.schedule = job.optimizer.schedule.scaled(chosen.steps, self.steps_max(&job));
            steps = time.steps.unwrap_or(step);
            found = race.found(time, &validation);
        }
        let header = format!(
            "# Found by rankine tune: trial {} of {}. {found}\n\
             # after {steps} steps on {} samples; train.max_steps is in proportion for all {}.\n",
            chosen.trial,
            trials.len(),
            part.searched,
            part.all
        );
        let target_auc = self.race.as_ref().map(|race| race.target.get());
        let job = header + &refit(&job, steps, part).to_toml();
        Ok(Tuned { metric, target_auc, validation, job, chosen: chosen.trial, trials })
    }
}

impl TrialResult {
    /// The result before the first round.
    fn begun(trial: u64, settings: Drawn) -> Self {
        Self { trial, settings, steps: 0, best: None, time: None, diverged: false }
    }

    /// The result after a further round.
    fn after(self, standing: &Standing, metric: StoppingMetric, race: Option<&Race>) -> Self {
        let Standing { steps, curve, diverged } = standing;
        let (best, time) = (curve.best(metric), race.and_then(|race| race.time_of(curve)));
        Self { steps: *steps, best, time, diverged: *diverged, ..self }
    }

    /// Whether the trial has no further round: it diverged, or reached the target.
    fn is_final(&self) -> bool {
        self.diverged || self.time.is_some_and(|time| time.basis == Basis::Measured)
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
