//! The exact area under the ROC curve (AUC).
//!
//! The AUC is the share of (positive, negative) pairs in which the positive has the higher score, where a tie counts as
//! half a pair. With sample weights, a pair counts as the product of its two weights.
//!
//! Samples are sorted by score, and pairs are counted in integers. So the result does not depend on the order of the
//! samples, the number of threads or ranks, or the device: `cuda/kernels/auc.cu` counts the same integers.
//!
//! Weights become integers, too: each is multiplied by a power of two, one per label, and rounded. The power is the
//! largest for which the weights of a label are certain to add up to less than 2^63. The sum is then at least 2^61, so
//! rounding changes a label's total weight by less than `samples / 2^62` of it, and the AUC by less than `samples /
//! 2^61`: 1e-12 for two million samples. Only weights below 2^-38 of the sum are rounded: among a million samples,
//! those that weigh less than 4e-6 of the mean. If there are none, the result is exact.

use rayon::prelude::*;

/// Pairs of a label and a weight's exponent: the bits of a weighted key from `CLASS_SHIFT` up to the score.
pub const WEIGHT_CLASSES: usize = 512;
const CLASS_SHIFT: u32 = 23;
/// The lowest bit of the score in a weighted key. The label is the bit below it, and the weight the 31 bits below that.
const SCORE_SHIFT: u32 = 32;
const LABEL_BIT: u32 = 1 << 31;
/// Values of a float's exponent; the last one means infinity or NaN.
const EXPONENTS: usize = 256;
/// Samples that one task counts.
pub(super) const CHUNK: usize = 1 << 16;

/// Returns the AUC of samples of equal weight, or `None` if all labels are equal. `labels` are 0 or 1. Scores have the
/// total order of IEEE 754, so a NaN would rank above infinity; callers refuse NaN scores before.
///
/// Sorts a copy of 8 bytes per sample.
pub fn auc(scores: &[f32], labels: &[f32]) -> Option<f64> {
    assert_eq!(scores.len(), labels.len());
    let key =
        |(&score, &label): (&f32, &f32)| u64::from(ascending_bits(score)) << 1 | u64::from(label != 0.0);
    let mut keys: Vec<u64> = scores.par_iter().zip(labels).map(key).collect();
    keys.par_sort_unstable();
    pairs(&keys, 1, |key| [1 - (key & 1), key & 1]).auc()
}

/// Returns the AUC of weighted samples, or `None` if the samples of one label weigh nothing, or if a weight is
/// negative or not finite. Otherwise as [`auc`], and equal to it if all weights are 1.
///
/// Sorts a copy of 8 bytes per sample.
pub fn weighted_auc(scores: &[f32], labels: &[f32], weights: &[f32]) -> Option<f64> {
    assert_eq!((scores.len(), scores.len()), (labels.len(), weights.len()));
    let key = |((&score, &label), &weight): ((&f32, &f32), &f32)| {
        u64::from(ascending_bits(score)) << SCORE_SHIFT | u64::from(label_and_weight(label, weight))
    };
    let scales = weight_scales(&weight_classes(labels, weights))?;
    let mut keys: Vec<u64> = scores.par_iter().zip(labels).zip(weights).map(key).collect();
    keys.par_sort_unstable();
    let weigh = |key: u64| {
        let low = key as u32;
        let label = usize::from(low & LABEL_BIT != 0);
        let mut counted = [0; 2];
        counted[label] = scaled(f32::from_bits(low & !LABEL_BIT), scales[label]);
        counted
    };
    pairs(&keys, SCORE_SHIFT, weigh).auc()
}

/// Numbers of pairs of a positive and a negative sample, each pair counted as the product of its weights.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pairs {
    /// Twice the pairs in which the positive has the higher score, plus the ties.
    pub ordered_twice: u128,
    /// The sum of the weights of positive samples.
    pub positives: u128,
    /// The same of negative samples.
    pub negatives: u128,
}

impl Pairs {
    /// Returns `None` if there is no pair.
    pub fn auc(&self) -> Option<f64> {
        let pairs_twice = 2 * self.negatives * self.positives;
        (pairs_twice > 0).then(|| self.ordered_twice as f64 / pairs_twice as f64)
    }
}

