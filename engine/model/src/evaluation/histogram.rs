//! Histograms of scores, from which ROC curves, precision-recall curves and reliability diagrams follow.
//!
//! Bins are of the logit, which resolves small probabilities. Sums are of integers, as for the AUC: numbers of samples,
//! or weights as [`super::auc()`] rounds them. So they depend neither on the order of the samples nor on the number of
//! threads or ranks, and `cuda/kernels/auc.cu` gets the same sums.

use rayon::prelude::*;
use serde::{Deserialize, Serialize, Serializer};

use super::auc::{CHUNK, scaled, usable_weight, weight_classes, weight_scales};
use super::judged::JudgedHead;
use super::metrics::Scores;

/// Sums per label and bin, as integers.
pub type BinCounts = [[u64; ScoreHistogram::BINS]; 2];

const NO_COUNTS: BinCounts = [[0; ScoreHistogram::BINS]; 2];

/// How the logits of one head are distributed: the sums of the weights of samples by label and bin of the logit.
/// Without weights these are numbers of samples.
///
/// Bin 0 also has all logits below [`ScoreHistogram::FROM`], and the last bin all logits above the end of the range.
/// Every other bin includes its lower edge and excludes its upper one. The bin is computed in f32, so a logit closer to
/// the upper edge than the rounding of `logit + 16` (1e-6 at most) is in the next bin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoreHistogram {
    /// Of samples with label 0, one sum per bin.
    #[serde(serialize_with = "whole_if_possible")]
    pub negatives: Vec<f64>,
    /// Of samples with label 1, one sum per bin.
    #[serde(serialize_with = "whole_if_possible")]
    pub positives: Vec<f64>,
}

impl ScoreHistogram {
    /// The number of bins.
    pub const BINS: usize = 512;
    /// The logit at the lower edge of the first bin.
    pub const FROM: f32 = -16.0;
    /// The width of a bin, in units of the logit.
    pub const WIDTH: f32 = 1.0 / 16.0;

    /// Counts scores; `None` of no samples, if none weighs anything, or if a weight is negative or not finite.
    pub fn of(scores: &Scores) -> Option<Self> {
        let Scores { logits, labels, weights } = scores;
        if weights.is_empty() {
            return Self::of_counts(&count(logits, labels, |_, _| 1), [1.0; 2]);
        }
        let scales = weight_scales(&weight_classes(labels, weights))?;
        let weigh = |sample: usize, label: usize| scaled(usable_weight(weights[sample]), scales[label]);
        Self::of_counts(&count(logits, labels, weigh), scales)
    }

    /// Returns the sums of weights, given the integers that weights became when they were multiplied by a scale per
    /// label; `None` if all are 0.
    pub fn of_counts(counts: &BinCounts, scales: [f64; 2]) -> Option<Self> {
        let sums = |label: usize| {
            let sum = |&count: &u64| if count == 0 { 0.0 } else { count as f64 / scales[label] };
            counts[label].iter().map(sum).collect()
        };
        let is_empty = counts.iter().flatten().all(|&count| count == 0);
        (!is_empty).then(|| Self { negatives: sums(0), positives: sums(1) })
    }

    /// Gives negatives their weights in the original data.
    #[must_use]
    pub fn judged(mut self, head: &JudgedHead) -> Self {
        self.negatives.iter_mut().for_each(|sum| *sum = head.weight(0.0, *sum));
        self
    }
}

/// The bin of a logit, with the operations of `auc.cu`: the product is exact, so only the sum is rounded.
fn bin(logit: f32) -> usize {
    let bins = (logit - ScoreHistogram::FROM) * (1.0 / ScoreHistogram::WIDTH);
    bins.floor().clamp(0.0, (ScoreHistogram::BINS - 1) as f32) as usize
}

/// Adds up what samples count, by label and bin. `counted` gets the number of a sample and its label.
fn count(logits: &[f32], labels: &[f32], counted: impl Fn(usize, usize) -> u64 + Sync) -> BinCounts {
    assert_eq!(logits.len(), labels.len());
    let of_chunk = |(chunk, (logits, labels)): (usize, (&[f32], &[f32]))| {
        let mut counts = NO_COUNTS;
        for (sample, (&logit, &label)) in (chunk * CHUNK..).zip(logits.iter().zip(labels)) {
            let label = usize::from(label != 0.0);
            counts[label][bin(logit)] += counted(sample, label);
        }
        counts
    };
    let add = |mut sum: BinCounts, other: BinCounts| {
        sum.as_flattened_mut().iter_mut().zip(other.as_flattened()).for_each(|(sum, other)| *sum += other);
        sum
    };
    let chunks = logits.par_chunks(CHUNK).zip(labels.par_chunks(CHUNK)).enumerate();
    chunks.map(of_chunk).reduce(|| NO_COUNTS, add)
}

