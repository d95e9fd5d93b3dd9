//! `rails.cu`.

use super::names::{Family, lanes};
use super::{Addresses, Id, Kernel, KeySet, RANKS_MAX, Shard};
use crate::runtime::{Lane, Pointer, Result};

/// Words before the rows of a list that is sent to another node: how many rows are listed, the most that are listed
/// for any other node, and how many of them (from the first) are wanted. The remaining rows are those that every rank
/// stores.
pub const RAIL_HEADER: usize = 4;

/// Writes the lists of rows that a node looks up, one per node. Grid: x over rows, any number of blocks; y over
/// nodes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RailLists {
    /// The rows, by their numbers at their owners, node by node.
    pub named: Pointer<u32>,
    /// Where those of each node start, and their total number; if there are rows that every rank stores, also the
    /// total including these, which come last.
    pub starts: Pointer<u32>,
    /// Per node: [`RAIL_HEADER`] words, and room for all rows listed for that node.
    pub lists: Addresses,
    /// This node.
    pub node: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// 1 if there are rows that every rank stores, else 0.
    pub of_all: u32,
    /// 0.
    pub reserved: u32,
}

/// Adds the received rows to a set, and reports the length of the longest list to the host. Grid: as for
/// [`RailLists`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RailMark {
    /// `[node][stride]`: the received lists.
    pub lists: Pointer<u32>,
    /// Per node: how many of its rows were received.
    pub counts: Pointer<u32>,
    /// Per node: how many of these it wants.
    pub wanted: Pointer<u32>,
    /// A word in host memory: 1 + the most rows that any rank of the rail lists for another node.
    pub most: Pointer<u32>,
    /// Rows of this rank. Must be empty at the start.
    pub set: KeySet,
    /// Words from one list to the next.
    pub stride: u32,
    /// The most rows received of each other node's list.
    pub there: u32,
    /// This node.
    pub node: u32,
    /// Number of nodes.
    pub nodes: u32,
}

/// Parameters of [`RailRows::spread`] and [`RailRows::gather`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RailRows {
    /// As for [`RailLists`].
    pub named: Pointer<u32>,
    /// As for [`RailLists`].
    pub starts: Pointer<u32>,
    /// `[named row][rank of the node]`: 1 + the index of its entry at this owner, or 0.
    pub sources: Pointer<u32>,
    /// Per rank of the node: the slot of this owner's first row there.
    pub firsts: Pointer<u32>,
    /// This rank's shards, ordered by base; the bases are the same at all ranks.
    pub shards: Pointer<Shard>,
    /// Per node: `[row][width]`, the received rows, or the sums to send.
    pub rows: Addresses,
    /// Per rank of the node: `[slot][width]`, where rows are written.
    pub landings: [Pointer<u32>; RANKS_MAX],
    /// `[entry][width]`: the sums of the node's ranks.
    pub sums: Pointer<u32>,
    /// Shards.
    pub shards_count: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Ranks of the node.
    pub ranks: u32,
    /// This rank's number among them.
    pub rank: u32,
    /// Entries that a rank can have.
    pub capacity: u32,
    /// Elements from one row to the next, a multiple of 8.
    pub width: u32,
    /// To spread: bytes of an element, 2 or 4. To gather: type of the sums, a [`super::Dtype`], fp32 or bf16.
    pub element: u32,
    /// As for [`RailLists`].
    pub of_all: u32,
}

const _: () =
    assert!(size_of::<RailLists>() == 112 && size_of::<RailMark>() == 72 && size_of::<RailRows>() == 224);

// SAFETY: `rails.cu` has the same struct.
unsafe impl Kernel for RailLists {
    const ID: Id = Family::RailLists.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `rails.cu` has the same struct.
unsafe impl Kernel for RailMark {
    const ID: Id = Family::RailMark.variant([]);
    const THREADS: u32 = 256;
}

impl RailRows {
    /// Enqueues sending received rows to the ranks of the node that look them up, on any number of blocks.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn spread(&self, lane: &Lane, blocks: u32) -> Result<()> {
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            match self.width {
                0..=16 => lane.launch(&Spread::<4>(*self), (blocks, 1)),
                17..=64 => lane.launch(&Spread::<16>(*self), (blocks, 1)),
                _ => lane.launch(&Spread::<32>(*self), (blocks, 1)),
            }
        }
    }

    /// Enqueues adding up the sums of the node's ranks, in the order of ranks, on any number of blocks.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn gather(&self, lane: &Lane, blocks: u32) -> Result<()> {
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            match self.width {
                0..=16 => lane.launch(&Gather::<4>(*self), (blocks, 1)),
                17..=64 => lane.launch(&Gather::<16>(*self), (blocks, 1)),
                _ => lane.launch(&Gather::<32>(*self), (blocks, 1)),
            }
        }
    }
}

/// [`RailRows::spread`] by teams of `LANES` lanes.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct Spread<const LANES: u32>(RailRows);

/// [`RailRows::gather`] by teams of `LANES` lanes.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct Gather<const LANES: u32>(RailRows);

// SAFETY: `rails.cu` has the same struct.
unsafe impl<const LANES: u32> Kernel for Spread<LANES> {
    const ID: Id = Family::RailSpread.variant([lanes(LANES)]);
    const THREADS: u32 = 256;
}

// SAFETY: `rails.cu` has the same struct.
unsafe impl<const LANES: u32> Kernel for Gather<LANES> {
    const ID: Id = Family::RailGather.variant([lanes(LANES)]);
    const THREADS: u32 = 256;
}
