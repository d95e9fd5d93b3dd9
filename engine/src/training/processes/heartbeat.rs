//! Long work that does not report progress: meanwhile another thread tells the watchdog that this process is alive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::launch::{ProcessGroup, RunStage};

/// The time between two reports to the watchdog.
const INTERVAL: Duration = Duration::from_millis(500);

/// Runs `work` on this thread while another one reports that this process is alive.
pub(in crate::training) fn with_heartbeat<T>(
    processes: &ProcessGroup,
    step: u64,
    work: impl FnOnce() -> T,
) -> T {
    if !processes.is_watched() {
        return work();
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let heartbeat = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                processes.does(RunStage::Saving, step);
                thread::park_timeout(INTERVAL);
            }
        });
        let _stop = HeartbeatStop { done: &done, thread: heartbeat.thread().clone() };
        work()
    })
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
