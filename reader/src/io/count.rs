//! A count of the bytes that were read, which other threads may look at.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes that a stream has read so far. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct BytesRead(Arc<AtomicU64>);

impl BytesRead {
    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
