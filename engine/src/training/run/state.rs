//! The state of a run between two steps.

use std::time::Duration;

use rankine_backend::{CopiedBytes, ReportDetails};
use rankine_checkpoint::{BestState, InitialState, ReachedTarget, TrainState};
use rankine_model::evaluation::{EvalSummary, SavedScores};
use rankine_reader::stream::Position;

use super::early_stopping::EarlyStopping;
use super::losses::Losses;
use super::start_clock::StartClock;
use crate::training::event::StepTimes;
use crate::training::ids::IdCounts;
use crate::training::summary::EndReason;

/// What changes with each step of a run, the model apart.
pub(super) struct RunState {
    /// Steps completed when this attempt started: 0, or those of the checkpoint that it resumed from.
    pub(super) first_step: u64,
    /// Samples that were trained on by then.
    first_samples: u64,
    /// How long it took until the first step of this attempt was done.
    pub(super) start: StartClock,
    /// Since step 0.
    pub(super) total: Tally,
    /// Since the last report, or since a resume.
    pub(super) since_report: Tally,
    pub(super) losses: Losses,
    /// The last mean loss that is known.
    pub(super) last_loss: f64,
    /// Ids outside their tables, since step 0.
    pub(super) ids_out_of_range: IdCounts,
    /// Behind the last sample that was trained on.
    pub(super) position: Position,
    /// The evaluation after the last step, if there was one: see [`super::TrainingLoop::watched_part`].
    pub(super) last_eval: Option<EvalSummary>,
    pub(super) early_stopping: Option<EarlyStopping>,
    /// The trained model that training started from.
    pub(super) init: Option<InitialState>,
    /// Its scores; `None` also if a checkpoint recorded the evaluation, since checkpoints do not have them.
    pub(super) last_scores: Option<SavedScores>,
    /// Whether the device has averaged weights instead of those of the last step, or of the best one.
    pub(super) is_averaged: bool,
    /// Whether the device has the state of the last step: not within a step, and not once another model was restored.
    pub(super) is_complete: bool,
    /// Whether the trained model is saved.
    pub(super) is_saved: bool,
    /// Whether all processes know of the error that ends the training, and can save a checkpoint together.
    pub(super) all_fail: bool,
    /// The details of the last report of this attempt.
    pub(super) last_details: Option<ReportDetails>,
    /// Bytes that this attempt has read to train.
    pub(super) bytes_read: u64,
    pub(super) bytes_copied: CopiedBytes,
    /// The evaluation beside the training that reached the target.
    pub(super) reached: Option<ReachedTarget>,
    /// Why training ends, once it is known.
    pub(super) end: Option<EndReason>,
}

/// Completed steps and their time, evaluations excluded.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) samples: u64,
    pub(super) time: Duration,
    /// Where it went, as far as that is known: after a resume, only the time waiting for the reader. The rest of the
    /// time, training waited for checkpoints.
    pub(super) times: StepTimes,
}

impl RunState {
    /// The state that a checkpoint recorded, or the initial one.
    pub(super) fn resumed(
        from: TrainState,
        losses: Losses,
        early_stopping: Option<EarlyStopping>,
        start: StartClock,
    ) -> Self {
        let time = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Self {
            first_step: from.step,
            first_samples: from.samples,
            start,
            total: Tally {
                steps: from.step,
                samples: from.samples,
                time: time(from.seconds),
                times: StepTimes { reading: time(from.waited_seconds), ..StepTimes::default() },
            },
            since_report: Tally::default(),
            losses,
            last_loss: from.loss,
            ids_out_of_range: from.ids_out_of_range,
            position: from.position,
            last_eval: from.eval,
            early_stopping,
            init: from.init,
            last_scores: None,
            is_averaged: false,
            is_complete: true,
            is_saved: false,
            all_fail: false,
            last_details: None,
            bytes_read: 0,
            bytes_copied: CopiedBytes::default(),
            reached: from.reached,
            end: None,
        }
    }

    /// Steps completed.
    pub(super) fn step(&self) -> u64 {
        self.total.steps
    }

    /// Samples that this attempt trained on.
    pub(super) fn attempt_samples(&self) -> u64 {
        self.total.samples - self.first_samples
    }

    /// The best evaluation so far, if they are compared.
    pub(super) fn best(&self) -> Option<BestState> {
        self.early_stopping.as_ref().and_then(EarlyStopping::best)
    }

    /// Adds a step.
    pub(super) fn add_step(&mut self, samples: u64, times: &StepTimes) {
        for tally in [&mut self.total, &mut self.since_report] {
            tally.add(samples, times);
        }
    }

    /// Adds time that training waited between two steps.
    pub(super) fn add_time(&mut self, time: Duration) {
        self.total.time += time;
        self.since_report.time += time;
    }

    /// The same for a checkpoint.
    pub(super) fn to_checkpoint(&self) -> TrainState {
        let total = &self.total;
        TrainState {
            step: total.steps,
            position: self.position,
            samples: total.samples,
            seconds: total.time.as_secs_f64(),
            waited_seconds: total.times.reading.as_secs_f64(),
            losses: self.losses.state(),
            loss: self.last_loss,
            guard: self.losses.guard(),
            ids_out_of_range: self.ids_out_of_range.clone(),
            eval: self.last_eval.clone(),
            reached: self.reached,
            best: self.best(),
            init: self.init.clone(),
        }
    }
}

impl Tally {
    fn add(&mut self, samples: u64, times: &StepTimes) {
        self.steps += 1;
        self.samples += samples;
        self.time += times.total();
        self.times.add(times);
    }

    pub(super) fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.time.as_secs_f64()
    }
}
