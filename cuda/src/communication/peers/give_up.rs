//! Ends waiting early if a rank is known to be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::runtime::{Device, PinnedBuffer, Pointer, Result};

/// A word that a rank's GPU polls while it waits for other ranks.
#[derive(Debug)]
pub struct GiveUpFlag(PinnedBuffer<u64>);

// SAFETY: the word is only accessed as a whole, and by atomic operations.
unsafe impl Sync for GiveUpFlag {}

impl GiveUpFlag {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        device.bind()?;
        Ok(Self(PinnedBuffer::zeroed(device, 1)?))
    }

    pub(super) fn pointer(&self) -> Result<Pointer<u64>> {
        self.0.device_pointer()
    }

    /// Makes the GPU stop waiting: every wait, current or later, ends within some milliseconds. What was computed
    /// since must be discarded.
    pub fn give_up(&self) {
        // SAFETY: the memory is this value's, aligned to a page; the GPU only reads it, and the host accesses it only
        // with atomic operations.
        unsafe { AtomicU64::from_ptr(self.0.first()) }.store(1, Ordering::Release);
    }

    /// Returns whether [`Self::give_up`] was called.
    pub fn is_given_up(&self) -> bool {
        // SAFETY: as for `give_up`.
        unsafe { AtomicU64::from_ptr(self.0.first()) }.load(Ordering::Acquire) != 0
    }
}
