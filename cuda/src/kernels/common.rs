//! `common.cuh`: sets of keys, and the columns of ids that look up tables.

#[cfg(doc)]
use super::Dtype;
use super::RANKS_MAX;
use crate::runtime::Pointer;

/// Keys per group. The span of an owner is a multiple of it.
pub const GROUP_KEYS: usize = 65536;
/// Keys per line; [`KeySet::lines`] has one number per line.
pub const LINE_KEYS: usize = 256;

/// Where the ranks of a node have some data, each in its own memory; or where a rank has the data of each node, which
/// it exchanges with other nodes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    at: [Pointer<u32>; RANKS_MAX],
    spacing: u64,
    node: u64,
}

impl Addresses {
    /// No data.
    pub const NONE: Self = Self::of_ranks([Pointer::NULL; RANKS_MAX]);

    /// The addresses of the ranks of a node; the rest is null.
    pub const fn of_ranks(at: [Pointer<u32>; RANKS_MAX]) -> Self {
        Self { at, spacing: 0, node: 0 }
    }

    /// The data of node `n` starts `n * spacing` bytes after `others`, and the data of this node, `node`, as far after
    /// `own`.
    ///
    /// # Panics
    /// If the spacing is 0, or not a multiple of four.
    pub fn of_nodes(others: Pointer<u32>, own: Pointer<u32>, spacing: usize, node: usize) -> Self {
        assert!(spacing > 0 && spacing.is_multiple_of(4), "nodes have data of whole words");
        let mut at = [Pointer::NULL; RANKS_MAX];
        at[..2].copy_from_slice(&[others, own]);
        Self { at, spacing: spacing as u64, node: node as u64 }
    }
}

const _: () = assert!(size_of::<Addresses>() == 80);

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
    /// How bags are pooled: a [`BagPooling`].
    pub pooling: u32,
    /// The number of the shard's first row at every owner.
    pub base: u32,
    /// Rows of its table.
    pub rows: u32,
    /// Words from one row of the shard to the next.
    pub row_words: u32,
    /// Elements of a row, a multiple of 4.
    pub dim: u32,
    /// Where its vector starts within a sample's vectors; of [`BagPooling::Separate`] rows, where the first one starts
    /// among the keys.
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
    /// Where the factors of the column's ids start, if it is pooled [`BagPooling::ByFactors`].
    pub factors: u32,
    /// Elements from the row of one position to the next, if rows are [`BagPooling::Separate`].
    pub key_stride: u32,
}

/// How the rows of a bag are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BagPooling {
    /// Added up.
    Sum,
    /// Added up and divided by their number.
    Mean,
    /// Each multiplied by its factor, then added up.
    ByFactors,
    /// Not at all: each look-up is a bag of its own, numbered by its position in the column.
    Separate,
}

impl Feature {
    /// Instead of an offset: every sample has the same number of ids.
    pub const FIXED: u32 = u32::MAX;
    /// Instead of an owner: row `id` of the table belongs to rank `id % ranks`.
    pub const TURNS: u32 = u32::MAX;
    /// Instead of a key: the set of rows that every rank stores has no row of the table.
    pub const UNLISTED: u32 = u32::MAX;
}
