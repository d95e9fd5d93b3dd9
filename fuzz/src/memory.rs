//! What reading takes of memory: counted, and bounded.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which counts what is allocated and the most that was at once, and has nothing to give beyond
/// a limit.
pub struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

// SAFETY: every call goes to the system's allocator as it came, or gives nothing; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counting {
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
        // SAFETY: as above. Passed on as it is, lest pages that are never touched be written.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `dealloc`'s contract, which is the system's.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Counts bytes that are asked for; `false` where they would be too many.
fn grown(bytes: usize) -> bool {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
    if now > LIMIT.load(Ordering::Relaxed) {
        NOW.fetch_sub(bytes, Ordering::Relaxed);
        return false;
    }
    MOST.fetch_max(now, Ordering::Relaxed);
    true
}

/// Does some work; returns what came of it, and the most bytes that it had of memory at once.
pub fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let outcome = work();
    (outcome, MOST.load(Ordering::Relaxed).saturating_sub(before))
}

/// Does some work where there is no more memory than so many bytes: the process ends where it asks for more.
pub fn within<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    LIMIT.store(NOW.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    let outcome = work();
    LIMIT.store(usize::MAX, Ordering::Relaxed);
    outcome
}
