//! `mark.cu`.

use super::names::Family;
use super::{Id, Kernel};
use crate::runtime::Pointer;

/// Marks rows in a set, one bit each. Grid: any.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    /// Row numbers.
    pub rows: Pointer<u32>,
    /// How many.
    pub count: Pointer<u32>,
    /// If this is not 0, nothing is marked.
    pub stop: Pointer<u32>,
    /// The set.
    pub bits: Pointer<u32>,
}

// SAFETY: `mark.cu` has the same struct.
unsafe impl Kernel for Mark {
    const ID: Id = Family::Mark.variant([]);
    const THREADS: u32 = 256;
}
