//! `common.cuh`: sets of keys, and the columns of ids that look up tables.

#[cfg(doc)]
use super::Dtype;
use crate::runtime::Pointer;

/// Keys per group. The span of an owner is a multiple of it.
pub const GROUP_KEYS: usize = 65536;
/// Keys per line; [`KeySet::lines`] has one number per line.
pub const LINE_KEYS: usize = 256;

/// A set of keys.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KeySet {
    /// One bit per key.
    pub bits: Pointer<u32>,
    /// Members in each group of keys.
    pub groups: Pointer<u32>,
    /// Members before each line of keys.
    pub lines: Pointer<u32>,
}

/// A column of ids and the shard of a table that it looks up.
#[repr(C)]
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Feature {
    /// Where the shard starts in this GPU's memory, in words of four bytes.
    pub words: u64,
    /// Where the column's ids start.
    pub ids: u32,
    /// Where the column's offsets start, or [`Feature::FIXED`].
    pub offsets: u32,
    /// Ids per sample; with offsets, the most ids per sample.
    pub hotness: u32,
    /// 1 if a bag's vector is the mean of its rows, 0 if it is their sum.
    pub mean: u32,
    /// The number of the shard's first row at every owner.
    pub base: u32,
    /// Rows of its table.
    pub rows: u32,
    /// Words from one row of the shard to the next.
    pub row_words: u32,
    /// Elements of a row, a multiple of 4.
    pub dim: u32,
    /// Where its vector starts within a sample's vectors.
    pub vector_offset: u32,
    /// The number of the shard.
    pub shard: u32,
    /// Type of the shard's rows: a [`Dtype`].
    pub dtype: u32,
    /// Where the slots of its look-ups start.
    pub slots: u32,
    /// The rank that owns all of the shard's rows; [`Feature::TURNS`]; or the number of ranks if every rank stores
    /// them.
    pub owner: u32,
    /// The key of the table's first row in the set of rows that every rank stores, or [`Feature::UNLISTED`].
    pub frequent: u32,
}

impl Feature {
    /// Instead of an offset: every sample has the same number of ids.
    pub const FIXED: u32 = u32::MAX;
    /// Instead of an owner: row `id` of the table belongs to rank `id % ranks`.
    pub const TURNS: u32 = u32::MAX;
    /// Instead of a key: the set of rows that every rank stores has no row of the table.
    pub const UNLISTED: u32 = u32::MAX;
}
