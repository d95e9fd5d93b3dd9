//! The time that a job takes until an evaluation reaches an AUC, by one training run.

use std::path::Path;
use std::time::Instant;

use rankine_base::Stop;
use rankine_job::{AucTarget, Epochs, Job};
use rankine_launch::ProcessGroup;
use rankine_reader::Part;
use serde::Serialize;

use crate::training::data::open_together;
use crate::training::error::{BenchError, TrainError};
use crate::training::event::{Event, Observer};
use crate::training::run::{TrainOptions, train};
use crate::training::summary::Summary;

/// The share of the way from 0.5 to the best possible AUC of generated data that is the default target.
const TARGET_SHARE: f64 = 0.9;
/// Epochs between two evaluations, by MLPerf's rules for its ranking models.
const EPOCHS_PER_EVALUATION: f64 = 0.05;

/// Options for measuring the time to an AUC.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimeToAucOptions<'a> {
    /// The AUC; by default `eval.target_auc` of the job, and otherwise nine tenths of the way from 0.5 to the best
    /// possible AUC of generated data.
    pub target_auc: Option<AucTarget>,
    /// The run folder; by default a fresh one below `runs`.
    pub run_dir: Option<&'a Path>,
    /// A request to stop.
    pub stop: Option<&'a Stop>,
}

/// The time that a job took until an evaluation reached an AUC.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimeToAuc {
    /// The job's name.
    pub name: String,
    /// The device.
    pub device: String,
    /// The precision of matrix products; absent on a CPU that computes in fp32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// Samples per step.
    pub batch_size: u64,
    /// The AUC to reach.
    pub target_auc: f64,
    /// The best possible AUC of generated data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auc_achievable: Option<f64>,
    /// Whether an evaluation reached it.
    pub reached: bool,
    /// Steps until that evaluation, or all steps.
    pub steps: u64,
    /// Samples trained on until then.
    pub samples: u64,
    /// The same in epochs.
    pub epochs: f64,
    /// Seconds from opening the training part, before its first sample is read, until the AUC of the evaluation that
    /// reaches the target is known: steps, evaluations, checkpoints. If none does, of all steps and evaluations.
    pub seconds: f64,
    /// Seconds of these that training waited for evaluations.
    pub eval_seconds: f64,
    /// Seconds of these for the first step: waiting for its batch, on GPUs also capturing a graph of all steps.
    pub first_step_seconds: f64,
    /// Samples trained on per second, without evaluations.
    pub samples_per_second: f64,
    /// Joules of the GPUs from the first step to the last one, with the evaluations in between; absent on the CPU, and
    /// without NVML. With `eval.beside_training`, steps follow until the AUC is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Watts of the GPUs, the mean over that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// The evaluations.
    pub evaluations: Vec<TimedEvaluation>,
    /// The run folder; absent in all processes but the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_dir: Option<String>,
}

/// An evaluation, and when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimedEvaluation {
    /// Steps completed.
    pub step: u64,
    /// Epochs completed.
    pub epochs: f64,
    /// The AUC; absent if the labels are all equal.
    pub auc: Option<f64>,
    /// Seconds until the AUC was known, as in [`TimeToAuc::seconds`].
    pub seconds: f64,
    /// Seconds of these that training waited for this evaluation.
    pub eval_seconds: f64,
}

