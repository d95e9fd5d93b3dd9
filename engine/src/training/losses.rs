//! The losses of steps, which may be known later than the steps are begun.

use std::collections::VecDeque;

use super::TrainError;
use crate::checkpoint::LossState;

/// The mean loss of steps since the last report, as far as losses are known.
#[derive(Debug, Clone, Default)]
pub(super) struct Losses {
    /// Of the steps whose loss is not known yet: their samples.
    ahead: VecDeque<usize>,
    /// Steps whose loss is known.
    steps: u64,
    sum: f64,
    samples: usize,
    /// The first loss that is no number, and its step.
    wrong: Option<(u64, f64)>,
}

impl Losses {
    /// After so many steps, with what was known since the last report.
    pub(super) fn resumed(steps: u64, LossState { sum, samples }: LossState) -> Self {
        Self { steps, sum, samples: samples as usize, ..Self::default() }
    }

    /// What is known since the last report.
    pub(super) fn state(&self) -> LossState {
        LossState { sum: self.sum, samples: self.samples as u64 }
    }

    /// A step over so many samples was begun.
    pub(super) fn began(&mut self, samples: usize) {
        self.ahead.push_back(samples);
    }

    /// The loss of the first step whose loss was not known.
    pub(super) fn known(&mut self, loss: f64) {
        let samples = self.ahead.pop_front().expect("a loss comes after its step");
        self.steps += 1;
        self.sum += loss * samples as f64;
        self.samples += samples;
        if !loss.is_finite() && self.wrong.is_none() {
            self.wrong = Some((self.steps, loss));
        }
    }

    /// Whether no loss is known since the last report.
    pub(super) fn is_empty(&self) -> bool {
        self.samples == 0
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum / self.samples as f64
    }

    /// After a report.
    pub(super) fn begin_anew(&mut self) {
        (self.sum, self.samples) = (0.0, 0);
    }

    /// # Errors
    /// [`TrainError::Diverged`].
    pub(super) fn check(&self) -> Result<(), TrainError> {
        self.wrong.map_or(Ok(()), |(step, loss)| Err(TrainError::Diverged { step, loss }))
    }
}
