//! The ledger of a device: which of its memory is held, and for which purposes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::budget::{Part, sum};

/// The purpose of allocations for which none was set.
pub(crate) const OTHER: &str = "other";

/// The ledger of a device's memory.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) measures: AtomicBool,
    pages: Mutex<Pages>,
}

/// What the ledger has in its columns.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) purpose: &'static str,
    pub(crate) held: Vec<Part>,
    /// While the device is only measured: what would be held now, and the most that was held so far.
    pub(crate) measured: Vec<Part>,
    pub(crate) most: Vec<Part>,
}

impl Default for Pages {
    fn default() -> Self {
        Self { purpose: OTHER, held: Vec::new(), measured: Vec::new(), most: Vec::new() }
    }
}

impl Pages {
    pub(crate) fn measure(&mut self, purpose: &'static str, bytes: u64) {
        enter(&mut self.measured, purpose, bytes);
        if sum(&self.measured) > sum(&self.most) {
            self.most.clone_from(&self.measured);
        }
    }
}

impl Ledger {
    /// Returns whether allocations and work are only measured.
    pub(crate) fn measures(&self) -> bool {
        self.measures.load(Ordering::Relaxed)
    }

    pub(crate) fn pages(&self) -> MutexGuard<'_, Pages> {
        // The counts are consistent after each change, even if a thread panicked.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds bytes to the part of a purpose.
pub(crate) fn enter(parts: &mut Vec<Part>, purpose: &'static str, bytes: u64) {
    match parts.iter_mut().find(|part| part.purpose == purpose) {
        Some(part) => part.bytes += bytes,
        None => parts.push(Part { purpose, bytes }),
    }
}
