//! `merge.cu`.

use super::{Id, Kernel, KeySet, RANKS_MAX};
use crate::buffer::Pointer;

/// Copies lists of rows, and adds them to a set: of each rank the rows that it looks up at this owner, then of each
/// rank those that every rank has, where there are such. Grid: x over entries, any number of blocks, and y over lists.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Merge {
    /// Of each rank: the rows that it looks up, by owner.
    pub lists: [Pointer<u32>; RANKS_MAX],
    /// Of each rank: where the rows of each owner begin, and the end.
    pub starts: [Pointer<u32>; RANKS_MAX],
    /// `[rank][capacity]`: rows of this owner, ascending, and from `owned` on rows that every rank has.
    pub entries: Pointer<u32>,
    /// Of each list: the slot of its first row at the rank that it is of.
    pub firsts: Pointer<u32>,
    /// Of each list: its rows.
    pub counts: Pointer<u32>,
    /// Empty at first; of rows of this owner.
    pub set: KeySet,
    /// Entries that a rank can have.
    pub capacity: u32,
    /// Entries that it can have of rows that this owner alone has.
    pub owned: u32,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
    /// The key in the set of the first number of what every rank has: 0, or behind the keys of all nodes.
    pub of_all: u32,
    /// 0.
    pub reserved: u32,
}

/// Says of each row of the union which entry of each rank it is. Grid: as for [`Merge`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Link {
    /// As [`Merge`] left them.
    pub entries: Pointer<u32>,
    /// As [`Merge`] left them.
    pub counts: Pointer<u32>,
    /// The union, numbered.
    pub set: KeySet,
    /// `[row of the union][rank]`: 1 + the place of its entry. Zeros at first.
    pub sources: Pointer<u32>,
    /// Entries that a rank can have.
    pub capacity: u32,
    /// Entries that it can have of rows that this owner alone has.
    pub owned: u32,
    /// All ranks.
    pub ranks: u32,
    /// As for [`Merge`].
    pub of_all: u32,
}

const _: () = assert!(size_of::<Merge>() == 200 && size_of::<Link>() == 64);

// SAFETY: `merge.cu` has the same struct.
unsafe impl Kernel for Merge {
    const ID: Id = Id::Merge;
    const NAME: &'static str = "merge_mark";
    const THREADS: u32 = 256;
}

// SAFETY: `merge.cu` has the same struct.
unsafe impl Kernel for Link {
    const ID: Id = Id::Link;
    const NAME: &'static str = "merge_link";
    const THREADS: u32 = 256;
}
