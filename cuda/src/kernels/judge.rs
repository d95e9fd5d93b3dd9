//! `judge.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Id, Kernel};
use crate::runtime::Pointer;

/// Sums over the samples that have a label for a head.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct Sums {
    /// Sum of their weights.
    pub weights: f64,
    /// Sum of their losses times their weights.
    pub losses: f64,
    /// Sum of their predicted probabilities times their weights.
    pub predictions: f64,
    /// Sum of their labels times their weights.
    pub positives: f64,
    /// How many.
    pub samples: u64,
    /// Samples, with or without a label, whose logit is NaN.
    pub not_numbers: u64,
}

impl Sums {
    /// Adds the sums over other samples.
    pub fn add(&mut self, other: Self) {
        self.weights += other.weights;
        self.losses += other.losses;
        self.predictions += other.predictions;
        self.positives += other.positives;
        self.samples += other.samples;
        self.not_numbers += other.not_numbers;
    }
}

/// Extracts from a scored batch what an evaluation keeps: [`JudgeParts`], then [`JudgeTotal`]. Of the sums only the
/// numbers of samples are counted; [`JudgeKeys`] takes the others.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Judge {
    /// `[sample][head]`
    pub logits: Pointer<f32>,
    /// `[head][labels_stride]`: 0, 1, or NaN if it is missing.
    pub labels: Pointer<f32>,
    /// `[sample]`
    pub weights: Pointer<f32>,
    /// Samples in the batch.
    pub samples: Pointer<u32>,
    /// Samples judged before; increased by those of the batch.
    pub judged: Pointer<u64>,
    /// `[head][capacity]`: the samples' ranking keys, in their order.
    pub keys: Pointer<u64>,
    /// `[head][blocks]`
    pub parts: Pointer<Sums>,
    /// `[head]`: increased by the batch's.
    pub sums: Pointer<Sums>,
    /// The most samples; more are only counted.
    pub capacity: u64,
    /// Heads.
    pub heads: u32,
    /// From a head's labels to the next one's.
    pub labels_stride: u32,
    /// Blocks of [`JudgeParts`] along x.
    pub blocks: u32,
    /// Whether keys include the samples' weights: 0 or 1.
    pub weighted: u32,
}

/// Grid: `blocks`, and `heads`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct JudgeParts(pub Judge);

/// Grid: one block.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct JudgeTotal(pub Judge);

/// Sums over the keys of a head, without the numbers of samples; then [`JudgeKeysTotal`]. Grid: any number of blocks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct JudgeKeys {
    /// Keys, as [`JudgeParts`] writes them.
    pub keys: Pointer<u64>,
    /// `[block]`
    pub parts: Pointer<Sums>,
    /// Keys.
    pub count: u32,
    /// Whether keys include the samples' weights: 0 or 1.
    pub weighted: u32,
}

/// Grid: one block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct JudgeKeysTotal {
    /// `[block]`
    pub parts: Pointer<Sums>,
    /// One head's: increased by the parts.
    pub sums: Pointer<Sums>,
    /// Parts.
    pub blocks: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Judge>() == 88 && size_of::<Sums>() == 48);
const _: () = assert!(size_of::<JudgeKeys>() == 24 && size_of::<JudgeKeysTotal>() == 24);

// SAFETY: `judge.cu` has the same struct.
unsafe impl Kernel for JudgeKeys {
    const ID: Id = Family::JudgeKeys.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `judge.cu` has the same struct.
unsafe impl Kernel for JudgeKeysTotal {
    const ID: Id = Family::JudgeKeysTotal.variant([]);
    const THREADS: u32 = 32;
}

// SAFETY: `judge.cu` has the same struct.
unsafe impl Kernel for JudgeParts {
    const ID: Id = Family::JudgeParts.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `judge.cu` has the same struct.
unsafe impl Kernel for JudgeTotal {
    const ID: Id = Family::JudgeTotal.variant([]);
    const THREADS: u32 = 256;
}
