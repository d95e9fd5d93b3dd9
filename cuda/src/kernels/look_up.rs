//! `look_up.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{E4m3, Element, Feature, Fp8Scaling, Id, Kernel};
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
    /// Kinds of tasks: one per type of table, in the order of [`super::Dtype`], for features that are not pooled by
    /// factors, then the same for features that are, then for features whose rows are separate.
    pub const KINDS: usize = 9;
    /// Threads of a block.
    const THREADS: u32 = 256;
    /// Look-ups of a group of lanes if each sample has one, and the fewest otherwise.
    const ROWS: u32 = 16;
    /// The most look-ups of a group, unless a single sample has more.
    const LOOK_UPS: u32 = 128;
    /// The fewest blocks of a feature with several look-ups per sample, as far as [`Self::ROWS`] allows.
    const BLOCKS: u32 = 32;

    /// The most samples of a group of lanes in fp8, and samples of a block that fill whole sectors of memory.
    const EACH_IN_FP8: u32 = 16;
    const SECTOR: u32 = 32;

    /// Returns the blocks that look up all samples of a feature with at most `hotness` ids per bag and rows of `dim`
    /// elements.
    pub fn of_feature(feature: u32, samples: u32, hotness: u32, dim: u32) -> impl Iterator<Item = Self> {
        let lanes = Self::lanes(dim);
        Self::blocks(feature, samples, lanes, Self::each(samples, hotness, lanes))
    }

    /// Returns the blocks that copy the separate rows of at most `positions` positions of a feature.
    pub fn of_keys(feature: u32, positions: u32, dim: u32) -> impl Iterator<Item = Self> {
        Self::of_feature(feature, positions, 1, dim)
    }

    /// Returns the same for [`LookUpFp8`]: each block but the last has a multiple of 16 samples. The rows have at most
    /// [`LookUpFp8::DIM_MAX`] elements.
    pub fn of_feature_in_fp8(
        feature: u32,
        samples: u32,
        hotness: u32,
        dim: u32,
    ) -> impl Iterator<Item = Self> {
        let lanes = Self::lanes(dim);
        let least = (Self::SECTOR / (Self::THREADS / lanes)).max(2);
        let each = Self::each(samples, hotness, lanes).clamp(least, Self::EACH_IN_FP8);
        Self::blocks(feature, samples, lanes, each / 2 * 2)
    }

    fn lanes(dim: u32) -> u32 {
        (dim / 4).next_power_of_two().clamp(1, 32)
    }

    /// Returns how many samples a group of lanes takes.
    fn each(samples: u32, hotness: u32, lanes: u32) -> u32 {
        let groups = Self::THREADS / lanes;
        let look_ups = match hotness {
            1 => Self::ROWS,
            _ => {
                (samples.saturating_mul(hotness) / (groups * Self::BLOCKS)).clamp(Self::ROWS, Self::LOOK_UPS)
            }
        };
        (look_ups / hotness).max(1)
    }

    fn blocks(feature: u32, samples: u32, lanes: u32, each: u32) -> impl Iterator<Item = Self> {
        let of_block = Self::THREADS / lanes * each;
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
    /// One per block, kind by kind.
    pub tasks: Pointer<LookUpTask>,
    /// Indexed as the features say.
    pub ids: Pointer<u32>,
    /// Of ids in columns that are pooled by factors, indexed as the features say.
    pub factors: Pointer<f32>,
    /// Indexed as the features say.
    pub offsets: Pointer<u32>,
    /// The number of samples; vectors after them become zeros.
    pub samples_count: Pointer<u32>,
    /// `[sample][stride]`
    pub output: Pointer<T>,
    /// Where rows that are separate are written, at the features' `vector_offset`; not used without such features.
    pub keys: Pointer<T>,
    /// Samples.
    pub samples: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
}

