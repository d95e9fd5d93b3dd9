//! Short trainings that compare settings, one topic after another: each keeps the best values found so far of the
//! others. All train for about the same number of samples, with the whole schedule in that time, and are scored on one
//! validation set.

use std::ops::{Div, Mul, RangeInclusive};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rankine_base::Stop;
use rankine_job::Job;
use rankine_reader::Split;
use rankine_reader::buckets::BUCKETS_MAX;

use super::choices::{Choices, Notes, Topic};
use super::{Starter, StarterJob};
use crate::tuning::{Comparison, Evaluation, TuneError, compare, trials_at_once};

/// How trials run.
#[derive(Clone, Copy)]
pub struct TrialOptions<'a> {
    /// An empty folder for their run folders.
    pub dir: &'a Path,
    /// The time that they may take.
    pub budget: Duration,
    /// A request to stop, which ends the trials as the budget does.
    pub stop: &'a Stop,
    /// Receives each trial as it ends, from any thread.
    pub observe: &'a (dyn Fn(&StarterTrial) + Sync),
}

/// A trial that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct StarterTrial {
    /// What it tries, in words, such as `learning rate 0.008`.
    pub what: String,
    /// Its best AUC on the validation set; `None` if it diverged, or if the labels there are all equal.
    pub auc: Option<f64>,
}

/// Fewer samples say nothing about settings.
pub(super) const SAMPLES_MIN: u64 = 1000;
/// Larger tables take more time to make than to train on so few samples.
const TABLE_BYTES_MAX: u64 = 256 << 20;
/// About as many trials are to fit into the budget.
const TRIALS: f64 = 36.0;
/// The samples of the first training that measures how many a trial may have, and the share of the budget from which on
/// a training is long enough for that.
const MEASURED_SAMPLES: u64 = 20_000;
const MEASURED_SHARE: f64 = 0.01;
/// Trials hold out a fifth of fewer samples.
const VALIDATION_SMALL: u64 = 100_000;
/// The least gain for which a setting is preferred to the usual one: a share of what the AUC lacks to 1.
const GAIN_MIN: f64 = 0.004;

/// Compares settings, starting from `choices`. Returns the job with the best ones that were found in time, or with
/// `choices` if trials would say nothing or take too long.
///
/// # Errors
/// As [`compare`].
pub(super) fn run(
    starter: &Starter<'_>,
    choices: Choices,
    is_kind_fixed: bool,
    options: TrialOptions<'_>,
) -> Result<StarterJob, TuneError> {
    let bytes = starter.table_bytes(&starter.text(&choices));
    if starter.train_samples < SAMPLES_MIN || bytes.is_none_or(|bytes| bytes > TABLE_BYTES_MAX) {
        let why = if starter.train_samples < SAMPLES_MIN { "too few samples" } else { "tables too large" };
        let mut notes = Notes::default();
        notes.add(Topic::Kind, format!("There were no trials: {why} for short ones."));
        return Ok(StarterJob { text: starter.noted_text(&choices, &notes), auc: None, trials: 0 });
    }
    let deadline = Instant::now() + options.budget;
    let mut trials = Trials { starter, options, deadline, samples: MEASURED_SAMPLES, done: 0 };
    let choices = trials.measure(choices)?;
    let mut search = Search { choices, notes: Notes::default(), best: None, tried: Vec::new() };
    // Once all settings were compared, those that were compared first meet the best values of the others.
    loop {
        let before = search.choices.clone();
        for topic in Topic::ALL {
            if trials.are_over() {
                break;
            }
            if topic == Topic::Epochs && trials.see_a_part() {
                continue;
            }
            let others = alternatives(starter, topic, &search.choices, is_kind_fixed);
            search.choose(&mut trials, topic, others)?;
        }
        if trials.are_over() || search.choices == before {
            break;
        }
    }
    let Search { choices, notes, best, .. } = search;
    let text = starter.noted_text(&choices, &notes);
    Ok(StarterJob { text, auc: best.map(|best| best.value), trials: trials.done })
}

