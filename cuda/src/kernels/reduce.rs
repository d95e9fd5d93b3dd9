//! `reduce.cu`.

use half::bf16;

use super::{Feature, Id, Kernel, Pair, RANKS_MAX};
use crate::buffer::Pointer;

/// What both kernels take that sum the gradients of each distinct row.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Reduce {
    /// Sorted. A bag is a feature's number above `sample_bits`, and a sample's below.
    pub pairs: Pointer<Pair>,
    /// All features, [`Reduce::FEATURES_MAX`] at most.
    pub features: Pointer<Feature>,
    /// `[sample][stride]`
    pub gradients: Pointer<bf16>,
    /// Where the slots of each owner begin.
    pub starts: Pointer<u32>,
    /// Of each owner: `[rank][capacity][dim]`.
    pub sums: [Pointer<bf16>; RANKS_MAX],
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
    /// Rows that a rank can look up at an owner.
    pub capacity: u32,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
}

const _: () = assert!(size_of::<Reduce>() == 136);

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
        (self.runs().div_ceil(Parts::THREADS / 32), self.dim.div_ceil(128))
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
    const THREADS: u32 = 512;
}
