//! `auc.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Id, Kernel};
use crate::runtime::Pointer;

/// Keys per tile, which one block processes.
const TILE: u32 = 4096;
/// Values of a digit.
const DIGITS: u32 = 256;
/// Digits of a key's score.
pub const KEY_DIGITS: u32 = 4;

/// Counts the digits of ranking keys. Grid: [`KeysCount::grid`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KeysCount {
    /// High word: the score in sortable form. Low word: the label, or 2 if there is none; with weights, the label in
    /// the highest bit and the weight's bits below it, all 0 if there is no label.
    pub keys: Pointer<u64>,
    /// `[digit][tile]`: [`KeysCount::counts`] words.
    pub counts: Pointer<u32>,
    /// Keys, one or more.
    pub count: u32,
    /// From 0, the lowest digit, to [`KEY_DIGITS`].
    pub pass: u32,
}

impl KeysCount {
    /// Tiles of `count` keys.
    pub fn tiles(count: u32) -> u32 {
        count.div_ceil(TILE)
    }

    /// Words of `counts` for `count` keys.
    pub fn counts(count: u32) -> usize {
        (Self::tiles(count) * DIGITS) as usize
    }

    /// Grid: one block per tile.
    pub fn grid(&self) -> (u32, u32) {
        (Self::tiles(self.count), 1)
    }
}

/// Sums each digit's counts over tiles. Grid: [`KeysSum::GRID`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KeysSum {
    /// `[digit][tile]`: replaced by the counts in earlier tiles.
    pub counts: Pointer<u32>,
    /// Per digit: [`KeysSum::TOTALS`] words.
    pub totals: Pointer<u32>,
    /// Tiles.
    pub tiles: u32,
    /// 0.
    pub reserved: u32,
}

impl KeysSum {
    /// Words of `totals`.
    pub const TOTALS: usize = DIGITS as usize;
    /// Grid: one block per digit.
    pub const GRID: (u32, u32) = (DIGITS, 1);
}

/// Sorts keys by a digit. Grid: as for [`KeysCount`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KeysScatter {
    /// Sorted by the lower digits.
    pub keys: Pointer<u64>,
    /// `[digit][tile]`: counts in earlier tiles.
    pub counts: Pointer<u32>,
    /// Per digit.
    pub totals: Pointer<u32>,
    /// Sorted by this digit as well.
    pub sorted: Pointer<u64>,
    /// Keys.
    pub count: u32,
    /// From 0, the lowest digit, to [`KEY_DIGITS`].
    pub pass: u32,
}

/// Counts before a tile of sorted keys: positives and negatives before its first key, and before the last key at
/// which a new score started.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct PrefixCounts {
    /// Before the first key.
    pub keys: [u64; 2],
    /// Before the last new score.
    pub score: [u64; 2],
}

/// Counts the samples per label and weight exponent, skipping those with weight 0. Grid: as for [`KeysCount`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct WeightsCount {
    /// With weights, in any order.
    pub keys: Pointer<u64>,
    /// `[label][exponent]`: [`WeightsCount::CLASSES`] words, which must be 0 before.
    pub classes: Pointer<u32>,
    /// Keys, one or more.
    pub count: u32,
    /// 0.
    pub reserved: u32,
}

impl WeightsCount {
    /// Labels times the exponents of a float.
    pub const CLASSES: usize = 512;
}

/// Counts pairs: [`TiesCount`], [`TiesBefore`] and [`TiesPairs`], one after another. For weighted keys
/// [`TiesCountWeights`] and [`TiesPairsWeights`] replace the first and the last. [`TiesBins`], or [`TiesBinsWeights`],
/// needs none of them: it counts the scores themselves.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Ties {
    /// Ascending.
    pub keys: Pointer<u64>,
    /// One per tile.
    pub tiles: Pointer<PrefixCounts>,
    /// [`Ties::RESULTS`] numbers. First [`Ties::ADDENDS`], which must be 0 before: twice the number of ordered pairs
    /// plus the ties, as addends where each counts 2^32 times as much as the one before it. Then all positives and
    /// all negatives.
    pub result: Pointer<u64>,
    /// `[label][bin]`: [`Ties::BINS`] counts for each label, which must be 0 before [`TiesBins`].
    pub bins: Pointer<u64>,
    /// Factors by which the weights of negatives and positives are multiplied before they are rounded to integers;
    /// the integers must add up to less than 2^63 for each.
    pub scales: [f64; 2],
    /// Keys, one or more.
    pub count: u32,
    /// Tiles: [`KeysCount::tiles`].
    pub tiles_count: u32,
}

impl Ties {
    /// Addends of the pairs.
    pub const ADDENDS: usize = 4;
    /// Words of `result`.
    pub const RESULTS: usize = Self::ADDENDS + 2;
    /// Bins of the score: of width 1/16, from -16. The first and the last one also have the scores beyond.
    pub const BINS: usize = 512;
}

/// Counts each tile. Grid: one block per tile.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TiesCount(pub Ties);

/// Adds up each tile's weights. Grid: one block per tile.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TiesCountWeights(pub Ties);

/// Sums over tiles. Grid: one block.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TiesBefore(pub Ties);

/// Counts the pairs. Grid: one block per tile.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TiesPairs(pub Ties);

/// Adds up the products of the pairs' weights. Grid: one block per tile.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TiesPairsWeights(pub Ties);

/// Counts the keys by label and bin of the score. Grid: one block per tile.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TiesBins(pub Ties);

/// Adds up the weights by label and bin of the score. Grid: one block per tile.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TiesBinsWeights(pub Ties);

const _: () = assert!(size_of::<KeysCount>() == 24 && size_of::<KeysSum>() == 24);
const _: () = assert!(size_of::<KeysScatter>() == 40 && size_of::<Ties>() == 56);

macro_rules! kernel {
    ($($kernel:ident = $threads:literal;)+) => {
        $(
            // SAFETY: `auc.cu` has the same struct.
            unsafe impl Kernel for $kernel {
                const ID: Id = Family::$kernel.variant([]);
                const THREADS: u32 = $threads;
            }
        )+
    };
}

kernel! {
    KeysCount = 256;
    KeysSum = 1024;
    KeysScatter = 256;
    WeightsCount = 256;
    TiesCount = 256;
    TiesCountWeights = 256;
    TiesBefore = 1024;
    TiesPairs = 256;
    TiesPairsWeights = 256;
    TiesBins = 256;
    TiesBinsWeights = 256;
}
