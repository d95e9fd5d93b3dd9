//! The losses of steps, which may be known later than the steps are begun.

use std::collections::VecDeque;

use super::TrainError;
use super::guard::Guard;
use crate::checkpoint::{GuardState, LossState};
use crate::guard::StepOutcome;

/// The mean loss of steps since the last report, as far as losses are known, and what the guard has counted. Steps that
/// were skipped for what is no finite number have no part in the mean.
#[derive(Debug, Clone)]
pub(super) struct Losses {
    /// Of the steps whose loss is not known yet: their samples.
    ahead: VecDeque<usize>,
    /// Steps whose loss is known.
    steps: u64,
    /// Those of them since the last report.
    steps_since: u64,
    sum: f64,
    samples: usize,
    guard: Guard,
}

impl Losses {
    /// After so many steps, with what was known since the last report.
    pub(super) fn resumed(steps: u64, LossState { sum, samples }: LossState, guard: Guard) -> Self {
        let samples = samples as usize;
        Self { ahead: VecDeque::new(), steps, steps_since: u64::from(samples > 0), sum, samples, guard }
    }

    /// What is known since the last report.
    pub(super) fn state(&self) -> LossState {
        LossState { sum: self.sum, samples: self.samples as u64 }
    }

    /// A step over so many samples was begun.
    pub(super) fn began(&mut self, samples: usize) {
        self.ahead.push_back(samples);
    }

    /// What the first step came to of which it was not known.
    pub(super) fn known(&mut self, outcome: &StepOutcome) {
        let samples = self.ahead.pop_front().expect("a loss comes after its step");
        self.steps += 1;
        self.steps_since += 1;
        self.guard.known(self.steps, outcome);
        if outcome.non_finite().is_none() {
            self.sum += outcome.loss * samples as f64;
            self.samples += samples;
        }
    }

    /// Whether nothing is known of any step since the last report.
    pub(super) fn are_unknown(&self) -> bool {
        self.steps_since == 0
    }

    /// NaN where all steps were skipped.
    pub(super) fn mean(&self) -> f64 {
        self.sum / self.samples as f64
    }

    /// The same, or what it was before.
    pub(super) fn last_mean(&self, before: f64) -> f64 {
        if self.samples == 0 { before } else { self.mean() }
    }

    /// After a report.
    pub(super) fn begin_anew(&mut self) {
        (self.sum, self.samples, self.steps_since) = (0.0, 0, 0);
    }

    /// What the guard has counted.
    pub(super) fn guard(&self) -> GuardState {
        self.guard.state()
    }

    /// # Errors
    /// [`TrainError::Diverged`].
    pub(super) fn check(&self) -> Result<(), TrainError> {
        self.guard.check()
    }

    /// At the end of a training, once the losses of all steps are known.
    ///
    /// # Errors
    /// [`TrainError::Diverged`] where no step was written.
    pub(super) fn check_end(&self) -> Result<(), TrainError> {
        self.check()?;
        self.guard.check_any_written(self.steps)
    }
}
