//! `merge.cu`.

use super::names::Family;
use super::{Id, Kernel, KeySet, RANKS_MAX};
use crate::runtime::Pointer;

/// Copies lists of rows and adds them to a set: per rank the rows that it looks up at this owner, then per rank those
/// that every rank stores, if any. Grid: x over entries, any number of blocks; y over lists.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Merge {
    /// Per rank: the rows that it looks up, by owner.
    pub lists: [Pointer<u32>; RANKS_MAX],
    /// Per rank: where the rows of each owner start, and the end.
    pub starts: [Pointer<u32>; RANKS_MAX],
    /// `[rank][capacity]`: rows of this owner, ascending, and from `owned` on rows that every rank stores.
    pub entries: Pointer<u32>,
    /// Per list: the slot of its first row at the rank that sent it.
    pub firsts: Pointer<u32>,
    /// Per list: number of its rows.
    pub counts: Pointer<u32>,
    /// Rows of this owner. Must be empty at the start.
    pub set: KeySet,
    /// Entries that a rank can have.
    pub capacity: u32,
    /// Entries that it can have of rows that only this owner stores.
    pub owned: u32,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// The key, in the set, of the first row that every rank stores: 0, or after the keys of all nodes.
    pub of_all: u32,
    /// 0.
    pub reserved: u32,
}

/// Records for each row of the union which entry it is at each rank. Grid: as for [`Merge`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Link {
    /// As [`Merge`] writes them.
    pub entries: Pointer<u32>,
    /// As [`Merge`] writes them.
    pub counts: Pointer<u32>,
    /// The union, numbered.
    pub set: KeySet,
    /// `[row of the union][rank]`: 1 + the index of its entry. Zeros at the start.
    pub sources: Pointer<u32>,
    /// Entries that a rank can have.
    pub capacity: u32,
    /// Entries that it can have of rows that only this owner stores.
    pub owned: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// As for [`Merge`].
    pub of_all: u32,
}

const _: () = assert!(size_of::<Merge>() == 200 && size_of::<Link>() == 64);

// SAFETY: `merge.cu` has the same struct.
unsafe impl Kernel for Merge {
    const ID: Id = Family::Merge.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `merge.cu` has the same struct.
unsafe impl Kernel for Link {
    const ID: Id = Family::Link.variant([]);
    const THREADS: u32 = 256;
}