/// Other values of a setting.
fn alternatives(starter: &Starter<'_>, topic: Topic, own: &Choices, is_kind_fixed: bool) -> Vec<Choices> {
    let with = |change: &dyn Fn(&mut Choices)| {
        let mut choices = own.clone();
        change(&mut choices);
        choices
    };
    let round = |rate: f64| format!("{rate:.1e}").parse().unwrap_or(rate);
    match topic {
        Topic::Kind => {
            let without_buckets = (own.buckets > 0).then(|| with(&|choices| choices.buckets = 0));
            let kinds = starter.kinds().filter(|kind| !is_kind_fixed && *kind != own.kind);
            let of_kind = |kind: &str| {
                let Choices { dim, kind, .. } = starter.by_size(Some(kind));
                Choices { dim, kind, ..own.clone() }
            };
            without_buckets.into_iter().chain(kinds.map(of_kind)).collect()
        }
        Topic::Buckets => {
            let counts = near(own.buckets, 4, 8..=BUCKETS_MAX);
            counts.map(|buckets| with(&|choices| choices.buckets = buckets)).collect()
        }
        Topic::Decay => {
            let decays = if own.decay > 0.0 { [own.decay / 3.0, own.decay * 3.0] } else { [1e-3, 1e-2] };
            decays.map(|decay| with(&|choices| choices.decay = round(decay))).into()
        }
        Topic::Rate => [0.4, 2.5].map(|by| with(&|choices| choices.rate = round(own.rate * by))).into(),
        Topic::Epochs => {
            near(own.epochs, 2, 1..=50).map(|epochs| with(&|choices| choices.epochs = epochs)).collect()
        }
        Topic::Optimizer => {
            // Rates that suit the two differ by about this factor.
            let (other, rate) = match own.optimizer {
                "adam" => ("adagrad", own.rate * 15.0),
                _ => ("adam", own.rate / 15.0),
            };
            vec![with(&|choices| (choices.optimizer, choices.rate) = (other, round(rate)))]
        }
        Topic::Dim => near(own.dim, 2, 2..=256).map(|dim| with(&|choices| choices.dim = dim)).collect(),
        Topic::Width => {
            near(own.width, 2, 16..=2048).map(|width| with(&|choices| choices.width = width)).collect()
        }
        Topic::BatchSize => {
            let sizes = near(own.batch_size, 2, 16..=1 << 17);
            sizes.map(|size| with(&|choices| choices.batch_size = size)).collect()
        }
    }
}

/// A number divided and multiplied by another one, as far as the results are in a range: trials go no further.
fn near<T>(own: T, by: T, range: RangeInclusive<T>) -> impl Iterator<Item = T>
where
    T: Copy + Div<Output = T> + Mul<Output = T> + PartialOrd,
{
    [own / by, own * by].into_iter().filter(move |other| range.contains(other))
}

/// The best settings so far.
struct Search {
    choices: Choices,
    notes: Notes,
    /// Their evaluation.
    best: Option<Evaluation>,
    /// All settings that were tried, and what was found.
    tried: Vec<(Choices, Option<Evaluation>)>,
}

impl Search {
    /// Compares settings with those so far, keeps the best, and notes what was found.
    fn choose(
        &mut self,
        trials: &mut Trials<'_>,
        topic: Topic,
        others: Vec<Choices>,
    ) -> Result<(), TuneError> {
        let own = self.best.is_none().then(|| self.choices.clone());
        let is_new = |other: &Choices| !self.tried.iter().any(|(tried, _)| tried == other);
        let new: Vec<_> = own.into_iter().chain(others).filter(is_new).collect();
        let found = trials.run(topic, &new)?;
        let said = |choices: &Choices, found: Option<Evaluation>| {
            let auc = found.map_or_else(|| "no AUC".into(), |found| format!("{:.4}", found.value));
            let buckets = if topic == Topic::Kind && choices.buckets == 0 { " without buckets" } else { "" };
            format!("{}{buckets} {auc}", choices.value(topic))
        };
        let mut words = Vec::new();
        if self.best.is_some() {
            words.push(said(&self.choices, self.best));
        }
        for (other, found) in new.into_iter().zip(found) {
            // Trials that ran out of time say nothing.
            let Some(found) = found else { continue };
            words.push(said(&other, found));
            let gains = |found: &Evaluation| {
                self.best.is_none_or(|best| found.value > best.value + GAIN_MIN * (1.0 - best.value))
            };
            if let Some(found) = found.filter(gains) {
                self.choices = other.clone();
                self.best = Some(found);
            }
            self.tried.push((other, found));
        }
        if words.len() > 1 {
            self.notes.add(topic, format!("AUC: {}", words.join(", ")));
        }
        Ok(())
    }
}

/// What trains trials.
struct Trials<'a> {
    starter: &'a Starter<'a>,
    options: TrialOptions<'a>,
    deadline: Instant,
    /// Samples that a trial with the usual number of epochs trains on.
    samples: u64,
    /// Trials that ended.
    done: u64,
}

