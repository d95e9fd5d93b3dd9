//! Short trainings that compare settings, one after another: each keeps the best value found so far of the others.

use std::path::Path;

use rankine_base::Stop;
use rankine_job::Job;

use super::choices::{Choices, Topic};
use super::{Starter, StarterJob};
use crate::tuning::{Comparison, Evaluation, TuneError, compare};

/// How trials run.
#[derive(Clone, Copy)]
pub struct TrialOptions<'a> {
    /// An empty folder for their run folders.
    pub dir: &'a Path,
    /// A request to stop.
    pub stop: &'a Stop,
    /// Receives each trial.
    pub observe: &'a dyn Fn(&StarterTrial),
}

/// A trial.
#[derive(Debug, Clone, PartialEq)]
pub struct StarterTrial {
    /// What it tries, in words.
    pub value: String,
    /// Its best AUC on the held-out samples; `None` if it diverged, or if the labels there are all equal.
    pub auc: Option<f64>,
}

/// Epochs of a trial, of which the best is found.
const EPOCHS: u64 = 3;
/// The most samples that a trial trains on.
const SAMPLES_MAX: u64 = 200_000;
/// Epochs of the trial that finds their number. Larger datasets than `SAMPLES_MAX` keep the one that they start with.
const EPOCHS_MAX: u64 = 6;
/// Fewer samples say nothing about settings.
const SAMPLES_MIN: u64 = 1000;
/// Larger tables take more time to make than to train on so few samples.
const TABLE_BYTES_MAX: u64 = 256 << 20;
/// The least gain in AUC for which a setting is preferred to the usual one.
const GAIN_MIN: f64 = 0.0005;

/// Compares settings, starting from `choices`. Returns the job with the best ones, or with `choices` if trials would
/// say nothing or take too long.
///
/// # Errors
/// As [`compare`].
pub(super) fn run(
    starter: &Starter<'_>,
    mut choices: Choices,
    is_kind_fixed: bool,
    options: TrialOptions<'_>,
) -> Result<StarterJob, TuneError> {
    let bytes = starter.table_bytes(&starter.text(&choices));
    if starter.train_samples < SAMPLES_MIN || bytes.is_none_or(|bytes| bytes > TABLE_BYTES_MAX) {
        let why = if starter.train_samples < SAMPLES_MIN { "too few samples" } else { "tables too large" };
        choices.add_note(Topic::Kind, format!("There were no trials: {why} for short ones."));
        return Ok(StarterJob { text: starter.text(&choices), auc: None });
    }
    let mut best = None;
    let topics = [
        Topic::Kind,
        Topic::Optimizer,
        Topic::Rate,
        Topic::Decay,
        Topic::Dim,
        Topic::Epochs,
        Topic::Schedule,
    ];
    for topic in topics {
        if topic == Topic::Epochs {
            set_epochs(starter, &mut choices, &mut best, options)?;
            continue;
        }
        let others = alternatives(starter, topic, &choices, is_kind_fixed);
        let own = best.is_none().then(|| choices.clone());
        let tried: Vec<_> = own.into_iter().chain(others).collect();
        let found = evaluate(starter, topic, &tried, options)?;
        choose(&mut choices, &mut best, topic, tried.into_iter().zip(found));
    }
    Ok(StarterJob { text: starter.text(&choices), auc: best.map(|best| best.value) })
}

/// Other values of a setting.
fn alternatives(starter: &Starter<'_>, topic: Topic, own: &Choices, is_kind_fixed: bool) -> Vec<Choices> {
    let with = |change: &dyn Fn(&mut Choices)| {
        let mut choices = own.clone();
        change(&mut choices);
        choices
    };
    match topic {
        Topic::Kind if is_kind_fixed => Vec::new(),
        Topic::Kind => {
            let pairs: &[&str] = if starter.has_pairs() { &["deepfm"] } else { &[] };
            let kinds = ["wide-deep", "dcnv2"].iter().chain(pairs).filter(|kind| **kind != own.kind);
            kinds.map(|kind| starter.by_size(Some(kind))).collect()
        }
        Topic::Optimizer => vec![with(&|choices| (choices.optimizer, choices.rate) = ("adam", 0.001))],
        Topic::Rate => {
            let round = |rate: f64| format!("{rate:.1e}").parse().unwrap_or(rate);
            [own.rate * 0.4, own.rate * 2.5].map(|rate| with(&|choices| choices.rate = round(rate))).into()
        }
        Topic::Decay => [1e-4, 1e-3, 1e-2].map(|decay| with(&|choices| choices.decay = decay)).into(),
        Topic::Dim => {
            let dims = [own.dim / 2, own.dim * 2];
            dims.into_iter().filter(|&dim| dim >= 2).map(|dim| with(&|choices| choices.dim = dim)).collect()
        }
        Topic::Schedule => vec![with(&|choices| choices.cosine = true)],
        Topic::Epochs => Vec::new(),
    }
}

