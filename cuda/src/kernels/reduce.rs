//! `reduce.cu`.

use super::names::{Family, team};
use super::team::{self, THREADS, by_width};
use super::{Dtype, Element, ElementKind, Feature, Id, Kernel, Pair, RANKS_MAX};
use crate::runtime::{Lane, Pointer, Result};

/// Sums the gradients of each distinct row and writes the sum to the row's owner.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Reduce<T> {
    /// Sorted. A bag is the feature's number above `sample_bits` and the sample's below.
    pub pairs: Pointer<Pair>,
    /// How many pairs.
    pub count: Pointer<u32>,
    /// All features.
    pub features: Pointer<Feature>,
    /// Where the bags of ragged columns start.
    pub offsets: Pointer<u32>,
    /// Per pair whose feature is pooled by factors: the factor of its gradient.
    pub factors: Pointer<f32>,
    /// `[sample][stride]`, then from `keys` on those with respect to keys.
    pub gradients: Pointer<T>,
    /// [`Reduce::parts_len`] elements: partial sums of rows that span several blocks.
    pub parts: Pointer<f32>,
    /// Where the slots of each owner start.
    pub starts: Pointer<u32>,
    /// Per owner: `[rank][capacity][width]`.
    pub sums: [Pointer<u32>; RANKS_MAX],
    /// Bits of a bag that are the sample's.
    pub sample_bits: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// A quarter of the elements of the widest row, rounded up.
    pub vectors: u32,
    /// Elements from one sum to the next, a multiple of 8.
    pub width: u32,
    /// Sums that a rank can have for an owner.
    pub capacity: u32,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Type of the sums: [`Reduce::SUMS`].
    pub dtype: u32,
    /// The number of ranks, plus one if there are rows that every rank stores, whose sums go to all.
    pub owners: u32,
    /// Sums that a rank can have of rows that only one owner stores.
    pub owned: u32,
    /// Where the gradients with respect to keys start, a multiple of 4.
    pub keys: u32,
    /// 0.
    pub reserved: u32,
}

impl<T> Reduce<T> {
    /// Elements of `parts`.
    pub fn parts_len(room: usize, vectors: usize) -> usize {
        team::parts_len(room, vectors)
    }
}

impl<T: Element> Reduce<T> {
    /// The type in which sums of these gradients travel. Sums of f16 may exceed its range although none of their
    /// terms does.
    pub const SUMS: Dtype = match T::KIND {
        ElementKind::Bf16 => Dtype::Bf16,
        ElementKind::F32 | ElementKind::F16 => Dtype::Fp32,
    };

    /// Enqueues the sums of up to `room` pairs.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Panics
    /// If no kernel supports rows this wide.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue(&self, lane: &Lane, room: u32) -> Result<()> {
        // SAFETY: the caller vouches for the addresses; the team has the lanes and vectors of the widest row.
        unsafe { by_width!(self.vectors, self.enqueue_by(lane, room)) }
    }

    unsafe fn enqueue_by<const LANES: u32, const VECTORS: u32>(&self, lane: &Lane, room: u32) -> Result<()> {
        let (runs, parts) = team::runs_grid(room, LANES);
        // SAFETY: as for `enqueue`.
        unsafe {
            lane.launch(&ReduceRuns::<T, LANES, VECTORS>(*self), (runs, 1))?;
            lane.launch(&ReduceParts::<T, LANES, VECTORS>(*self), (parts, 1))
        }
    }
}

/// Sums the rows that lie within one block's pairs, by teams of `LANES` lanes with `VECTORS` vectors each.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct ReduceRuns<T, const LANES: u32, const VECTORS: u32>(Reduce<T>);

/// Sums the rows that continue from one block to the next, after [`ReduceRuns`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct ReduceParts<T, const LANES: u32, const VECTORS: u32>(Reduce<T>);

// SAFETY: `reduce.cu` has the same struct, and its blocks take this much shared memory.
unsafe impl<T: Element, const LANES: u32, const VECTORS: u32> Kernel for ReduceRuns<T, LANES, VECTORS> {
    const ID: Id = Family::Reduce.variant([T::KIND as usize, team(LANES, VECTORS)]);
    const THREADS: u32 = THREADS;

    fn shared_bytes(&self) -> u32 {
        team::runs_bytes(LANES, VECTORS)
    }
}

// SAFETY: as for `ReduceRuns`.
unsafe impl<T: Element, const LANES: u32, const VECTORS: u32> Kernel for ReduceParts<T, LANES, VECTORS> {
    const ID: Id = Family::ReduceParts.variant([team(LANES, VECTORS)]);
    const THREADS: u32 = THREADS;

    fn shared_bytes(&self) -> u32 {
        team::parts_bytes(LANES, VECTORS)
    }
}