/// Trains a job until an evaluation reaches an AUC. It is evaluated every 5% of an epoch, unless the job says when.
/// Several processes may train together: then all of them call this. Generates the job's dataset if it is missing and
/// the job says how.
///
/// # Errors
/// As [`train`]; [`TrainError::Bench`] if there is nothing to evaluate on, or no target.
pub fn bench_time_to_auc(
    job: &Job,
    options: TimeToAucOptions<'_>,
    processes: &ProcessGroup,
    observer: &mut dyn Observer,
) -> Result<TimeToAuc, TrainError> {
    let stop = options.stop.cloned().unwrap_or_default();
    let dataset = open_together(job, processes, &stop, None, observer)?;
    let best = dataset.auc_achievable();
    let target = options.target_auc.or(job.eval.target_auc).or_else(|| default_target(best?));
    let target = target.ok_or(BenchError::NoTarget)?;
    let part = if dataset.samples(Part::Validation) > 0 { Part::Validation } else { Part::Eval };
    if dataset.samples(part) == 0 {
        return Err(BenchError::NoEvaluationPart.into());
    }
    let train_samples = dataset.samples(Part::Train);
    drop(dataset);

    let mut watch = StopWatch { observer, part, began: None, device: String::new(), evaluations: Vec::new() };
    let (stop, run_dir) = (Some(&stop), options.run_dir);
    let run = TrainOptions { run_dir, processes: Some(processes), stop, ..TrainOptions::default() };
    let (summary, path) = train(&until(job, target), run, &mut watch)?;
    let StopWatch { device, evaluations, .. } = watch;
    let Summary { train: trained, power, start, .. } = summary;
    let (before, first_step_seconds) =
        start.map_or((0.0, 0.0), |start| (start.reader_seconds, start.first_step_seconds));
    let samples_at = |step| samples_at(step, train_samples, job.train.batch_size.get().into());
    let mut evaluations: Vec<_> = evaluations
        .into_iter()
        .map(|evaluation| TimedEvaluation {
            epochs: samples_at(evaluation.step) as f64 / train_samples as f64,
            seconds: evaluation.seconds + before,
            ..evaluation
        })
        .collect();
    let reached = evaluations.iter().position(|evaluation| evaluation.auc >= Some(target.get()));
    if let Some(reached) = reached {
        // What follows is the evaluation of the model that a run with `eval.beside_training` ends with.
        evaluations.truncate(reached + 1);
    }
    let last = evaluations.last().filter(|_| reached.is_some());
    let eval_seconds = evaluations.iter().map(|evaluation| evaluation.eval_seconds).sum::<f64>();
    let steps = last.map_or(trained.steps, |last| last.step);
    let samples = last.map_or(trained.samples, |last| samples_at(last.step));
    Ok(TimeToAuc {
        name: summary.name,
        device,
        precision: summary.device.precision,
        batch_size: job.train.batch_size.get().into(),
        target_auc: target.get(),
        auc_achievable: best.filter(|_| part == Part::Eval),
        reached: last.is_some(),
        steps,
        samples,
        epochs: samples as f64 / train_samples as f64,
        // The last evaluation of a training that does not reach the target comes after the model is saved.
        seconds: last.map_or(before + trained.seconds + eval_seconds, |last| last.seconds),
        eval_seconds,
        first_step_seconds,
        samples_per_second: trained.samples_per_second,
        joules: power.map(|power| power.joules_per_sample * trained.samples as f64),
        watts: power.map(|power| power.watts),
        evaluations,
        run_dir: path.map(|path| path.display().to_string()),
    })
}

/// The samples that a number of steps takes; the last batch of an epoch may be smaller.
fn samples_at(step: u64, epoch_samples: u64, batch_size: u64) -> u64 {
    let (epoch_samples, epoch_steps) = (epoch_samples.max(1), epoch_samples.max(1).div_ceil(batch_size));
    step / epoch_steps * epoch_samples + step % epoch_steps * batch_size
}

/// The share of what the data permit.
fn default_target(best: f64) -> Option<AucTarget> {
    AucTarget::new(0.5 + TARGET_SHARE * (best - 0.5))
}

/// The job, which ends at the target and nowhere else before its last step.
fn until(job: &Job, target: AucTarget) -> Job {
    let mut job = job.clone();
    if !job.eval.is_repeated() {
        job.eval.every = Epochs::new(EPOCHS_PER_EVALUATION);
    }
    job.eval.target_auc = Some(target);
    job.train.early_stopping = None;
    job.train.average = None;
    job
}

/// Notes when evaluations end, and passes all events on.
struct StopWatch<'a> {
    observer: &'a mut dyn Observer,
    /// The part that is evaluated during the training.
    part: Part,
    /// When the first step could begin.
    began: Option<Instant>,
    device: String,
    evaluations: Vec<TimedEvaluation>,
}

impl Observer for StopWatch<'_> {
    fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::Started(start) => {
                self.device.clone_from(&start.devices.device);
                self.began = Some(Instant::now());
            }
            Event::Evaluated { step, part, set: None, seconds: eval_seconds, heads, .. }
                if part == self.part =>
            {
                let auc = heads.first().and_then(|head| head.metrics?.auc);
                let seconds = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
                self.evaluations.push(TimedEvaluation { step, epochs: 0.0, auc, seconds, eval_seconds });
            }
            _ => {}
        }
        self.observer.observe(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_nine_tenths_of_what_the_data_permit() {
        assert_eq!(default_target(0.75).map(AucTarget::get), Some(0.725));
        assert_eq!(default_target(0.5), None);
    }

    #[test]
    fn the_last_batch_of_an_epoch_may_be_smaller() {
        // 10 samples in batches of 4: 4, 8, 10, 14, 18, 20.
        let samples: Vec<_> = (0..=6).map(|step| samples_at(step, 10, 4)).collect();
        assert_eq!(samples, [0, 4, 8, 10, 14, 18, 20]);
        assert_eq!(samples_at(3, 3, 100), 9);
    }
}
