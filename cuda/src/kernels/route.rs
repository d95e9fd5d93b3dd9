//! `route.cu`.

use bytemuck::{Pod, Zeroable};

use super::{Feature, Id, Kernel, KeySet};
use crate::buffer::Pointer;

/// A look-up's slot and bag.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Pair {
    /// The number of its row among the distinct ones.
    pub slot: u32,
    /// Its feature and sample.
    pub bag: u32,
}

/// Look-ups that are sorted by themselves.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Segment {
    /// The place of their first feature in the order of segments.
    pub first: u32,
    /// Their features.
    pub features: u32,
    /// No key is below it.
    pub base: u32,
    /// Their first tile.
    pub tile: u32,
    /// Passes that sort them, [`Route::PASSES_MAX`] at most.
    pub passes: u32,
    /// Bits of a key that a pass sorts by, [`Route::DIGIT_BITS`] at most.
    pub digit_bits: u32,
}

/// What the kernels take that sort a batch's look-ups by key and number the distinct keys.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// All features, [`Route::FEATURES_MAX`] at most.
    pub features: Pointer<Feature>,
    /// The features' numbers in the order of segments.
    pub order: Pointer<u32>,
    /// In the order of their bases.
    pub segments: Pointer<Segment>,
    /// Of each tile: its segment.
    pub tile_segments: Pointer<u32>,
    /// Where the features say.
    pub ids: Pointer<u32>,
    /// Where the features say.
    pub offsets: Pointer<u32>,
    /// How many samples there are.
    pub samples_count: Pointer<u32>,
    /// One a feature and one more.
    pub begins: Pointer<u32>,
    /// [`Route::histogram_words`], zeros at first, as all that follows up to `faults`.
    pub histograms: Pointer<u32>,
    /// [`Route::state_words`].
    pub states: Pointer<u32>,
    /// One a tile of all look-ups.
    pub tile_states: Pointer<u32>,
    /// One a pass and one more.
    pub tickets: Pointer<u32>,
    /// Counts ids that are not below their table's rows, which are taken for the last row.
    pub faults: Pointer<u32>,
    /// Room for all look-ups: their keys and bags.
    pub pairs: Pointer<Pair>,
    /// Of each look-up its slot and its bag, ascending. A bag is a feature's number above `sample_bits`, and a sample's
    /// below.
    pub sorted: Pointer<Pair>,
    /// Of each slot: the row at its owner.
    pub rows: Pointer<u32>,
    /// Null, or of each slot: where its bags begin; behind the last one, where they end.
    pub starts: Pointer<u32>,
    /// Null, or of each owner: its first slot; behind the last one, how many there are.
    pub owner_starts: Pointer<u32>,
    /// Null, or of each look-up its slot: where its feature's begin, and by its place there as ids lie in a column.
    pub slots: Pointer<u32>,
    /// Look-ups, and distinct rows.
    pub counts: Pointer<u32>,
    /// Features.
    pub features_count: u32,
    /// Tiles of all segments.
    pub tiles: u32,
    /// The most passes of a segment.
    pub passes: u32,
    /// The pass, for [`RouteSort`].
    pub pass: u32,
    /// Bits of a bag that are the sample's.
    pub sample_bits: u32,
    /// Where slots are wanted: bits of a look-up's place in its feature; the feature's number must fit above them.
    pub place_bits: u32,
    /// Those of a node.
    pub ranks: u32,
    /// Keys of an owner: its rows' keys are those from `owner * span` on; over nodes those of all ranks of its rail,
    /// one behind the other.
    pub span: u32,
    /// Rows that every rank has, of tables of which it has not all, by [`Feature::frequent`]; numbered.
    pub frequent: KeySet,
    /// The number of the first of them among the rows of each rank.
    pub frequent_base: u32,
    /// Ranks, and one more where there are rows that every rank has: their keys are those of that owner.
    pub owners: u32,
    /// Nodes.
    pub nodes: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Segment>() == 24 && size_of::<Route>() == 232);

impl Route {
    /// Look-ups of a tile, which one block sorts.
    pub const TILE: usize = 4096;
    /// Bits of a digit, at most.
    pub const DIGIT_BITS: u32 = 9;
    /// Passes of a table, at most: as many sort 32 bits.
    pub const PASSES_MAX: u32 = 4;
    /// Features, at most.
    pub const FEATURES_MAX: usize = 512;
    /// Look-ups, at most.
    pub const LOOK_UPS_MAX: u64 = (1 << 30) - 1;
    /// Tiles that a block of [`RouteCount`] takes.
    const COUNT_TILES: u32 = 2;

    /// Words of `histograms` for so many segments.
    pub fn histogram_words(segments: usize) -> usize {
        (segments * Self::PASSES_MAX as usize) << Self::DIGIT_BITS
    }

    /// Words of `states` for so many tiles and passes.
    pub fn state_words(tiles: usize, passes: u32) -> usize {
        (tiles * passes as usize) << Self::DIGIT_BITS
    }

    /// Blocks of [`RouteCount`].
    pub fn count_grid(&self) -> (u32, u32) {
        (self.tiles.div_ceil(Self::COUNT_TILES), 1)
    }
}

/// Finds where each feature's look-ups begin. Grid: one block.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct RouteBegin(pub Route);

// SAFETY: `route.cu` has the same struct.
unsafe impl Kernel for RouteBegin {
    const ID: Id = Id::RouteBegin;
    const NAME: &'static str = "route_begin";
    const THREADS: u32 = 512;
}

/// Counts the digits of all passes, after [`RouteBegin`]. Grid: [`Route::count_grid`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct RouteCount(pub Route);

// SAFETY: `route.cu` has the same struct.
unsafe impl Kernel for RouteCount {
    const ID: Id = Id::RouteCount;
    const NAME: &'static str = "route_count";
    const THREADS: u32 = 256;
}

/// Sorts by a digit; the passes follow [`RouteCount`] in order. Grid: one block a tile.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct RouteSort(pub Route);

// SAFETY: `route.cu` has the same struct.
unsafe impl Kernel for RouteSort {
    const ID: Id = Id::RouteSort;
    const NAME: &'static str = "route_sort";
    const THREADS: u32 = 256;
}

/// Numbers the distinct rows, after the last pass. Grid: one block a tile of all look-ups that there is room for.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct RouteNumber(pub Route);

// SAFETY: `route.cu` has the same struct.
unsafe impl Kernel for RouteNumber {
    const ID: Id = Id::RouteNumber;
    const NAME: &'static str = "route_number";
    const THREADS: u32 = 256;
}
