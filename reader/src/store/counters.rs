//! Counts of what this process did with object stores and its cache, for metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What this process did with object stores so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Bytes of objects that were fetched.
    pub bytes: u64,
    /// Requests by the status of their answer; 0 for those without an answer.
    pub requests: BTreeMap<u16, u64>,
    /// Attempts that failed and were repeated.
    pub retries: u64,
    /// Blocks that were read from the cache instead.
    pub cache_hits: u64,
    /// Blocks that the cache did not have.
    pub cache_misses: u64,
}

static BYTES: AtomicU64 = AtomicU64::new(0);
static RETRIES: AtomicU64 = AtomicU64::new(0);
static CACHE_HITS: AtomicU64 = AtomicU64::new(0);
static CACHE_MISSES: AtomicU64 = AtomicU64::new(0);
static REQUESTS: Mutex<BTreeMap<u16, u64>> = Mutex::new(BTreeMap::new());

/// Returns the counts of this process.
pub fn counts() -> StoreCounts {
    StoreCounts {
        bytes: BYTES.load(Ordering::Relaxed),
        requests: REQUESTS.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        retries: RETRIES.load(Ordering::Relaxed),
        cache_hits: CACHE_HITS.load(Ordering::Relaxed),
        cache_misses: CACHE_MISSES.load(Ordering::Relaxed),
    }
}

pub(super) fn count_look_up(is_hit: bool) {
    let counter = if is_hit { &CACHE_HITS } else { &CACHE_MISSES };
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(feature = "cloud")]
pub(super) fn count_bytes(bytes: usize) {
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

#[cfg(feature = "cloud")]
pub(super) fn count_retry() {
    RETRIES.fetch_add(1, Ordering::Relaxed);
}

#[cfg(feature = "cloud")]
pub(super) fn count_request(status: u16) {
    *REQUESTS.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
}
