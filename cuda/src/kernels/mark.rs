//! `mark.cu`.

use super::{Feature, Id, Kernel, KeySet};
use crate::buffer::Pointer;

/// Makes keys of ids, and adds them to a set. Grid: x over samples, any number of blocks, and y over features.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    /// By feature, and by sample within a feature.
    pub ids: Pointer<u32>,
    /// All features.
    pub features: Pointer<Feature>,
    /// Of each id.
    pub keys: Pointer<u32>,
    /// Empty at first.
    pub set: KeySet,
    /// Counts ids that are not below their table's rows, which are taken for the last row.
    pub faults: Pointer<u32>,
    /// Samples of this rank.
    pub samples: u32,
    /// All ranks.
    pub ranks: u32,
    /// Keys of an owner.
    pub span: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Mark>() == 72);

// SAFETY: `mark.cu` has the same struct.
unsafe impl Kernel for Mark {
    const ID: Id = Id::Mark;
    const NAME: &'static str = "mark";
    const THREADS: u32 = 256;
}
