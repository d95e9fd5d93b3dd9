//! `route.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Feature, Id, Kernel, KeySet};
use crate::runtime::Pointer;

/// A look-up's slot and bag.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Pair {
    /// The number of its row among the distinct ones.
    pub slot: u32,
    /// Its feature and sample.
    pub bag: u32,
}

/// Look-ups that are sorted together.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Segment {
    /// The position of their first feature in the order of segments.
    pub first: u32,
    /// Number of their features.
    pub features: u32,
    /// The smallest key.
    pub base: u32,
    /// Their first tile.
    pub tile: u32,
    /// Passes that sort them, at most [`Route::PASSES_MAX`].
    pub passes: u32,
    /// Bits of a key that a pass sorts by, at most [`Route::DIGIT_BITS`].
    pub digit_bits: u32,
}

/// Parameters of the kernels that sort a batch's look-ups by key and number the distinct keys.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// All features, [`Route::FEATURES_MAX`] at most.
    pub features: Pointer<Feature>,
    /// The features' numbers in the order of segments.
    pub order: Pointer<u32>,
    /// Ordered by base.
    pub segments: Pointer<Segment>,
    /// Segment of each tile.
    pub tile_segments: Pointer<u32>,
    /// Indexed as the features say.
    pub ids: Pointer<u32>,
    /// Of ids in columns that are pooled by factors, indexed as the features say.
    pub factors: Pointer<f32>,
    /// Indexed as the features say.
    pub offsets: Pointer<u32>,
    /// The number of samples.
    pub samples_count: Pointer<u32>,
    /// One per feature and one more.
    pub begins: Pointer<u32>,
    /// [`Route::histogram_words`], zero at the start, like all that follows up to `faults`.
    pub histograms: Pointer<u32>,
    /// [`Route::state_words`].
    pub states: Pointer<u32>,
    /// One per tile of all look-ups.
    pub tile_states: Pointer<u32>,
    /// One per pass and one more.
    pub tickets: Pointer<u32>,
    /// Counts ids that are out of range for their table; they are replaced by the last row.
    pub faults: Pointer<u32>,
    /// Room for all look-ups: their keys and bags.
    pub pairs: Pointer<Pair>,
    /// Per look-up its slot and its bag, ascending. A bag is the feature's number above `sample_bits` and the
    /// sample's below.
    pub sorted: Pointer<Pair>,
    /// Per sorted look-up whose feature is pooled by factors: its factor.
    pub sorted_factors: Pointer<f32>,
    /// Per slot: the row at its owner.
    pub rows: Pointer<u32>,
    /// Null, or per slot: where its bags start; then the end of the last one.
    pub starts: Pointer<u32>,
    /// Null, or per owner: its first slot; then the number of slots.
    pub owner_starts: Pointer<u32>,
    /// Null, or per look-up its slot, at the feature's first look-up plus the position within the feature, as ids are
    /// stored in a column.
    pub slots: Pointer<u32>,
    /// Number of look-ups, and of distinct rows.
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
    /// If `by_position`: bits of a look-up's position in its feature; the feature's number must fit above them.
    pub position_bits: u32,
    /// Ranks of a node.
    pub ranks: u32,
    /// Keys per owner: the keys of its rows start at `owner * span`. Over several nodes, those of all ranks of its
    /// rail, one after another.
    pub span: u32,
    /// The rows that every rank stores, of tables of which it does not store all, by [`Feature::frequent`]; numbered.
    pub frequent: KeySet,
    /// Number of the first of them among the rows of each rank.
    pub frequent_base: u32,
    /// The number of ranks, plus one if there are rows that every rank stores: these have the keys of that extra
    /// owner.
    pub owners: u32,
    /// Nodes.
    pub nodes: u32,
    /// 1 if slots or factors are needed, for which look-ups are sorted with their positions, not with their bags; else
    /// 0.
    pub by_position: u32,
}

const _: () = assert!(size_of::<Segment>() == 24 && size_of::<Route>() == 248);

impl Route {
    /// Look-ups per tile, which one block sorts.
    pub const TILE: usize = 4096;
    /// The most bits of a digit.
    pub const DIGIT_BITS: u32 = 9;
    /// The most passes of a table: enough to sort 32 bits.
    pub const PASSES_MAX: u32 = 4;
    /// The most features.
    pub const FEATURES_MAX: usize = 512;
    /// The most look-ups.
    pub const LOOK_UPS_MAX: u64 = (1 << 30) - 1;
    /// Tiles per block of [`RouteCount`].
    const COUNT_TILES: u32 = 2;

    /// Words of `histograms` for this many segments.
    pub fn histogram_words(segments: usize) -> usize {
        (segments * Self::PASSES_MAX as usize) << Self::DIGIT_BITS
    }

    /// Words of `states` for this many tiles and passes.
    pub fn state_words(tiles: usize, passes: u32) -> usize {
        (tiles * passes as usize) << Self::DIGIT_BITS
    }

    /// Grid of [`RouteCount`].
    pub fn count_grid(&self) -> (u32, u32) {
        (self.tiles.div_ceil(Self::COUNT_TILES), 1)
    }
}

/// Finds where each feature's look-ups start. Grid: one block.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct RouteBegin(pub Route);

// SAFETY: `route.cu` has the same struct.
unsafe impl Kernel for RouteBegin {
    const ID: Id = Family::RouteBegin.variant([]);
    const THREADS: u32 = 512;
}

/// Counts the digits of all passes, after [`RouteBegin`]. Grid: [`Route::count_grid`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct RouteCount(pub Route);

// SAFETY: `route.cu` has the same struct.
unsafe impl Kernel for RouteCount {
    const ID: Id = Family::RouteCount.variant([]);
    const THREADS: u32 = 256;
}

/// Sorts by a digit; the passes follow [`RouteCount`] in order. Grid: one block per tile.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct RouteSort(pub Route);

// SAFETY: `route.cu` has the same struct.
unsafe impl Kernel for RouteSort {
    const ID: Id = Family::RouteSort.variant([]);
    const THREADS: u32 = 256;
}

/// Numbers the distinct rows, after the last pass. Grid: one block per tile of the most look-ups.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct RouteNumber(pub Route);

/// The same if some features are pooled by factors.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct RouteNumberFactors(pub Route);

// SAFETY: `route.cu` has the same struct.
unsafe impl Kernel for RouteNumber {
    const ID: Id = Family::RouteNumber.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `route.cu` has the same struct.
unsafe impl Kernel for RouteNumberFactors {
    const ID: Id = Family::RouteNumberFactors.variant([]);
    const THREADS: u32 = 256;
}
