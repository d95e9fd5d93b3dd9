//! `look_up.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Element, Feature, Id, Kernel};
use crate::runtime::{Lane, Pointer, Result};

/// The samples of a feature that a block looks up, from `first` on.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct LookUpTask {
    /// The feature's number.
    pub feature: u32,
    /// The first sample.
    pub first: u32,
    /// Lanes that share a row, a power of 2 up to 32.
    pub lanes: u32,
    /// Samples that such a group of lanes takes.
    pub each: u32,
}

impl LookUpTask {
    /// Threads of a block.
    const THREADS: u32 = 256;
    /// Look-ups of a group of lanes if each sample has one, and the fewest otherwise.
    const ROWS: u32 = 16;
    /// The most look-ups of a group, unless a single sample has more.
    const LOOK_UPS: u32 = 128;
    /// The fewest blocks of a feature with several look-ups per sample, as far as [`Self::ROWS`] allows.
    const BLOCKS: u32 = 32;

    /// Returns the blocks that look up all samples of a feature with at most `hotness` ids per bag and rows of `dim`
    /// elements.
    pub fn of_feature(feature: u32, samples: u32, hotness: u32, dim: u32) -> impl Iterator<Item = Self> {
        let lanes = (dim / 4).next_power_of_two().clamp(1, 32);
        let groups = Self::THREADS / lanes;
        let look_ups = match hotness {
            1 => Self::ROWS,
            _ => {
                (samples.saturating_mul(hotness) / (groups * Self::BLOCKS)).clamp(Self::ROWS, Self::LOOK_UPS)
            }
        };
        let each = (look_ups / hotness).max(1);
        let of_block = groups * each;
        (0..samples.div_ceil(of_block)).map(move |block| Self {
            feature,
            first: block * of_block,
            lanes,
            each,
        })
    }
}

/// Pools the rows that ids name in tables on this GPU, and writes each bag's vector to its position.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LookUp<T> {
    /// All tables.
    pub tables: Pointer<f32>,
    /// All features.
    pub features: Pointer<Feature>,
    /// One per block: first those over f32 tables, then bf16, then f16.
    pub tasks: Pointer<LookUpTask>,
    /// Indexed as the features say.
    pub ids: Pointer<u32>,
    /// Indexed as the features say.
    pub offsets: Pointer<u32>,
    /// The number of samples; vectors after them become zeros.
    pub samples_count: Pointer<u32>,
    /// `[sample][stride]`
    pub output: Pointer<T>,
    /// Samples.
    pub samples: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
}

const _: () = assert!(size_of::<LookUpTask>() == 16 && size_of::<LookUp<f32>>() == 64);

impl<T: Element> LookUp<T> {
    /// Enqueues it; `counts` has the number of tasks per table type, indexed by [`super::Dtype`].
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue(&self, lane: &Lane, counts: [u32; 3]) -> Result<()> {
        let [f32s, bf16s, _] = counts;
        let from = |first: u32| Self { tasks: self.tasks.element(first as usize), ..*self };
        // SAFETY: the caller vouches for it.
        unsafe {
            lane.launch(&TypedLookUp::<T, 0>(from(0)), (counts[0], 1))?;
            lane.launch(&TypedLookUp::<T, 1>(from(f32s)), (counts[1], 1))?;
            lane.launch(&TypedLookUp::<T, 2>(from(f32s + bf16s)), (counts[2], 1))
        }
    }
}

/// The look-ups in tables of the type with number `DTYPE`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct TypedLookUp<T, const DTYPE: u32>(LookUp<T>);

// SAFETY: `look_up.cu` has the same struct.
unsafe impl<T: Element, const DTYPE: u32> Kernel for TypedLookUp<T, DTYPE> {
    const ID: Id = Family::LookUp.variant([T::KIND as usize, DTYPE as usize]);
    const THREADS: u32 = LookUpTask::THREADS;
}
