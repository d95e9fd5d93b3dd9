//! `mark.cu`.

use super::{Id, Kernel};
use crate::buffer::Pointer;

/// Marks rows in a set, a bit each. Grid: any.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    /// Their numbers.
    pub rows: Pointer<u32>,
    /// How many they are.
    pub count: Pointer<u32>,
    /// Nothing is marked where this is not 0.
    pub stop: Pointer<u32>,
    /// The set.
    pub bits: Pointer<u32>,
}

const _: () = assert!(size_of::<Mark>() == 32);

// SAFETY: `mark.cu` has the same struct.
unsafe impl Kernel for Mark {
    const ID: Id = Id::Mark;
    const NAME: &'static str = "mark";
    const THREADS: u32 = 256;
}
