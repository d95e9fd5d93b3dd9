//! Page-locked slabs that GPUs copy from.

use std::sync::Arc;

use rankine_cuda::{Device, PageLock};
use rankine_reader::io::{AlignedMemory, SlabMemory};

use crate::cuda::error::Result;

/// Memory for slabs that a GPU reads directly.
#[derive(Debug)]
pub(super) struct PageLockedMemory {
    /// Unlocked before the memory is freed.
    _locked: PageLock,
    memory: AlignedMemory,
}

impl PageLockedMemory {
    pub(super) fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        let memory = AlignedMemory::new(bytes)?;
        // SAFETY: the memory lives as long as this value, which drops the lock first.
        let locked = unsafe { PageLock::new(device, memory.as_ptr(), memory.bytes()) }?;
        Ok(Self { _locked: locked, memory })
    }
}

/// Slab memory that stays locked beyond the slabs' life, because unlocking it may wait for GPUs that wait for each
/// other.
pub(super) struct SlabRingMemory(pub(super) Arc<PageLockedMemory>);

// SAFETY: the bytes belong to the memory; a GPU reads it only while the slab is kept, see `Copier`.
unsafe impl SlabMemory for SlabRingMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.0.memory.as_ptr()
    }

    fn bytes(&self) -> usize {
        self.0.memory.bytes()
    }
}
