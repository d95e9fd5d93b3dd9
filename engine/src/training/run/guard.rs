//! The job's policy for steps that were skipped because a value was not finite: they are counted, and one of them, or
//! too many in a row, end the training.

use rankine_checkpoint::GuardState;
use rankine_job as job;
use rankine_model::guard::{NonFinite, StepOutcome};

use crate::training::error::TrainError;

/// The first skipped steps are logged one by one; later ones each time their number has doubled.
const LOGGED_EACH: u64 = 10;

/// Counts skipped steps, and decides when there are too many of them.
#[derive(Debug, Clone)]
pub(super) struct NonFiniteGuard {
    policy: job::Guard,
    /// Whether this process logs for all.
    logs: bool,
    counted: GuardState,
    /// The last skipped step, and the values that were not finite.
    last: Option<(u64, NonFinite)>,
    /// Whether that exceeded the limit.
    over: bool,
}

impl NonFiniteGuard {
    /// Continues with the counts of a checkpoint.
    pub(super) fn resumed(policy: &job::Guard, counted: GuardState, logs: bool) -> Self {
        Self { policy: policy.clone(), logs, counted, last: None, over: false }
    }

    /// The counts so far, for a checkpoint.
    pub(super) fn state(&self) -> GuardState {
        self.counted
    }

    /// Records the outcome of a step.
    pub(super) fn record(&mut self, step: u64, outcome: &StepOutcome) {
        let Some(found) = outcome.non_finite() else {
            // A step skipped because of the loss scale does not count, and says nothing about the steps around it.
            if outcome.skipped.is_none() {
                self.counted.in_a_row = 0;
            }
            return;
        };
        if self.over {
            return;
        }
        self.counted.non_finite_steps += 1;
        self.counted.in_a_row += 1;
        let GuardState { non_finite_steps, in_a_row } = self.counted;
        let skips = self.policy.non_finite == job::NonFinite::Skip;
        self.last = Some((step, found.clone()));
        self.over = !skips || in_a_row > self.policy.skipped_in_a_row_max.get();
        if !self.over && self.logs && (non_finite_steps <= LOGGED_EACH || non_finite_steps.is_power_of_two())
        {
            tracing::warn!(
                "skipped step {step}: non-finite values in {found}; {non_finite_steps} skipped so far, {in_a_row} in \
                 a row"
            );
        }
    }

    /// # Errors
    /// [`TrainError::Diverged`].
    pub(super) fn check(&self) -> Result<(), TrainError> {
        if self.over { Err(self.diverged()) } else { Ok(()) }
    }

    /// At the end of a training of this many steps.
    ///
    /// # Errors
    /// [`TrainError::Diverged`] if all of them were skipped.
    pub(super) fn check_any_written(&self, steps: u64) -> Result<(), TrainError> {
        let none = self.last.is_some() && self.counted.non_finite_steps == steps;
        if none { Err(self.diverged()) } else { Ok(()) }
    }

    fn diverged(&self) -> TrainError {
        let (step, found) = self.last.clone().expect("a step was skipped");
        let skipped_in_a_row = match self.policy.non_finite {
            job::NonFinite::Stop => 0,
            job::NonFinite::Skip => self.counted.in_a_row - 1,
        };
        TrainError::Diverged { step, found, skipped_in_a_row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankine_job::Count;
    use rankine_model::guard::SkipReason;

    fn guard(non_finite: job::NonFinite, most: u64) -> NonFiniteGuard {
        let skipped_in_a_row_max = Count::new(most).expect("in range");
        let policy = job::Guard { non_finite, skipped_in_a_row_max, ..job::Guard::default() };
        NonFiniteGuard::resumed(&policy, GuardState::default(), false)
    }

    fn step(skipped: Option<SkipReason>) -> StepOutcome {
        StepOutcome { loss: 1.0, skipped }
    }

    fn wrong() -> StepOutcome {
        step(Some(SkipReason::NonFinite(NonFinite { dense_gradients: true, ..NonFinite::default() })))
    }

    #[test]
    fn the_first_wrong_step_stops() {
        let mut guard = guard(job::NonFinite::Stop, 5);
        guard.record(1, &step(None));
        assert!(guard.check().is_ok());
        guard.record(2, &wrong());
        guard.record(3, &wrong());
        let error = guard.check().unwrap_err();
        assert!(matches!(error, TrainError::Diverged { step: 2, skipped_in_a_row: 0, .. }), "{error}");
    }

    #[test]
    fn steps_in_a_row_are_limited() {
        let mut guard = guard(job::NonFinite::Skip, 2);
        // Steps skipped because of the loss scale neither count nor reset the count.
        let outcomes = [wrong(), wrong(), step(None), wrong(), step(Some(SkipReason::LossScale)), wrong()];
        for (before, outcome) in outcomes.iter().enumerate() {
            guard.record(before as u64 + 1, outcome);
            assert!(guard.check().is_ok(), "after step {}", before + 1);
        }
        assert_eq!(guard.state(), GuardState { non_finite_steps: 4, in_a_row: 2 });
        // Resuming does not reset it either.
        let mut guard = NonFiniteGuard::resumed(&guard.policy, guard.state(), false);
        guard.record(7, &wrong());
        let error = guard.check().unwrap_err();
        assert!(matches!(error, TrainError::Diverged { step: 7, skipped_in_a_row: 2, .. }), "{error}");
    }
}
