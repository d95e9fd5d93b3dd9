//! The losses of steps, which may be known later than the steps are started.

use std::collections::VecDeque;

use rankine_checkpoint::{GuardState, LossState};
use rankine_model::guard::{SkippedSteps, StepOutcome};

use super::guard::NonFiniteGuard;
use crate::training::error::TrainError;

/// The mean loss of steps since the last report, as far as losses are known, and the guard's counts. Steps that were
/// skipped because a value was not finite do not contribute to the mean.
#[derive(Debug, Clone)]
pub(super) struct Losses {
    /// Sample counts of the steps whose loss is not known yet.
    ahead: VecDeque<usize>,
    /// Steps whose loss is known.
    steps: u64,
    /// Steps since the last report whose loss is known.
    steps_since: u64,
    sum: f64,
    samples: usize,
    guard: NonFiniteGuard,
    /// Since this process started.
    skipped: SkippedSteps,
}

impl Losses {
    /// After this many steps, with the losses since the last report.
    pub(super) fn resumed(steps: u64, LossState { sum, samples }: LossState, guard: NonFiniteGuard) -> Self {
        let samples = samples as usize;
        Self {
            ahead: VecDeque::new(),
            steps,
            steps_since: u64::from(samples > 0),
            sum,
            samples,
            guard,
            skipped: SkippedSteps::default(),
        }
    }

    /// The losses since the last report.
    pub(super) fn state(&self) -> LossState {
        LossState { sum: self.sum, samples: self.samples as u64 }
    }

    /// Records that a step over this many samples was started.
    pub(super) fn start_step(&mut self, samples: usize) {
        self.ahead.push_back(samples);
    }

    /// Records the outcome of the first step that had none.
    pub(super) fn record(&mut self, outcome: &StepOutcome) {
        let samples = self.ahead.pop_front().expect("a loss comes after its step");
        self.steps += 1;
        self.steps_since += 1;
        self.guard.record(self.steps, outcome);
        outcome.skipped.iter().for_each(|reason| self.skipped.add(reason));
        if outcome.non_finite().is_none() {
            self.sum += outcome.loss * samples as f64;
            self.samples += samples;
        }
    }

    /// Whether no loss since the last report is known.
    pub(super) fn are_unknown(&self) -> bool {
        self.steps_since == 0
    }

    /// NaN if all steps were skipped.
    pub(super) fn mean(&self) -> f64 {
        self.sum / self.samples as f64
    }

    /// The same, or the mean before it.
    pub(super) fn last_mean(&self, before: f64) -> f64 {
        if self.samples == 0 { before } else { self.mean() }
    }

    /// After a report.
    pub(super) fn reset(&mut self) {
        (self.sum, self.samples, self.steps_since) = (0.0, 0, 0);
    }

    /// What the guard has counted.
    pub(super) fn guard(&self) -> GuardState {
        self.guard.state()
    }

    /// The skipped steps, since this process started.
    pub(super) fn skipped(&self) -> SkippedSteps {
        self.skipped
    }

    /// # Errors
    /// [`TrainError::Diverged`].
    pub(super) fn check(&self) -> Result<(), TrainError> {
        self.guard.check()
    }

    /// At the end of a training, once the losses of all steps are known.
    ///
    /// # Errors
    /// [`TrainError::Diverged`] if all steps were skipped.
    pub(super) fn check_end(&self) -> Result<(), TrainError> {
        self.check()?;
        self.guard.check_any_written(self.steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankine_job as job;
    use rankine_model::guard::{NonFinite, SkipReason};

    fn losses(steps: u64, since_report: LossState) -> Losses {
        let policy = job::Guard { non_finite: job::NonFinite::Skip, ..job::Guard::default() };
        Losses::resumed(steps, since_report, NonFiniteGuard::resumed(&policy, GuardState::default(), false))
    }

    fn step(losses: &mut Losses, samples: usize, loss: f64, skipped: Option<SkipReason>) {
        losses.start_step(samples);
        losses.record(&StepOutcome { loss, skipped });
    }

    fn not_finite() -> Option<SkipReason> {
        Some(SkipReason::NonFinite(NonFinite { loss: true, ..NonFinite::default() }))
    }

    /// All numbers here are sums of few powers of two, so that every operation is exact.
    #[test]
    fn each_sample_counts_once_whatever_its_batch() {
        let mut losses = losses(0, LossState::default());
        step(&mut losses, 6, 0.5, None);
        // The last batch of an epoch is a short one.
        step(&mut losses, 2, 2.5, None);
        assert_eq!(losses.mean(), (6.0 * 0.5 + 2.0 * 2.5) / 8.0);
        // The loss scale skips only the update: the loss counts.
        step(&mut losses, 8, 3.0, Some(SkipReason::LossScale));
        assert_eq!(losses.mean(), 2.0);
        assert_eq!(losses.state(), LossState { sum: 32.0, samples: 16 });
        assert_eq!(losses.last_mean(9.0), 2.0);
    }

    #[test]
    fn losses_are_known_in_the_order_of_their_steps() {
        let mut losses = losses(0, LossState::default());
        losses.start_step(1);
        losses.start_step(3);
        assert!(losses.are_unknown());
        losses.record(&StepOutcome { loss: 1.0, skipped: None });
        assert!(!losses.are_unknown());
        assert_eq!(losses.state(), LossState { sum: 1.0, samples: 1 });
        losses.record(&StepOutcome { loss: 5.0, skipped: None });
        assert_eq!(losses.state(), LossState { sum: 16.0, samples: 4 });
    }

    #[test]
    fn skipped_steps_have_no_part_in_the_mean() {
        let mut losses = losses(0, LossState::default());
        step(&mut losses, 4, f64::NAN, not_finite());
        assert!(!losses.are_unknown() && losses.mean().is_nan());
        assert_eq!(losses.last_mean(0.75), 0.75);
        step(&mut losses, 2, 1.5, None);
        assert_eq!((losses.mean(), losses.last_mean(0.75)), (1.5, 1.5));
        assert_eq!(losses.guard(), GuardState { non_finite_steps: 1, in_a_row: 0 });
        losses.check_end().expect("one step was written");
    }

    #[test]
    fn a_report_begins_anew_and_a_resume_does_not() {
        let mut before = losses(10, LossState::default());
        step(&mut before, 4, 1.0, None);
        let mut after = losses(11, before.state());
        assert!(!after.are_unknown());
        for losses in [&mut before, &mut after] {
            step(losses, 4, 2.0, None);
            assert_eq!(losses.mean(), 1.5);
            losses.reset();
            assert!(losses.are_unknown());
            assert_eq!(losses.state(), LossState::default());
            step(losses, 1, 7.0, None);
            assert_eq!(losses.mean(), 7.0);
        }
    }

    /// A training all of whose steps were skipped has learned nothing; one with a single good step has.
    #[test]
    fn only_a_training_without_any_written_step_fails_at_its_end() {
        for (steps_before, fails) in [(0, true), (1, false)] {
            let mut losses = losses(steps_before, LossState::default());
            step(&mut losses, 1, f64::NAN, not_finite());
            step(&mut losses, 1, f64::NAN, not_finite());
            assert_eq!(losses.check_end().is_err(), fails, "{steps_before} steps before");
        }
    }
}
