//! `rails.cu`.

use super::{Id, Kernel, KeySet, RANKS_MAX, Shard};
use crate::buffer::Pointer;
use crate::error::Result;
use crate::lane::Lane;

/// Words before the rows of a list that goes to another node: how many rows are named, the most that are named at any
/// other node, and how many of the first are wanted. Those behind them every rank has.
pub const RAIL_HEADER: usize = 4;

/// Writes the lists of rows that a node names, one for each node. Grid: x over rows, any number of blocks, and y over
/// nodes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RailLists {
    /// The rows, by their numbers at their owners: those of each node, one behind the other.
    pub named: Pointer<u32>,
    /// Where those of each node begin, and how many there are; where there are rows that every rank has, also how many
    /// there are with these, which come behind.
    pub starts: Pointer<u32>,
    /// Of each node: [`RAIL_HEADER`] words, and room for all that are named there.
    pub lists: [Pointer<u32>; RANKS_MAX],
    /// This node.
    pub node: u32,
    /// All nodes.
    pub nodes: u32,
    /// 1 where there are rows that every rank has, else 0.
    pub of_all: u32,
    /// 0.
    pub reserved: u32,
}

/// Adds the rows that came to a set, and tells the host how long the longest list is. Grid: as for [`RailLists`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RailMark {
    /// `[node][stride]`: the lists that came.
    pub lists: Pointer<u32>,
    /// Of each node: how many of its rows are there.
    pub counts: Pointer<u32>,
    /// Of each node: how many of these it wants.
    pub wanted: Pointer<u32>,
    /// A word of the host's: 1 + the most rows that any rank of the rail names at another node.
    pub most: Pointer<u32>,
    /// Empty at first; of rows of this rank.
    pub set: KeySet,
    /// Words from one list to the next.
    pub stride: u32,
    /// Rows that have come of each other node's list, at most.
    pub there: u32,
    /// This node.
    pub node: u32,
    /// All nodes.
    pub nodes: u32,
}

/// What [`RailRows::spread`] and [`RailRows::gather`] take.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RailRows {
    /// As for [`RailLists`].
    pub named: Pointer<u32>,
    /// As for [`RailLists`].
    pub starts: Pointer<u32>,
    /// `[named row][rank of the node]`: 1 + the place of its entry at this owner, or 0.
    pub sources: Pointer<u32>,
    /// Of each rank of the node: the slot there of the first row of this owner.
    pub firsts: Pointer<u32>,
    /// This rank's shards, in the order of their bases, which are the same at all ranks.
    pub shards: Pointer<Shard>,
    /// Of each node: `[row][width]`, as rows came, or as sums go.
    pub rows: [Pointer<u32>; RANKS_MAX],
    /// Of each rank of the node: `[slot][width]`, where rows land.
    pub landings: [Pointer<u32>; RANKS_MAX],
    /// `[place][width]`: what the ranks of the node have summed.
    pub sums: Pointer<u32>,
    /// Shards.
    pub shards_count: u32,
    /// All nodes.
    pub nodes: u32,
    /// Ranks of the node.
    pub ranks: u32,
    /// This one among them.
    pub rank: u32,
    /// Entries that a rank can have.
    pub capacity: u32,
    /// Elements from one row to the next, a multiple of 8.
    pub width: u32,
    /// To spread: bytes of an element, 2 or 4. To gather: what sums are stored as, a [`super::Dtype`], fp32 or bf16.
    pub element: u32,
    /// As for [`RailLists`].
    pub of_all: u32,
}

const _: () =
    assert!(size_of::<RailLists>() == 96 && size_of::<RailMark>() == 72 && size_of::<RailRows>() == 208);

// SAFETY: `rails.cu` has the same struct.
unsafe impl Kernel for RailLists {
    const ID: Id = Id::RailLists;
    const NAME: &'static str = "rail_lists";
    const THREADS: u32 = 256;
}

// SAFETY: `rails.cu` has the same struct.
unsafe impl Kernel for RailMark {
    const ID: Id = Id::RailMark;
    const NAME: &'static str = "rail_mark";
    const THREADS: u32 = 256;
}

impl RailRows {
    /// Enqueues sending rows that came to the ranks of the node that named them, on any number of blocks.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
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

    /// Enqueues adding up what the ranks of the node have summed, in the order of their places, on any number of
    /// blocks.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
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

/// [`RailRows::spread`] by teams of so many lanes.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct Spread<const LANES: u32>(RailRows);

/// [`RailRows::gather`] by teams of so many lanes.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct Gather<const LANES: u32>(RailRows);

// SAFETY: `rails.cu` has the same struct.
unsafe impl<const LANES: u32> Kernel for Spread<LANES> {
    const ID: Id = match LANES {
        4 => Id::RailSpreadBy4,
        16 => Id::RailSpreadBy16,
        32 => Id::RailSpreadBy32,
        _ => panic!("no such team"),
    };
    const NAME: &'static str = "rail_spread";
    const THREADS: u32 = 256;
}

// SAFETY: `rails.cu` has the same struct.
unsafe impl<const LANES: u32> Kernel for Gather<LANES> {
    const ID: Id = match LANES {
        4 => Id::RailGatherBy4,
        16 => Id::RailGatherBy16,
        32 => Id::RailGatherBy32,
        _ => panic!("no such team"),
    };
    const NAME: &'static str = "rail_gather";
    const THREADS: u32 = 256;
}
