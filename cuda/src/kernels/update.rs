//! `update.cu`.

use super::team::{THREADS, by_width};
use super::{Id, Kernel, Learning};
use crate::buffer::Pointer;
use crate::error::Result;
use crate::lane::Lane;

/// Adds up what ranks have summed for an owner's rows, in the order of ranks, and updates each row once.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Update {
    /// What rows learn by.
    pub by: Learning,
    /// The union of the rows that ranks look up here.
    pub rows: Pointer<u32>,
    /// How many they are.
    pub rows_count: Pointer<u32>,
    /// `[row of the union][rank]`: 1 + the place of its sum, or 0.
    pub sources: Pointer<u32>,
    /// `[place][width]`
    pub sums: Pointer<u32>,
    /// Shards.
    pub shards_count: u32,
    /// All ranks.
    pub ranks: u32,
    /// Elements from one sum to the next, a multiple of 8.
    pub width: u32,
    /// What sums are stored as: a [`super::Dtype`], fp32 or bf16.
    pub dtype: u32,
}

const _: () = assert!(size_of::<Update>() == 104);

impl Update {
    /// Enqueues the update on any number of blocks, where the widest row has so many `vectors` of four elements.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Panics
    /// Where rows are wider than there are kernels for.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn enqueue(&self, lane: &Lane, vectors: u32, blocks: u32) -> Result<()> {
        // SAFETY: the caller vouches for the addresses; the team has the lanes and vectors of the widest row.
        unsafe { by_width!(vectors, self.enqueue_by(lane, blocks)) }
    }

    unsafe fn enqueue_by<const LANES: u32, const VECTORS: u32>(
        &self,
        lane: &Lane,
        blocks: u32,
    ) -> Result<()> {
        // SAFETY: as for `enqueue`.
        unsafe { lane.launch(&UpdateRows::<LANES, VECTORS>(*self), (blocks, 1)) }
    }
}

/// The same by teams of so many lanes with so many vectors each.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct UpdateRows<const LANES: u32, const VECTORS: u32>(Update);

// SAFETY: `update.cu` has the same struct.
unsafe impl<const LANES: u32, const VECTORS: u32> Kernel for UpdateRows<LANES, VECTORS> {
    const ID: Id = match (LANES, VECTORS) {
        (4, 1) => Id::UpdateBy4x1,
        (16, 1) => Id::UpdateBy16x1,
        (32, 1) => Id::UpdateBy32x1,
        (32, 2) => Id::UpdateBy32x2,
        (32, 8) => Id::UpdateBy32x8,
        _ => panic!("no such team"),
    };
    const NAME: &'static str = "update";
    const THREADS: u32 = THREADS;
}
