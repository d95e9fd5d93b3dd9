//! Work that takes long and tells nobody how far it is: meanwhile the watch over processes hears that it goes on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::launch::{Phase, ProcessGroup};

/// How often it hears of it.
const EVERY: Duration = Duration::from_millis(500);

/// Does something on this thread, and has another one say so.
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

/// Ends the telling, also where the work panics.
struct Over<'a>(&'a AtomicBool, thread::Thread);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        self.1.unpark();
    }
}