/// Where vectors in fp8 are written, row by row and transposed.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Vectors {
    /// `[sample][stride]`
    pub rows: Pointer<E4m3>,
    /// `[column][turned_stride]`, with samples ordered by [`super::transposed_position`].
    pub turned: Pointer<E4m3>,
    /// Their scaling.
    pub scaling: Pointer<Fp8Scaling>,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// Elements from one transposed row to the next: the samples rounded up to a multiple of 16, or more.
    pub turned_stride: u32,
    /// Whether a backward pass follows: then the transposed matrix is written, and the largest magnitude is recorded.
    pub learns: bool,
}

/// Pools as [`LookUp`] does, but writes what [`super::Fp8Quantize`] makes of the vectors in bf16.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LookUpFp8 {
    /// With the rows as output, and with tasks from [`LookUpTask::of_feature_in_fp8`].
    look_up: LookUp<E4m3>,
    /// `[column][turned_stride]`
    turned: Pointer<E4m3>,
    /// Their scaling.
    scaling: Pointer<Fp8Scaling>,
    /// As for [`Fp8Vectors`].
    turned_stride: u32,
    /// 1 if a backward pass follows, else 0.
    learns: u32,
}

/// Where vectors are written.
#[derive(Debug, Clone, Copy)]
pub enum Vectors<T> {
    /// `[sample][stride]`
    Elements(Pointer<T>),
    /// The same, and the keys of positions, sequence by sequence: `[position][key_stride]`.
    WithKeys {
        /// `[sample][stride]`
        vectors: Pointer<T>,
        /// The keys.
        keys: Pointer<T>,
    },
    /// In fp8.
    Fp8(Fp8Vectors),
}

const _: () = assert!(size_of::<LookUpTask>() == 16 && size_of::<LookUp<f32>>() == 80);

impl<T> LookUp<T> {
    /// Returns the look-ups of a kind, given the number of tasks per kind.
    fn of_kind(self, kind: usize, counts: [u32; LookUpTask::KINDS]) -> Self {
        let first: u32 = counts[..kind].iter().sum();
        Self { tasks: self.tasks.element(first as usize), ..self }
    }
}

impl<T: Element> LookUp<T> {
    /// Enqueues it; `counts` has the number of tasks per kind.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue(&self, lane: &Lane, counts: [u32; LookUpTask::KINDS]) -> Result<()> {
        let of = |kind| self.of_kind(kind, counts);
        // SAFETY: the caller vouches for it.
        unsafe {
            lane.launch(&TypedLookUp::<T, 0, false>(of(0)), (counts[0], 1))?;
            lane.launch(&TypedLookUp::<T, 1, false>(of(1)), (counts[1], 1))?;
            lane.launch(&TypedLookUp::<T, 2, false>(of(2)), (counts[2], 1))?;
            lane.launch(&TypedLookUp::<T, 0, true>(of(3)), (counts[3], 1))?;
            lane.launch(&TypedLookUp::<T, 1, true>(of(4)), (counts[4], 1))?;
            lane.launch(&TypedLookUp::<T, 2, true>(of(5)), (counts[5], 1))?;
            lane.launch(&KeyLookUp::<T, 0>(of(6)), (counts[6], 1))?;
            lane.launch(&KeyLookUp::<T, 1>(of(7)), (counts[7], 1))?;
            lane.launch(&KeyLookUp::<T, 2>(of(8)), (counts[8], 1))
        }
    }
}

impl LookUpFp8 {
    /// The most elements of a row.
    pub const DIM_MAX: usize = 128;

    /// Pools into `vectors` instead of the output of `look_up`, which has tasks from
    /// [`LookUpTask::of_feature_in_fp8`].
    pub fn new<T>(look_up: LookUp<T>, vectors: Fp8Vectors) -> Self {
        let LookUp { tables, features, tasks, ids, factors, offsets, samples_count, samples, .. } = look_up;
        let Fp8Vectors { rows: output, turned, scaling, stride, turned_stride, learns } = vectors;
        Self {
            look_up: LookUp {
                tables,
                features,
                tasks,
                ids,
                factors,
                offsets,
                samples_count,
                output,
                keys: Pointer::NULL,
                samples,
                stride,
            },
            turned,
            scaling,
            turned_stride,
            learns: learns.into(),
        }
    }

