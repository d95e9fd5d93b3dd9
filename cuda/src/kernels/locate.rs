//! `locate.cu`.

use super::{Id, Kernel, KeySet, sort};
use crate::buffer::Pointer;

/// Finds the slot of each id. Grid: one block a tile of [`super::TILE`] ids.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Locate {
    /// Of each id.
    pub keys: Pointer<u32>,
    /// Their set, numbered.
    pub set: KeySet,
    /// Its members.
    pub slots_count: Pointer<u32>,
    /// Of each id: the number of its key.
    pub slots: Pointer<u32>,
    /// `[digit][tile]`: of the slots' low digits.
    pub counts: Pointer<u32>,
    /// Ids.
    pub ids: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Locate>() == 64);

// SAFETY: `locate.cu` has the same struct, and takes a word of shared memory a digit.
unsafe impl Kernel for Locate {
    const ID: Id = Id::Locate;
    const NAME: &'static str = "locate";
    const THREADS: u32 = sort::COUNT_THREADS;

    fn shared_bytes(&self) -> u32 {
        4 * sort::digits_max(self.ids)
    }
}
