//! Long work that does not report progress: meanwhile another thread tells the watchdog that this process is alive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::launch::{Phase, ProcessGroup};

/// How often the watchdog hears from this thread.
const EVERY: Duration = Duration::from_millis(500);

/// Runs `work` on this thread while another one reports that this process is alive.
pub(super) fn alive<T>(processes: &ProcessGroup, step: u64, work: impl FnOnce() -> T) -> T {
    if !processes.is_watched() {
        return work();
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let told = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                processes.does(Phase::Saving, step);
                thread::park_timeout(EVERY);
            }
        });
        let _over = Over(&done, told.thread().clone());
        work()
    })
}

/// Stops the reports, also if the work panics.
struct Over<'a>(&'a AtomicBool, thread::Thread);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        self.1.unpark();
    }
}
