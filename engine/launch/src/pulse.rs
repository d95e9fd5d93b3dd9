//! What a process does, and whether it makes progress, as its watchdog or the one of process 0 knows it.

use std::time::Duration;

use rankine_topology::Process;

use super::activity::Activity;

/// What a process does, and for how long it has made no progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// Which process.
    pub process: Process,
    /// What it does.
    pub activity: Activity,
    /// The time since its last progress.
    pub still: Duration,
    /// The time since its last sign of life.
    pub silent: Duration,
    /// The time without progress after which the watchdog ends the process, if its work has small steps.
    pub limit: Duration,
}

impl Pulse {
    /// Whether it has neither been silent nor, in work of small steps, without progress for half of the limit.
    pub fn is_healthy(&self) -> bool {
        let moves = !self.activity.stage.goes_by_small_steps() || self.still <= self.limit / 2;
        moves && self.silent <= self.limit / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::RunStage;

    #[test]
    fn silence_and_a_standstill_of_small_steps_are_unhealthy() {
        let is_healthy = |stage, still, silent| {
            let [still, silent] = [still, silent].map(Duration::from_secs);
            let activity = Activity { stage, ..Activity::default() };
            Pulse { process: Process(1), activity, still, silent, limit: Duration::from_secs(40) }
                .is_healthy()
        };
        assert!(is_healthy(RunStage::Training, 20, 20));
        assert!(!is_healthy(RunStage::Training, 21, 0));
        assert!(!is_healthy(RunStage::Training, 0, 21));
        // Preparing may take long.
        assert!(is_healthy(RunStage::Preparing, 600, 1));
    }
}