/// Trains the choices side by side. Returns the best evaluation of each.
fn evaluate(
    starter: &Starter<'_>,
    topic: Topic,
    tried: &[Choices],
    options: TrialOptions<'_>,
) -> Result<Vec<Option<Evaluation>>, TuneError> {
    let job = |choices: &Choices| Job::from_toml("starter", &starter.text(choices), &[] as &[&str]);
    let jobs = tried.iter().map(job).collect::<Result<Vec<_>, _>>()?;
    let of_epochs = |epochs: u64| starter.train_samples.saturating_mul(epochs);
    let samples = match topic {
        Topic::Epochs => of_epochs(EPOCHS_MAX),
        // A schedule ends with the training, whose length is known by then.
        Topic::Schedule if !is_large(starter) => of_epochs(tried.first().map_or(1, |choices| choices.epochs)),
        _ => of_epochs(EPOCHS).min(SAMPLES_MAX),
    };
    let dir = options.dir.join(format!("{topic:?}").to_lowercase());
    let comparison = Comparison { samples, dir: &dir, stop: options.stop };
    let found = compare(&jobs, comparison)?;
    for (choices, found) in tried.iter().zip(&found) {
        let value = choices.value(topic);
        (options.observe)(&StarterTrial { value, auc: found.map(|found| found.value) });
    }
    Ok(found)
}

/// Keeps the best choices of those that were tried, and notes what was found.
fn choose(
    choices: &mut Choices,
    best: &mut Option<Evaluation>,
    topic: Topic,
    tried: impl Iterator<Item = (Choices, Option<Evaluation>)>,
) {
    let said = |choices: &Choices, found: Option<Evaluation>| {
        let auc = found.map_or_else(|| "no AUC".into(), |found| format!("{:.4}", found.value));
        format!("{} {auc}", choices.value(topic))
    };
    let mut words = Vec::new();
    if best.is_some() {
        words.push(said(choices, *best));
    }
    for (other, found) in tried {
        words.push(said(&other, found));
        let gains = |found: &Evaluation| best.is_none_or(|best| found.value > best.value + GAIN_MIN);
        if let Some(found) = found.filter(gains) {
            *choices = other;
            *best = Some(found);
        }
    }
    if words.len() > 1 {
        choices.add_note(topic, format!("AUC: {}", words.join(", ")));
    }
}

/// Whether a trial sees only a part of the samples.
fn is_large(starter: &Starter<'_>) -> bool {
    starter.train_samples > SAMPLES_MAX
}

/// Sets the number of epochs by the step of the best evaluation of a longer trial, unless the dataset is large.
fn set_epochs(
    starter: &Starter<'_>,
    choices: &mut Choices,
    best: &mut Option<Evaluation>,
    options: TrialOptions<'_>,
) -> Result<(), TuneError> {
    if is_large(starter) {
        return Ok(());
    }
    let longer = Choices { epochs: EPOCHS_MAX, ..choices.clone() };
    let Some(&Some(found)) = evaluate(starter, Topic::Epochs, &[longer], options)?.first() else {
        return Ok(());
    };
    // A tenth of the samples was held out.
    let held_in = starter.train_samples - starter.train_samples / 10;
    let epochs = found.step as f64 / held_in.div_ceil(starter.batch_size()) as f64;
    choices.epochs = (epochs.round() as u64).clamp(1, EPOCHS_MAX);
    let Evaluation { value, .. } = found;
    let note = format!("The AUC was highest after {epochs:.1} of {EPOCHS_MAX} epochs: {value:.4}");
    choices.add_note(Topic::Epochs, note);
    *best = Some(found);
    Ok(())
}
