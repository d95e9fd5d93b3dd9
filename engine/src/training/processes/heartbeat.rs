//! Long work that does not report progress: meanwhile another thread tells the watchdog that this process is alive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rankine_launch::{ProcessGroup, Pulse, RunStage};

/// The time between two reports to the watchdog.
const INTERVAL: Duration = Duration::from_millis(500);

/// Runs `work` on this thread while another one reports that this process is alive. Then the time limits of what this
/// process did before apply again.
pub(in crate::training) fn with_heartbeat<T>(
    processes: &ProcessGroup,
    step: u64,
    work: impl FnOnce() -> T,
) -> T {
    let Some(Pulse { activity: before, .. }) = processes.pulse() else { return work() };
    let done = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let heartbeat = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                processes.does(RunStage::Saving, step);
                thread::park_timeout(INTERVAL);
            }
        });
        let _stop = HeartbeatStop { done: &done, thread: heartbeat.thread().clone() };
        work()
    });
    processes.is_at(before.stage, before.step, before.in_step);
    outcome
}

/// Stops the reports, also if the work panics.
struct HeartbeatStop<'a> {
    done: &'a AtomicBool,
    thread: thread::Thread,
}

impl Drop for HeartbeatStop<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankine_launch::{Patience, StepStage};

    /// Opening the data after a checkpoint was restored has no time limit, as without a checkpoint.
    #[test]
    fn the_stage_before_long_work_is_that_after_it() {
        let processes = ProcessGroup::watched_alone(Patience::ALONE, |failure, _| panic!("{failure}"));
        let processes = processes.expect("a thread can be started");
        let activity = || processes.pulse().expect("it is watched").activity;
        assert_eq!(activity().stage, RunStage::Preparing);
        with_heartbeat(&processes, 7, || {
            while activity().step != 7 {
                thread::yield_now();
            }
            assert_eq!(activity().stage, RunStage::Saving);
        });
        assert_eq!((activity().stage, activity().step), (RunStage::Preparing, 0));
        processes.is_at(RunStage::Training, 8, StepStage::Reading);
        with_heartbeat(&processes, 8, || ());
        let after = activity();
        assert_eq!((after.stage, after.step, after.in_step), (RunStage::Training, 8, StepStage::Reading));
        processes.finish();
    }
}
