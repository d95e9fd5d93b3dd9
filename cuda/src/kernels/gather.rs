//! `gather.cu`.

use half::bf16;

use super::{Feature, Id, Kernel};
use crate::buffer::Pointer;

/// Copies each id's row to where its vector belongs. Grid: any; a warp takes a sample at a time.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Gather {
    /// Of each id.
    pub slots: Pointer<u32>,
    /// All features.
    pub features: Pointer<Feature>,
    /// `[slot][dim]`
    pub landing: Pointer<bf16>,
    /// `[sample][stride]`
    pub output: Pointer<bf16>,
    /// Samples of this rank.
    pub samples: u32,
    /// Features.
    pub features_count: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// Elements of a row, a multiple of 4.
    pub dim: u32,
}

const _: () = assert!(size_of::<Gather>() == 48);

// SAFETY: `gather.cu` has the same struct.
unsafe impl Kernel for Gather {
    const ID: Id = Id::Gather;
    const NAME: &'static str = "gather";
    const THREADS: u32 = 256;
}
