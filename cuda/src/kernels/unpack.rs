//! `unpack.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Id, Kernel, Step};
use crate::runtime::Pointer;

/// Packed blocks on a GPU, one per slot, with what was computed from them on arrival.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    /// `[slot][block_bytes]`
    pub blocks: Pointer<u8>,
    /// `[slot][ragged column][begins_column]`: where each sample's bag starts among the column's ids, and where the
    /// last one ends.
    pub begins: Pointer<u32>,
    /// `[slot]`: becomes 1 if bag sizes violate the schema.
    pub wrong: Pointer<u32>,
    /// Bytes from one slot to the next.
    pub block_bytes: u64,
    /// Elements of `begins` per slot.
    pub begins_slot: u32,
    /// Elements of `begins` per column, one more than the samples of a block.
    pub begins_column: u32,
}

/// A categorical column, in blocks and in batches.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct IdColumn {
    /// Ids must be below this, unless it is [`IdColumn::ANY_ID`].
    pub rows: u64,
    /// Number of the first of its streams: sizes, starts, ids, and weights if ids have some.
    pub stream: u32,
    /// Ids per bag; for ragged columns, the most ids per bag.
    pub hotness: u32,
    /// Where its ids start in a batch.
    pub ids: u32,
    /// Where its offsets start, if it is ragged.
    pub offsets: u32,
    /// For ragged columns: its number among them. For fixed hotness: the number of its first tile.
    pub index: u32,
    /// Where its ids of 64 bits start in a batch, if its table is dynamic; or [`IdColumn::NONE`].
    pub long_ids: u32,
}

impl IdColumn {
    /// Instead of a number of rows: any number may be an id.
    pub const ANY_ID: u64 = u64::MAX;
    /// Its table is not dynamic.
    pub const NONE: u32 = u32::MAX;
}

/// A categorical column whose ids have weights.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct WeightedColumn {
    /// Its number among the ragged columns.
    pub ragged: u32,
    /// Where the factors of its ids start in a batch.
    pub factors: u32,
    /// 1 if a bag's vector is the mean of its rows, 0 if it is their sum.
    pub mean: u32,
    /// 0.
    pub reserved: u32,
}

/// Finds where the bags of a newly arrived block start. Grid: see [`Index::grid`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Index {
    /// The ring that has the block.
    pub ring: Ring,
    /// The ragged columns.
    pub columns: Pointer<IdColumn>,
    /// The block's slot.
    pub slot: u32,
    /// The block's samples.
    pub samples: u32,
}

impl Index {
    /// Grid for this many ragged columns.
    pub fn grid(&self, columns: u32) -> (u32, u32) {
        (self.samples.div_ceil(UNPACK_THREADS), columns)
    }
}

// SAFETY: `unpack.cu` has the same struct.
unsafe impl Kernel for Index {
    const ID: Id = Family::UnpackIndex.variant([]);
    const THREADS: u32 = UNPACK_THREADS;
}

/// Parameters of all kernels that unpack a batch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Unpack {
    /// Blocks.
    pub ring: Ring,
    /// Per sample: the slot of its block, and its row there.
    pub rows: Pointer<[u32; 2]>,
    /// Has the number of samples, and the index for faults.
    pub step: Pointer<Step>,
    /// Per head: the number of its label's stream.
    pub label_streams: Pointer<u32>,
    /// The columns of fixed hotness.
    pub fixed: Pointer<IdColumn>,
    /// The ragged columns.
    pub ragged: Pointer<IdColumn>,
    /// The columns whose ids have weights.
    pub weighted: Pointer<WeightedColumn>,
    /// `[head][sample]`: becomes NaN if missing.
    pub labels: Pointer<f32>,
    /// One per sample.
    pub weights: Pointer<f32>,
    /// `[sample][column]`
    pub dense: Pointer<f32>,
    /// Receives the ids.
    pub ids: Pointer<u32>,
    /// Receives the ids of dynamic tables.
    pub long_ids: Pointer<u64>,
    /// Receives the offsets of ragged columns.
    pub offsets: Pointer<u32>,
    /// Receives the factors of ids in columns with weights.
    pub factors: Pointer<f32>,
    /// `[ragged column][tile]`: see [`Unpack::tiles`].
    pub sums: Pointer<u32>,
    /// One per index of losses: becomes 1 if a value violates the schema.
    pub faults: Pointer<u32>,
    /// The most samples.
    pub samples: u32,
    /// Heads.
    pub heads: u32,
    /// Dense columns.
    pub dense_columns: u32,
    /// Columns of fixed hotness.
    pub fixed_columns: u32,
    /// The number of the weights' stream, or [`Unpack::NO_STREAM`].
    pub weight_stream: u32,
    /// The number of the first dense column's stream.
    pub dense_stream: u32,
    /// 1 if dense columns are f16, 0 if they are f32.
    pub dense_f16: u32,
    /// 0.
    pub reserved: u32,
}

const UNPACK_THREADS: u32 = 256;
/// Dense columns of a thread block.
const UNPACK_COLUMNS: u32 = 8;

impl Unpack {
    /// Ids per tile of a column of fixed hotness.
    pub const TILE: u32 = 2048;
    /// Instead of a stream's number: there is no stream.
    pub const NO_STREAM: u32 = u32::MAX;

    /// Tiles of samples per ragged column.
    pub const fn tiles(samples: u32) -> u32 {
        samples.div_ceil(UNPACK_THREADS)
    }
}

/// Unpacks labels, weights and dense columns.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct UnpackValues(pub Unpack);

impl UnpackValues {
    /// Blocks.
    pub fn grid(&self) -> (u32, u32) {
        let Unpack { samples, heads, dense_columns, .. } = self.0;
        (Unpack::tiles(samples), heads + 1 + dense_columns.div_ceil(UNPACK_COLUMNS))
    }
}

// SAFETY: `unpack.cu` has the same struct.
unsafe impl Kernel for UnpackValues {
    const ID: Id = Family::UnpackValues.variant([]);
    const THREADS: u32 = UNPACK_THREADS;
}

/// Unpacks ids of columns of fixed hotness. Grid: one block per tile of all these columns.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct UnpackFixed(pub Unpack);

// SAFETY: `unpack.cu` has the same struct.
unsafe impl Kernel for UnpackFixed {
    const ID: Id = Family::UnpackFixed.variant([]);
    const THREADS: u32 = UNPACK_THREADS;
}

/// Counts the ids of each tile of samples. Grid: tiles times ragged columns.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct UnpackSizes(pub Unpack);

// SAFETY: `unpack.cu` has the same struct.
unsafe impl Kernel for UnpackSizes {
    const ID: Id = Family::UnpackSizes.variant([]);
    const THREADS: u32 = UNPACK_THREADS;
}

/// Unpacks offsets and ids of ragged columns, after [`UnpackSizes`]. Grid: tiles times ragged columns.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct UnpackBags(pub Unpack);

// SAFETY: `unpack.cu` has the same struct.
unsafe impl Kernel for UnpackBags {
    const ID: Id = Family::UnpackBags.variant([]);
    const THREADS: u32 = UNPACK_THREADS;
}

/// Unpacks the factors of ids with weights, after [`UnpackBags`]. Grid: tiles times columns with weights.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct UnpackFactors(pub Unpack);

// SAFETY: `unpack.cu` has the same struct.
unsafe impl Kernel for UnpackFactors {
    const ID: Id = Family::UnpackFactors.variant([]);
    const THREADS: u32 = UNPACK_THREADS;
}
