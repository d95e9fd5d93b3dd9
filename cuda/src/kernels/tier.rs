//! `tier.cu`.

use bytemuck::{Pod, Zeroable};

#[cfg(doc)]
use super::Feature;
use super::names::Family;
use super::{Id, Kernel, KeySet};
use crate::runtime::Pointer;

/// Where the rows of a part of a table are, of which a GPU stores the hot rows and some landing regions.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct TierPart {
    /// The first word of its first stored row.
    pub words: u64,
    /// The number of its first row among the rows of all tables.
    pub first: u32,
    /// Its rows.
    pub rows: u32,
    /// The number of its first stored row among all stored rows.
    pub stored: u32,
    /// Its hot rows, which are the first stored ones.
    pub hot: u32,
    /// The key of its first row in the set of hot rows, or [`Feature::UNLISTED`] if all of its rows are stored.
    pub key: u32,
    /// Members of the set before that key.
    pub members_before: u32,
    /// Rows of a landing region.
    pub landing: u32,
    /// Where its cold rows start in a region's lists.
    pub list: u32,
    /// Words from one row to the next.
    pub row_words: u32,
    /// Its first row's number in the table.
    pub row: u32,
    /// Distance to the next row in the table.
    pub step: u32,
    /// 0.
    pub reserved: u32,
}

/// A batch and the distinct rows that it looks up on this GPU.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tier {
    /// The parts of tables.
    pub parts: Pointer<TierPart>,
    /// The hot rows of the parts of which not all rows are stored.
    pub hot: KeySet,
    /// The distinct rows of the batch, ascending.
    pub rows: Pointer<u32>,
    /// Their number.
    pub count: Pointer<u32>,
    /// Per distinct row, its number among all stored rows: written.
    pub stored_rows: Pointer<u32>,
    /// Per distinct row, its number among the stored rows of its part: written.
    pub stored_ids: Pointer<u32>,
    /// Per stored row of a part with cold rows: its number in the table.
    pub listed: Pointer<u32>,
    /// By its number in the set of hot rows: the stored row of its part that has it. Null if hot rows are stored in
    /// order.
    pub places: Pointer<u32>,
    /// By its number in the set of hot rows: how many batches have looked it up, up to 65535. Null if `places` is.
    pub counts: Pointer<u16>,
    /// `[region][list]`: the cold rows of each part, ascending.
    pub cold: Pointer<u32>,
    /// `[region][list]`: the stored row from which each of them is copied, if the batch before has it.
    pub sources: Pointer<u32>,
    /// `[region][part]`: how many there are, but at most as many as a landing region has rows.
    pub cold_counts: Pointer<u32>,
    /// In page-locked memory: per cold row, its number among the cold rows of the part.
    pub host_numbers: Pointer<u32>,
    /// In page-locked memory: per cold row, 1 if it must be copied from the host; else 0.
    pub host_absent: Pointer<u32>,
    /// In page-locked memory: per part, how many cold rows the batch has.
    pub host_counts: Pointer<u32>,
    /// The stored rows.
    pub storage: Pointer<f32>,
    /// Number of parts.
    pub parts_count: u32,
    /// Entries of a region's lists.
    pub lists: u32,
    /// The landing region of the batch.
    pub region: u32,
    /// The landing region of the batch before.
    pub previous: u32,
}

/// Finds the stored rows of a batch, and lists its cold rows. Grid: one block per part.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TierLocate(pub Tier);

/// Finds the cold rows that the batch before has, too, after [`TierLocate`]. Grid: x any, y the parts.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TierFind(pub Tier);

/// Copies the rows that [`TierFind`] has found. Grid: x any, y the parts.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TierForward(pub Tier);

/// Makes look-ups refer to stored rows, after [`TierLocate`]. Grid: any.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TierIds {
    /// Per look-up: the number of its distinct row, which is replaced by its number among the stored rows of its part.
    pub ids: Pointer<u32>,
    /// Per distinct row: that number.
    pub stored_ids: Pointer<u32>,
    /// The number of distinct rows.
    pub count: Pointer<u32>,
    /// Room for look-ups.
    pub ids_max: u32,
    /// 0.
    pub reserved: u32,
}

/// Makes the entries of an owner's lists refer to stored rows, after [`TierLocate`]. Grid: x over entries, y over
/// lists.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TierEntries {
    /// As [`super::Merge::entries`]: rows, which are replaced by their numbers among all stored rows.
    pub entries: Pointer<u32>,
    /// As [`super::Merge::counts`].
    pub counts: Pointer<u32>,
    /// The distinct rows, numbered.
    pub set: KeySet,
    /// Per distinct row: its number among all stored rows.
    pub stored_rows: Pointer<u32>,
    /// As [`super::Merge::capacity`].
    pub capacity: u32,
    /// As [`super::Merge::owned`].
    pub owned: u32,
    /// Ranks of the node.
    pub ranks: u32,
    /// 0.
    pub reserved: u32,
}

/// Makes rows of a part change places with rows of a landing region. Grid: any.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TierSwap {
    /// The first stored row of the part.
    pub rows: Pointer<f32>,
    /// The first row of the region.
    pub landed: Pointer<f32>,
    /// Per row of the region: the number of the stored row of the part with which it changes places.
    pub places: Pointer<u32>,
    /// Per row of the region: its number in the table.
    pub numbers: Pointer<u32>,
    /// Per stored row of the part, its number in the table: written.
    pub listed: Pointer<u32>,
    /// Rows that change places.
    pub count: u32,
    /// Words from one row to the next.
    pub row_words: u32,
}

// SAFETY: `tier.cu` has the same struct.
unsafe impl Kernel for TierLocate {
    const ID: Id = Family::TierLocate.variant([]);
    const THREADS: u32 = 1024;
}

// SAFETY: `tier.cu` has the same struct.
unsafe impl Kernel for TierFind {
    const ID: Id = Family::TierFind.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `tier.cu` has the same struct.
unsafe impl Kernel for TierForward {
    const ID: Id = Family::TierForward.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `tier.cu` has the same struct.
unsafe impl Kernel for TierIds {
    const ID: Id = Family::TierIds.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `tier.cu` has the same struct.
unsafe impl Kernel for TierEntries {
    const ID: Id = Family::TierEntries.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `tier.cu` has the same struct.
unsafe impl Kernel for TierSwap {
    const ID: Id = Family::TierSwap.variant([]);
    const THREADS: u32 = 256;
}