/// Writes whole numbers as integers, which are shorter.
fn whole_if_possible<S: Serializer>(sums: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    /// Whole numbers below it are integers without rounding.
    const EXACT: f64 = (1u64 << 53) as f64;

    #[derive(Serialize)]
    #[serde(untagged)]
    enum Number {
        Whole(u64),
        Float(f64),
    }
    let number = |&sum: &f64| match sum.fract() == 0.0 && (0.0..EXACT).contains(&sum) {
        true => Number::Whole(sum as u64),
        false => Number::Float(sum),
    };
    serializer.collect_seq(sums.iter().map(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(logits: &[f32], labels: &[f32], weights: &[f32]) -> Option<ScoreHistogram> {
        ScoreHistogram::of(&Scores {
            logits: logits.to_vec(),
            labels: labels.to_vec(),
            weights: weights.to_vec(),
        })
    }

    /// The bins that are not 0.
    fn filled(sums: &[f64]) -> Vec<(usize, f64)> {
        sums.iter().copied().enumerate().filter(|&(_, sum)| sum != 0.0).collect()
    }

    #[test]
    fn a_bin_begins_with_its_lower_edge_and_the_ends_have_what_is_beyond() {
        for number in 1..ScoreHistogram::BINS {
            let edge = ScoreHistogram::FROM + number as f32 * ScoreHistogram::WIDTH;
            assert_eq!((bin(edge - 1e-5), bin(edge)), (number - 1, number), "{edge}");
        }
        for (logit, expected) in [
            (f32::NEG_INFINITY, 0),
            (-1e30, 0),
            (-16.5, 0),
            (-16.0, 0),
            (-0.0, 256),
            (0.0, 256),
            (15.937, 510),
            (16.0, 511),
            (1e30, 511),
            (f32::INFINITY, 511),
        ] {
            assert_eq!(bin(logit), expected, "{logit}");
        }
    }

    #[test]
    fn weights_add_up_by_label_and_bin() {
        let logits = [0.0, 0.01, -0.01, 0.0, 100.0, 1.0];
        let labels = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0];
        let found = histogram(&logits, &labels, &[0.5, 2.25, 1.0, 3.0, 1e-6, 0.0]).unwrap();
        assert_eq!(filled(&found.negatives), [(255, 1.0), (256, 2.75)]);
        assert_eq!(filled(&found.positives), [(256, 3.0), (511, f64::from(1e-6f32))]);
        let unweighted = histogram(&logits, &labels, &[]).unwrap();
        assert_eq!(filled(&unweighted.negatives), [(255, 1.0), (256, 2.0)]);
        assert_eq!(filled(&unweighted.positives), [(256, 1.0), (272, 1.0), (511, 1.0)]);
        assert_eq!((unweighted.negatives.len(), unweighted.positives.len()), (512, 512));
    }

    #[test]
    fn nothing_to_count_has_no_histogram() {
        assert_eq!(histogram(&[], &[], &[]), None);
        for weight in [0.0, -0.0, -1.0, f32::INFINITY, f32::NAN] {
            assert_eq!(histogram(&[1.0], &[1.0], &[weight]), None, "{weight}");
        }
        // The labels have scales of their own.
        let tiny = histogram(&[1.0, 1.0], &[1.0, 0.0], &[1e-45, 1e38]).unwrap();
        assert_eq!(filled(&tiny.positives), [(272, f64::from(1e-45f32))]);
    }

    /// Several chunks, whose weights are rounded differently if floats are added in another order.
    #[test]
    fn neither_order_nor_threads_change_a_bit() {
        let samples: Vec<[f32; 3]> = (0..3 * CHUNK + 7)
            .map(|sample| {
                let x = (sample as f32 * 0.618_034).fract();
                [x * 40.0 - 20.0, (sample % 3 / 2) as f32, (x * 7919.0).fract() + 1e-3]
            })
            .collect();
        let of = |samples: &[[f32; 3]]| {
            let column = |number: usize| samples.iter().map(|sample| sample[number]).collect::<Vec<_>>();
            histogram(&column(0), &column(1), &column(2)).unwrap()
        };
        let expected = of(&samples);
        let reversed: Vec<_> = samples.iter().rev().copied().collect();
        assert_eq!(of(&reversed), expected);
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(one.install(|| of(&samples)), expected);
        let total: f64 = expected.negatives.iter().chain(&expected.positives).sum();
        let weights: f64 = samples.iter().map(|sample| f64::from(sample[2])).sum();
        assert!((total - weights).abs() <= 1e-9 * weights, "{total} of {weights}");
    }
}