impl Trials<'_> {
    fn are_over(&self) -> bool {
        Instant::now() >= self.deadline || self.options.stop.asked().is_some()
    }

    /// Whether a trial sees only a part of the samples, once.
    fn see_a_part(&self) -> bool {
        self.samples < self.starter.searched_samples()
    }

    /// Measures how many samples a trial may have, and returns the choices with the number of epochs: a dataset that
    /// is too large to be seen several times in a trial is not seen more often afterwards.
    fn measure(&mut self, choices: Choices) -> Result<Choices, TuneError> {
        let searched = self.starter.searched_samples();
        let job = self.job(&choices)?;
        let TrialOptions { dir, stop, budget, .. } = self.options;
        let mut samples = MEASURED_SAMPLES.min(searched);
        // What does not grow with the samples is to count little.
        let per_second = loop {
            let began = Instant::now();
            let dir = dir.join(format!("measured-{samples}"));
            let options = Comparison { dir: &dir, stop, deadline: Some(self.deadline), observe: &|_, _| () };
            compare(&[(job.clone(), samples)], options)?;
            let seconds = began.elapsed().as_secs_f64();
            if samples == searched || seconds > MEASURED_SHARE * budget.as_secs_f64() {
                break samples as f64 / seconds;
            }
            samples = (4 * samples).min(searched);
        };
        let bytes = self.starter.table_bytes(&self.starter.text(&choices)).unwrap_or(0);
        let fit = per_second * trials_at_once(&job, bytes) as f64 * budget.as_secs_f64() / TRIALS;
        self.samples = (fit as u64).clamp(MEASURED_SAMPLES.min(searched), choices.epochs * searched);
        let epochs = (self.samples / searched).clamp(1, choices.epochs);
        Ok(Choices { epochs, ..choices })
    }

    /// The job of a trial. If there are few samples, it holds out more of them than the job does afterwards: a small
    /// validation set does not tell settings apart.
    fn job(&self, choices: &Choices) -> Result<Job, TuneError> {
        let mut job = Job::from_toml("starter", &self.starter.text(choices), &[] as &[&str])?;
        if self.starter.train_samples < VALIDATION_SMALL {
            job.train.validation = Split::Last { share: 0.2 };
        }
        Ok(job)
    }

    /// Trains choices side by side. Returns the best evaluation of each, if it has one; `None` if it did not end in
    /// time.
    fn run(
        &mut self,
        topic: Topic,
        choices: &[Choices],
    ) -> Result<Vec<Option<Option<Evaluation>>>, TuneError> {
        let searched = self.starter.searched_samples();
        let job = |choices: &Choices| {
            let samples = if self.see_a_part() { self.samples } else { choices.epochs * searched };
            Ok((self.job(choices)?, samples))
        };
        let jobs = choices.iter().map(job).collect::<Result<Vec<_>, TuneError>>()?;
        let ended = Mutex::new(vec![None; choices.len()]);
        let observe = |number: usize, found: Option<Evaluation>| {
            if found.is_none() && self.are_over() {
                return;
            }
            ended.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(found);
            let auc = found.map(|found| found.value);
            (self.options.observe)(&StarterTrial { what: choices[number].words(topic), auc });
        };
        let dir = self.options.dir.join(self.done.to_string());
        let (stop, deadline) = (self.options.stop, Some(self.deadline));
        compare(&jobs, Comparison { dir: &dir, stop, deadline, observe: &observe })?;
        let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.done += ended.iter().flatten().count() as u64;
        Ok(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::starter::tests::schema;
    use crate::starter::{Starter, StarterData};

    #[test]
    fn all_settings_that_trials_can_reach_make_valid_jobs() {
        let schema = schema(3, 4);
        let starter = Starter::new(&schema, StarterData::Folder(Path::new("data")), 20_000, 0);
        let start = Choices { buckets: 256, ..starter.by_size(None) };
        for topic in Topic::ALL {
            // As far as each of the others leads, again and again.
            for place in 0..4 {
                let mut choices = start.clone();
                for _ in 0..12 {
                    let others = alternatives(&starter, topic, &choices, false);
                    assert!(!others.contains(&choices), "{topic:?}: {choices:?}");
                    for other in &others {
                        let job = Job::from_toml("starter", &starter.text(other), &[] as &[&str]);
                        job.unwrap_or_else(|error| panic!("{topic:?}: {error}"));
                    }
                    let Some(next) = others.into_iter().nth(place) else { break };
                    choices = next;
                }
            }
        }
    }
}