/// Counts the pairs of ascending keys. Keys are tied if they are equal from bit `score_shift` upwards; `counted`
/// returns the `[negatives, positives]` of a key.
fn pairs(keys: &[u64], score_shift: u32, counted: impl Fn(u64) -> [u64; 2]) -> Pairs {
    let mut pairs = Pairs::default();
    for ties in keys.chunk_by(|a, b| a >> score_shift == b >> score_shift) {
        let (mut negatives, mut positives) = (0, 0);
        for &key in ties {
            let [negative, positive] = counted(key);
            negatives += negative;
            positives += positive;
        }
        let (negatives, positives) = (u128::from(negatives), u128::from(positives));
        pairs.ordered_twice += positives * (2 * pairs.negatives + negatives);
        pairs.negatives += negatives;
        pairs.positives += positives;
    }
    pairs
}

/// Maps floats to integers of the same order. -0 equals +0.
fn ascending_bits(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// Returns the score that became these bits, of which -0 is 0.
pub(super) fn score_of_bits(ascending: u32) -> f32 {
    f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
}

/// A weight in 31 bits. -0 is 0, and a negative number becomes NaN, which [`weight_scales`] refuses.
fn weight_bits(weight: f32) -> u32 {
    if weight >= 0.0 { weight.to_bits() & !LABEL_BIT } else { f32::NAN.to_bits() & !LABEL_BIT }
}

/// A weight as the AUC takes it: 0 for -0, and NaN for a negative number.
pub(super) fn usable_weight(weight: f32) -> f32 {
    f32::from_bits(weight_bits(weight))
}

/// The low word of a weighted key.
fn label_and_weight(label: f32, weight: f32) -> u32 {
    let label = if label == 0.0 { 0 } else { LABEL_BIT };
    label | weight_bits(weight)
}

/// Counts the samples per label and weight exponent. Samples of weight 0 do not count.
pub(super) fn weight_classes(labels: &[f32], weights: &[f32]) -> [u64; WEIGHT_CLASSES] {
    assert_eq!(labels.len(), weights.len());
    let count = |(labels, weights): (&[f32], &[f32])| {
        let mut classes = [0; WEIGHT_CLASSES];
        let lows = labels.iter().zip(weights).map(|(&label, &weight)| label_and_weight(label, weight));
        for low in lows.filter(|low| low & !LABEL_BIT != 0) {
            classes[(low >> CLASS_SHIFT) as usize] += 1;
        }
        classes
    };
    let add = |mut sum: [u64; WEIGHT_CLASSES], other: [u64; WEIGHT_CLASSES]| {
        sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
        sum
    };
    labels.par_chunks(CHUNK).zip(weights.par_chunks(CHUNK)).map(count).reduce(|| [0; WEIGHT_CLASSES], add)
}

/// Returns the factors that turn the weights of label 0 and of label 1 into integers, given the number of samples per
/// label and exponent; 0 for a label without samples. `None` if a weight is not finite.
pub fn weight_scales(classes: &[u64; WEIGHT_CLASSES]) -> Option<[f64; 2]> {
    let (negatives, positives) = classes.split_at(EXPONENTS);
    let of_label = |counts: &[u64]| {
        if counts[EXPONENTS - 1] > 0 {
            return None;
        }
        // A weight is at most (1 - 2^-24) times the power of two that ends its class. The sum of these powers has a
        // relative error far below 2^-24, so the next power of two is above the sum of the weights.
        let bound: f64 = (0..).zip(counts).map(|(exponent, &count)| count as f64 * class_end(exponent)).sum();
        Some(if bound > 0.0 { power_of_two(63 - exponent_above(bound)) } else { 0.0 })
    };
    Some([of_label(negatives)?, of_label(positives)?])
}

/// Returns a weight as an integer, with the operations of `auc.cu`: an exact product, rounded to the nearest integer,
/// ties to even.
pub(super) fn scaled(weight: f32, scale: f64) -> u64 {
    (f64::from(weight) * scale).round_ties_even() as u64
}

/// The least power of two above all floats with these exponent bits.
fn class_end(exponent: i32) -> f64 {
    power_of_two(exponent - 126)
}

/// The least n for which `value`, a normal number above 0, is at most 2^n.
fn exponent_above(value: f64) -> i32 {
    let bits = value.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    exponent + i32::from(bits << 12 != 0)
}

/// 2^exponent, for exponents of normal numbers.
fn power_of_two(exponent: i32) -> f64 {
    debug_assert!((-1022..1024).contains(&exponent));
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
