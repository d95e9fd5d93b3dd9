//! `reduce.cu`.

use half::bf16;

use super::{Feature, Id, Kernel};
use crate::buffer::Pointer;

/// What both kernels take that sum the gradients of each distinct row.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Reduce {
    /// Sorted.
    pub slots: Pointer<u32>,
    /// Beside them: a feature's number above `sample_bits`, a sample's below.
    pub bags: Pointer<u32>,
    /// All features, [`Reduce::FEATURES_MAX`] at most.
    pub features: Pointer<Feature>,
    /// `[sample][stride]`
    pub gradients: Pointer<bf16>,
    /// `[slot][dim]`
    pub sums: Pointer<bf16>,
    /// `[run][2][dim]`: sums of rows that reach from one run into another.
    pub parts: Pointer<f32>,
    /// Ids.
    pub ids: u32,
    /// Features.
    pub features_count: u32,
    /// Bits of a bag that are the sample's.
    pub sample_bits: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// Elements of a row, a multiple of 4.
    pub dim: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Reduce>() == 72);

impl Reduce {
    /// Ids that a warp sums.
    pub const RUN: u32 = 64;
    /// Features, at most.
    pub const FEATURES_MAX: usize = 512;

    /// Runs of all ids.
    pub fn runs(&self) -> u32 {
        self.ids.div_ceil(Self::RUN)
    }

    /// Blocks of [`Runs`].
    pub fn runs_grid(&self) -> (u32, u32) {
        (self.runs().div_ceil(Runs::THREADS / 32), self.dim.div_ceil(128))
    }

    /// Blocks of [`Parts`].
    pub fn parts_grid(&self) -> (u32, u32) {
        (self.runs(), self.dim.div_ceil(128))
    }
}

/// Sums run by run. Grid: [`Reduce::runs_grid`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Runs(pub Reduce);

// SAFETY: `reduce.cu` has the same struct.
unsafe impl Kernel for Runs {
    const ID: Id = Id::Runs;
    const NAME: &'static str = "reduce_runs";
    const THREADS: u32 = 256;
}

/// Sums over runs, after [`Runs`]. Grid: [`Reduce::parts_grid`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Parts(pub Reduce);

// SAFETY: `reduce.cu` has the same struct.
unsafe impl Kernel for Parts {
    const ID: Id = Id::Parts;
    const NAME: &'static str = "reduce_parts";
    const THREADS: u32 = 128;
}
