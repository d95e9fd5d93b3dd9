//! `all_reduce.cu`.

use super::names::{Family, ranks};
use super::{Flags, Id, Kernel, RANKS_MAX, Wait};
use crate::runtime::Pointer;

/// Sums over the ranks, in place. Grid: the same number of blocks at every rank, one [`Flags`] per block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllReduce {
    /// The array to sum, per rank.
    pub(crate) values: [Pointer<f32>; RANKS_MAX],
    /// Per rank. By slices: `[rank][slice][4]`; at once: `[call % 2][rank][vector][4]`.
    pub(crate) inbox: [Pointer<f32>; RANKS_MAX],
    /// Per rank: `[call % 2][rank][number]`, then `[call % 2][number]`.
    pub(crate) numbers_inbox: [Pointer<f64>; RANKS_MAX],
    /// Per rank, one per block.
    pub(crate) flags: [Pointer<Flags>; RANKS_MAX],
    /// Always summed at once.
    pub(crate) numbers: Pointer<f64>,
    /// One per block: the calls so far.
    pub(crate) calls: Pointer<u64>,
    pub(crate) wait: Wait,
    /// Vectors of 4 values.
    pub(crate) vectors: u64,
    /// Vectors that a rank sums for all.
    pub(crate) slice: u64,
    pub(crate) numbers_count: u32,
    /// 0.
    pub(crate) reserved: u32,
}

impl AllReduce {
    /// Threads of a block.
    pub(crate) const THREADS: u32 = 512;
}

/// [`AllReduce`] by slices, for up to `MOST` ranks: 2, 4 or 8.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllReduceBySlices<const MOST: usize>(pub(crate) AllReduce);

/// [`AllReduce`] at once, for up to `MOST` ranks: 2, 4 or 8.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllReduceAtOnce<const MOST: usize>(pub(crate) AllReduce);

/// The first part of [`AllReduceBySlices`]: each rank gets the sum of its slice.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllReduceScatter<const MOST: usize>(pub(crate) AllReduce);

/// The second part: sends each rank's slice to all, and the first rank's numbers.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllReduceSpread<const MOST: usize>(pub(crate) AllReduce);

// SAFETY: `all_reduce.cu` has the same struct and as many threads.
unsafe impl<const MOST: usize> Kernel for AllReduceBySlices<MOST> {
    const ID: Id = Family::AllReduceBySlices.variant([ranks(MOST)]);
    const THREADS: u32 = AllReduce::THREADS;
}

// SAFETY: as for the one by slices.
unsafe impl<const MOST: usize> Kernel for AllReduceAtOnce<MOST> {
    const ID: Id = Family::AllReduceAtOnce.variant([ranks(MOST)]);
    const THREADS: u32 = AllReduce::THREADS;
}

// SAFETY: as for the one by slices.
unsafe impl<const MOST: usize> Kernel for AllReduceScatter<MOST> {
    const ID: Id = Family::AllReduceScatter.variant([ranks(MOST)]);
    const THREADS: u32 = AllReduce::THREADS;
}

// SAFETY: as for the one by slices.
unsafe impl<const MOST: usize> Kernel for AllReduceSpread<MOST> {
    const ID: Id = Family::AllReduceSpread.variant([ranks(MOST)]);
    const THREADS: u32 = AllReduce::THREADS;
}