    /// Enqueues it, as [`LookUp::enqueue`] does.
    ///
    /// # Panics
    /// If a feature's rows are separate.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue(&self, lane: &Lane, counts: [u32; LookUpTask::KINDS]) -> Result<()> {
        assert_eq!(counts[6..], [0; 3], "keys are not in fp8");
        let of = |kind| Self { look_up: self.look_up.of_kind(kind, counts), ..*self };
        // SAFETY: the caller vouches for it.
        unsafe {
            lane.launch(&TypedLookUpFp8::<0, false>(of(0)), (counts[0], 1))?;
            lane.launch(&TypedLookUpFp8::<1, false>(of(1)), (counts[1], 1))?;
            lane.launch(&TypedLookUpFp8::<2, false>(of(2)), (counts[2], 1))?;
            lane.launch(&TypedLookUpFp8::<0, true>(of(3)), (counts[3], 1))?;
            lane.launch(&TypedLookUpFp8::<1, true>(of(4)), (counts[4], 1))?;
            lane.launch(&TypedLookUpFp8::<2, true>(of(5)), (counts[5], 1))
        }
    }
}

/// The look-ups in tables of the type with number `DTYPE`, of features that are pooled by factors or not.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct TypedLookUp<T, const DTYPE: u32, const FACTORS: bool>(LookUp<T>);

// SAFETY: `look_up.cu` has the same struct.
unsafe impl<T: Element, const DTYPE: u32, const FACTORS: bool> Kernel for TypedLookUp<T, DTYPE, FACTORS> {
    const ID: Id = {
        let family = if FACTORS { Family::LookUpFactors } else { Family::LookUp };
        family.variant([T::KIND as usize, DTYPE as usize])
    };
    const THREADS: u32 = LookUpTask::THREADS;
}

/// The look-ups in tables of the type with number `DTYPE`, of features whose rows are separate.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct KeyLookUp<T, const DTYPE: u32>(LookUp<T>);

// SAFETY: `look_up.cu` has the same struct.
unsafe impl<T: Element, const DTYPE: u32> Kernel for KeyLookUp<T, DTYPE> {
    const ID: Id = Family::LookUpKeys.variant([T::KIND as usize, DTYPE as usize]);
    const THREADS: u32 = LookUpTask::THREADS;
}

/// The same in fp8.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct TypedLookUpFp8<const DTYPE: u32, const FACTORS: bool>(LookUpFp8);

// SAFETY: `look_up.cu` has the same struct.
unsafe impl<const DTYPE: u32, const FACTORS: bool> Kernel for TypedLookUpFp8<DTYPE, FACTORS> {
    const ID: Id = {
        let family = if FACTORS { Family::LookUpFp8Factors } else { Family::LookUpFp8 };
        family.variant([DTYPE as usize])
    };
    const THREADS: u32 = LookUpTask::THREADS;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_in_fp8_have_whole_groups_of_sixteen_samples() {
        for dim in [1, 4, 8, 12, 16, 36, 64, 100, 128] {
            for hotness in 1..=101 {
                for samples in [1, 15, 16, 700, 65_536] {
                    let tasks: Vec<_> = LookUpTask::of_feature_in_fp8(3, samples, hotness, dim).collect();
                    let LookUpTask { lanes, each, .. } = tasks[0];
                    let of_block = LookUpTask::THREADS / lanes * each;
                    assert!(of_block.is_multiple_of(16) && of_block >= LookUpTask::SECTOR);
                    assert!(each <= LookUpTask::EACH_IN_FP8);
                    assert!(lanes * 4 >= dim && (tasks.len() as u32 - 1) * of_block < samples);
                    assert!(tasks.len() as u32 * of_block >= samples);
                    for (number, task) in tasks.iter().enumerate() {
                        let first = number as u32 * of_block;
                        assert_eq!(*task, LookUpTask { feature: 3, first, lanes, each });
                    }
                }
            }
        }
    }
}
