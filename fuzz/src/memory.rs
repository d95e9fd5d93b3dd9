//! Counts and limits the memory that reading takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator with a count of allocated bytes, their peak, and a limit beyond which allocation fails.
pub struct CountingAllocator;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

// SAFETY: every call is passed unchanged to the system's allocator, or returns null; only counters are added.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !grown(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps `alloc`'s contract, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !grown(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above. `alloc_zeroed` is passed on as such, so that untouched pages are not written.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `dealloc`'s contract, which is the system's.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Counts requested bytes; returns `false` if they exceed the limit.
fn grown(bytes: usize) -> bool {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
    if now > LIMIT.load(Ordering::Relaxed) {
        NOW.fetch_sub(bytes, Ordering::Relaxed);
        return false;
    }
    MOST.fetch_max(now, Ordering::Relaxed);
    true
}

/// Runs `work`; returns its result and the peak of allocated bytes.
pub fn with_peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let outcome = work();
    (outcome, MOST.load(Ordering::Relaxed).saturating_sub(before))
}

/// Runs `work` with a limit of `bytes` on memory: the process aborts if it requests more.
pub fn with_limit<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    LIMIT.store(NOW.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    let outcome = work();
    LIMIT.store(usize::MAX, Ordering::Relaxed);
    outcome
}
