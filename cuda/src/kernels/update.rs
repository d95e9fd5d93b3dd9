//! `update.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::{Family, team};
use super::team::{THREADS, by_width};
use super::{Id, Kernel, LinkCounts, RANKS_MAX, UpdateContext};
use crate::runtime::{Lane, Pointer, Result};

/// Where the shared squares of a shard's rows are stored, if other ranks have more of their columns.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct SharedSquares {
    /// In each owner's memory: where those of the table start.
    pub begin: u32,
    /// Distance from one shard's to the next one's.
    pub rows: u32,
    /// Number of shards.
    pub shards: u32,
    /// Number of this shard.
    pub number: u32,
    /// Bit mask of the node's ranks that receive the squares: those that own the rows; over several nodes, all.
    pub owners: u32,
    /// Elements of a row, over all shards.
    pub dim: u32,
}

/// Adds up the ranks' sums for an owner's rows, in the order of ranks, and updates each row once.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Update {
    /// Parameters of the update.
    pub context: UpdateContext,
    /// The union of the rows that ranks look up here.
    pub rows: Pointer<u32>,
    /// How many rows.
    pub rows_count: Pointer<u32>,
    /// `[row of the union][rank]`: 1 + the index of its sum, or 0.
    pub sources: Pointer<u32>,
    /// `[entry][width]`
    pub sums: Pointer<u32>,
    /// One per shard, if any has `shares_squares`; else null.
    pub shared: Pointer<SharedSquares>,
    /// Per rank: squares, stored as `shared` says.
    pub squares: [Pointer<f32>; RANKS_MAX],
    /// What this rank sends, within its node and between nodes; [`Update::share_squares`] counts squares.
    pub counts: Pointer<LinkCounts>,
    /// Shards.
    pub shards_count: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Elements from one sum to the next, a multiple of 8.
    pub width: u32,
    /// Type of the sums: a [`super::Dtype`], fp32 or bf16.
    pub dtype: u32,
    /// This rank.
    pub rank: u32,
    /// How often the squares of a row here are sent to other nodes, by any rank of the node.
    pub forwards: u32,
}

const _: () = assert!(size_of::<SharedSquares>() == 24 && size_of::<Update>() == 192);

impl Update {
    /// Enqueues sending the squares of the local columns to the other owners of each row's columns, on any number of
    /// blocks. All of them must have done so before the update.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Panics
    /// If no kernel supports rows this wide.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn share_squares(&self, lane: &Lane, vectors: u32, blocks: u32) -> Result<()> {
        // SAFETY: as for `enqueue`.
        unsafe { by_width!(vectors, self.share_squares_by(lane, blocks)) }
    }

    unsafe fn share_squares_by<const LANES: u32, const VECTORS: u32>(
        &self,
        lane: &Lane,
        blocks: u32,
    ) -> Result<()> {
        // SAFETY: as for `enqueue`.
        unsafe { lane.launch(&ShareSquares::<LANES, VECTORS>(*self), (blocks, 1)) }
    }

    /// Enqueues the update on any number of blocks; `vectors` is the number of four-element vectors of the widest
    /// row.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Panics
    /// If no kernel supports rows this wide.
    ///
    /// # Errors
    /// If the driver reports an error.
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

/// The same by teams of `LANES` lanes with `VECTORS` vectors each.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct UpdateRows<const LANES: u32, const VECTORS: u32>(Update);

// SAFETY: `update.cu` has the same struct.
unsafe impl<const LANES: u32, const VECTORS: u32> Kernel for UpdateRows<LANES, VECTORS> {
    const ID: Id = Family::Update.variant([team(LANES, VECTORS)]);
    const THREADS: u32 = THREADS;
}

/// What precedes [`UpdateRows`] if squares are shared.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct ShareSquares<const LANES: u32, const VECTORS: u32>(Update);

// SAFETY: `update.cu` has the same struct.
unsafe impl<const LANES: u32, const VECTORS: u32> Kernel for ShareSquares<LANES, VECTORS> {
    const ID: Id = Family::ShareSquares.variant([team(LANES, VECTORS)]);
    const THREADS: u32 = THREADS;
}
