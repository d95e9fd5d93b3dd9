//! `sort.cu`, and what `locate.cu` shares with it.

use bytemuck::{Pod, Zeroable};

use super::{Id, Kernel};
use crate::buffer::Pointer;

/// An id's slot and bag.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Pair {
    /// The number of its row among the distinct ones.
    pub slot: u32,
    /// Its feature and sample.
    pub bag: u32,
}

/// Pairs of a tile, which one block sorts.
pub const TILE: u32 = 2048;
/// Bits of a digit, at most: two digits number the slots of up to 2^24 ids.
pub const DIGIT_BITS_MAX: u32 = 12;
/// Of the kernels that count.
pub(super) const COUNT_THREADS: u32 = 1024;
const SUM_THREADS: u32 = 128;
const SCATTER_THREADS: u32 = 512;
/// Of a digit, in [`Scatter`]: a place, and a rank for each of its warps.
const SCATTER_BYTES: u32 = 4 + SCATTER_THREADS / 32 * 2;
/// What [`Scatter`] takes at most.
pub(super) const SHARED_BYTES_MAX: i32 = (SCATTER_BYTES << DIGIT_BITS_MAX) as i32;

/// Values that a digit of the slots of so many ids can have: no fewer than the kernels will find in use, since there
/// are no more slots than ids.
pub(super) fn digits_max(ids: u32) -> u32 {
    let bits = (u32::BITS - ((ids.max(1) - 1) | 1).leading_zeros()).div_ceil(2);
    assert!(bits <= DIGIT_BITS_MAX, "{ids} ids are more than two digits of {DIGIT_BITS_MAX} bits number");
    1 << bits
}

/// Counts the slots' high digits. Grid: one block a tile.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Count {
    /// After the first pass.
    pub pairs: Pointer<Pair>,
    /// Distinct slots.
    pub slots_count: Pointer<u32>,
    /// `[digit][tile]`
    pub counts: Pointer<u32>,
    /// Ids.
    pub ids: u32,
    /// 0.
    pub reserved: u32,
}

/// Sums each digit's counts over tiles. Grid: [`Sum::grid`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Sum {
    /// Distinct slots.
    pub slots_count: Pointer<u32>,
    /// `[digit][tile]`
    pub counts: Pointer<u32>,
    /// Of each digit.
    pub totals: Pointer<u32>,
    /// Tiles.
    pub tiles: u32,
    /// 0.
    pub reserved: u32,
}

impl Sum {
    /// Blocks for the slots of so many ids: a warp a digit.
    pub fn grid(ids: u32) -> (u32, u32) {
        (digits_max(ids).div_ceil(SUM_THREADS / 32), 1)
    }

    /// Words of `totals` for so many ids; times the tiles, words of `counts`.
    pub fn digits(ids: u32) -> usize {
        digits_max(ids) as usize
    }
}

/// Puts pairs in the order of a digit. Grid: one block a tile.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Scatter {
    /// Of each id, for the first pass.
    pub slots: Pointer<u32>,
    /// Of each id, for the first pass.
    pub bags: Pointer<u32>,
    /// For the second pass.
    pub pairs: Pointer<Pair>,
    /// Distinct slots.
    pub slots_count: Pointer<u32>,
    /// `[digit][tile]`: those in tiles before.
    pub counts: Pointer<u32>,
    /// Of each digit.
    pub totals: Pointer<u32>,
    /// In the new order.
    pub sorted: Pointer<Pair>,
    /// Ids.
    pub ids: u32,
    /// 0 for the low digit, 1 for the high one.
    pub pass: u32,
}

const _: () = assert!(size_of::<Count>() == 32 && size_of::<Sum>() == 32 && size_of::<Scatter>() == 64);

// SAFETY: `sort.cu` has the same struct, and takes a word of shared memory a digit.
unsafe impl Kernel for Count {
    const ID: Id = Id::Count;
    const NAME: &'static str = "sort_count";
    const THREADS: u32 = COUNT_THREADS;

    fn shared_bytes(&self) -> u32 {
        4 * digits_max(self.ids)
    }
}

// SAFETY: `sort.cu` has the same struct.
unsafe impl Kernel for Sum {
    const ID: Id = Id::Sum;
    const NAME: &'static str = "sort_sum";
    const THREADS: u32 = SUM_THREADS;
}

// SAFETY: `sort.cu` has the same struct, and takes this much shared memory a digit.
unsafe impl Kernel for Scatter {
    const ID: Id = Id::Scatter;
    const NAME: &'static str = "sort_scatter";
    const THREADS: u32 = SCATTER_THREADS;

    fn shared_bytes(&self) -> u32 {
        SCATTER_BYTES * digits_max(self.ids)
    }
}
