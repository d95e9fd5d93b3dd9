//! `stamp.cu`.

use super::names::Family;
use super::{Id, Kernel};
use crate::runtime::Pointer;

/// Writes a word that the host polls, and waits for one that the host writes. Grid: one block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) word: Pointer<u32>,
    /// Null, or a word of which the kernel waits until it is 0.
    pub(crate) awaited: Pointer<u32>,
    pub(crate) value: u32,
    /// 0.
    pub(crate) reserved: u32,
}

// SAFETY: `stamp.cu` has the same struct, and takes one thread.
unsafe impl Kernel for Stamp {
    const ID: Id = Family::Stamp.variant([]);
    const THREADS: u32 = 1;
}
