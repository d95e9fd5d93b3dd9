//! `descend.cu`.

use super::{Element, Feature, Id, Kernel, Pair, Rate};
use crate::buffer::Pointer;

/// What both kernels take that sum the gradients of each distinct row and update it by gradient descent.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Descend<T> {
    /// Sorted; a bag is a feature's number above `sample_bits`, a sample's below.
    pub pairs: Pointer<Pair>,
    /// How many pairs there are.
    pub count: Pointer<u32>,
    /// Of each slot: the row of all tables.
    pub rows: Pointer<u32>,
    /// All features, [`super::Reduce::FEATURES_MAX`] at most.
    pub features: Pointer<Feature>,
    /// `[sample][stride]`
    pub gradients: Pointer<T>,
    /// One a table.
    pub rates: Pointer<Rate>,
    /// Nothing is written where it is not 0.
    pub stop: Pointer<u32>,
    /// `[row of all tables][dim]`
    pub table: Pointer<f32>,
    /// `[run][2][dim]`: sums of rows that reach from one run into another.
    pub parts: Pointer<f32>,
    /// Pairs that there is room for.
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

const _: () = assert!(size_of::<Descend<f32>>() == 96);

impl<T> Descend<T> {
    /// Ids that a warp sums.
    pub const RUN: u32 = 64;

    fn runs(&self) -> u32 {
        self.ids.div_ceil(Self::RUN)
    }

    /// Blocks of [`DescendRuns`].
    pub fn runs_grid(&self) -> (u32, u32) {
        (self.runs().div_ceil(256 / 32), self.dim.div_ceil(128))
    }

    /// Blocks of [`DescendParts`].
    pub fn parts_grid(&self) -> (u32, u32) {
        (self.runs(), self.dim.div_ceil(128))
    }
}

/// Updates the rows that lie within one run. Grid: [`Descend::runs_grid`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct DescendRuns<T>(pub Descend<T>);

// SAFETY: `descend.cu` has the same struct.
unsafe impl<T: Element> Kernel for DescendRuns<T> {
    const ID: Id = if T::BF16 { Id::DescendRunsBf16 } else { Id::DescendRunsF32 };
    const NAME: &'static str = "descend_runs";
    const THREADS: u32 = 256;
}

/// Updates the rows that go on from one run to the next, after [`DescendRuns`]. Grid: [`Descend::parts_grid`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct DescendParts<T>(pub Descend<T>);

// SAFETY: `descend.cu` has the same struct.
unsafe impl<T: Element> Kernel for DescendParts<T> {
    const ID: Id = Id::DescendParts;
    const NAME: &'static str = "descend_parts";
    const THREADS: u32 = 128;
}
