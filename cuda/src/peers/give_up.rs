//! An end to waiting, where a rank is known to be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::buffer::Pointer;
use crate::device::Device;
use crate::error::Result;
use crate::pinned::Pinned;

/// A word that a rank's GPU looks at while it waits for others.
#[derive(Debug)]
pub struct GivingUp(Pinned<u64>);

// SAFETY: the word is only accessed as a whole, and by atomic operations.
unsafe impl Sync for GivingUp {}

impl GivingUp {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        device.bind()?;
        Ok(Self(Pinned::zeroed(device, 1)?))
    }

    pub(super) fn pointer(&self) -> Result<Pointer<u64>> {
        self.0.device_pointer()
    }

    /// Has the GPU wait for nobody any more: within some milliseconds each wait ends, at which it stands or to which it
    /// comes. What was computed since must be thrown away.
    pub fn give_up(&self) {
        // SAFETY: the memory is this value's, aligned to a page; the GPU only reads it, and the host accesses it
        // by atomic operations alone.
        unsafe { AtomicU64::from_ptr(self.0.first()) }.store(1, Ordering::Release);
    }

    /// Whether the GPU was told so.
    pub fn is_given_up(&self) -> bool {
        // SAFETY: as for `give_up`.
        unsafe { AtomicU64::from_ptr(self.0.first()) }.load(Ordering::Acquire) != 0
    }
}
