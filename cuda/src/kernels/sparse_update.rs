//! `sparse_update.cu`.

use bytemuck::{Pod, Zeroable};

use super::{Element, Feature, Id, Kernel, Pair, Rate, Rule};
use crate::buffer::Pointer;
use crate::error::Result;
use crate::lane::Lane;

/// How the rows of a table learn.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct TableRule {
    /// The rule.
    pub rule: Rule,
    /// Elements of a row, without those that fill it up.
    pub dim: u32,
    /// Where a row's state begins, in words from the row's beginning.
    pub first: u32,
    /// Where the second of two numbers of state begins.
    pub second: u32,
    /// 0.
    pub reserved: u32,
}

/// Sums the gradients of each distinct row and updates it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SparseUpdate<T> {
    /// Sorted; a bag is a feature's number above `sample_bits`, a sample's below.
    pub pairs: Pointer<Pair>,
    /// How many they are.
    pub count: Pointer<u32>,
    /// Of each slot: the row of all tables.
    pub rows: Pointer<u32>,
    /// All features.
    pub features: Pointer<Feature>,
    /// Where the bags of ragged columns begin.
    pub offsets: Pointer<u32>,
    /// One a table.
    pub tables: Pointer<TableRule>,
    /// One a table.
    pub rates: Pointer<Rate>,
    /// `[sample][stride]`
    pub gradients: Pointer<T>,
    /// Null, or what gradients are multiplied by.
    pub scale: Pointer<f32>,
    /// Nothing is written where it is not 0.
    pub stop: Pointer<u32>,
    /// The tables.
    pub storage: Pointer<f32>,
    /// As many elements as [`SparseUpdate::parts_len`] says: sums of rows that reach from one block into another.
    pub parts: Pointer<f32>,
    /// Bits of a bag that are the sample's.
    pub sample_bits: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// A quarter of the elements of the widest row, filled up: [`SparseUpdate::VECTORS_MAX`] at most.
    pub vectors: u32,
    /// Pairs that there are room for.
    pub room: u32,
}

const _: () = assert!(size_of::<TableRule>() == 48 && size_of::<SparseUpdate<f32>>() == 112);

/// Pairs that a team of lanes takes.
const RUN: u32 = 64;
const THREADS: u32 = 256;

impl<T> SparseUpdate<T> {
    /// A quarter of a row's elements, at most.
    pub const VECTORS_MAX: u32 = 256;

    /// Elements of `parts`.
    pub fn parts_len(room: usize, vectors: usize) -> usize {
        // A block of the widest team takes the fewest pairs.
        room.div_ceil((RUN * THREADS / 32) as usize) * 2 * 4 * vectors
    }
}

impl<T: Element> SparseUpdate<T> {
    /// Enqueues the update.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Panics
    /// Where rows are wider than there are kernels for.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn enqueue(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the addresses; the team has the lanes and vectors of the widest row.
        unsafe {
            match self.vectors {
                0..=4 => self.enqueue_by::<4, 1>(lane),
                5..=16 => self.enqueue_by::<16, 1>(lane),
                17..=32 => self.enqueue_by::<32, 1>(lane),
                33..=64 => self.enqueue_by::<32, 2>(lane),
                65..=256 => self.enqueue_by::<32, 8>(lane),
                vectors => panic!("rows of {} elements", 4 * u64::from(vectors)),
            }
        }
    }

    unsafe fn enqueue_by<const LANES: u32, const VECTORS: u32>(&self, lane: &Lane) -> Result<()> {
        let blocks = self.room.div_ceil(RUN * THREADS / LANES);
        // SAFETY: as for `enqueue`.
        unsafe {
            lane.launch(&UpdateRuns::<T, LANES, VECTORS>(*self), (blocks, 1))?;
            lane.launch(&UpdateParts::<T, LANES, VECTORS>(*self), (blocks.div_ceil(THREADS / LANES), 1))
        }
    }
}

/// Updates the rows that lie within what one block takes, by teams of so many lanes with so many vectors each.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct UpdateRuns<T, const LANES: u32, const VECTORS: u32>(SparseUpdate<T>);

/// Updates the rows that go on from one block to the next, after [`UpdateRuns`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct UpdateParts<T, const LANES: u32, const VECTORS: u32>(SparseUpdate<T>);

/// Bytes of shared memory that the sums of so many rows take, for each team of a block one.
const fn sums(rows: u32, vectors: u32) -> u32 {
    THREADS * 16 * vectors * rows
}

/// Bytes that a block's teams take for so many rows each that they have to update: sums and what names them.
const fn outbox(rows: u32, lanes: u32, vectors: u32) -> u32 {
    sums(rows, vectors) + THREADS / lanes * rows * 8
}

// SAFETY: `sparse_update.cu` has the same struct, and its blocks take this much shared memory.
unsafe impl<T: Element, const LANES: u32, const VECTORS: u32> Kernel for UpdateRuns<T, LANES, VECTORS> {
    const ID: Id = Id::of::<T>(match (LANES, VECTORS) {
        (4, 1) => [Id::SparseUpdateF32By4x1, Id::SparseUpdateBf16By4x1, Id::SparseUpdateF16By4x1],
        (16, 1) => [Id::SparseUpdateF32By16x1, Id::SparseUpdateBf16By16x1, Id::SparseUpdateF16By16x1],
        (32, 1) => [Id::SparseUpdateF32By32x1, Id::SparseUpdateBf16By32x1, Id::SparseUpdateF16By32x1],
        (32, 2) => [Id::SparseUpdateF32By32x2, Id::SparseUpdateBf16By32x2, Id::SparseUpdateF16By32x2],
        (32, 8) => [Id::SparseUpdateF32By32x8, Id::SparseUpdateBf16By32x8, Id::SparseUpdateF16By32x8],
        _ => panic!("no such team"),
    });
    const NAME: &'static str = "sparse_update";
    const THREADS: u32 = THREADS;

    fn shared_bytes(&self) -> u32 {
        let pairs = LANES.min(8) / VECTORS;
        outbox(pairs, LANES, VECTORS) + sums(2, VECTORS)
    }
}

// SAFETY: as for `UpdateRuns`.
unsafe impl<T: Element, const LANES: u32, const VECTORS: u32> Kernel for UpdateParts<T, LANES, VECTORS> {
    const ID: Id = match (LANES, VECTORS) {
        (4, 1) => Id::SparsePartsBy4x1,
        (16, 1) => Id::SparsePartsBy16x1,
        (32, 1) => Id::SparsePartsBy32x1,
        (32, 2) => Id::SparsePartsBy32x2,
        (32, 8) => Id::SparsePartsBy32x8,
        _ => panic!("no such team"),
    };
    const NAME: &'static str = "sparse_parts";
    const THREADS: u32 = THREADS;

    fn shared_bytes(&self) -> u32 {
        outbox(1, LANES, VECTORS) + sums(1, VECTORS) + THREADS / LANES * 4
    }
}
