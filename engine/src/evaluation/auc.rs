//! The exact area under the ROC curve.

use rayon::prelude::*;

/// The share of (positive, negative) pairs in which the positive has the higher score, ties counting half: computed in
/// integers, so exact for any number of samples. `None` where one of the labels does not occur. Order is that of
/// IEEE 754 totals, so a NaN is above infinity rather than lost; callers refuse it before.
///
/// Sorts a copy: eight bytes a sample.
pub fn auc(scores: &[f32], labels: &[f32]) -> Option<f64> {
    assert_eq!(scores.len(), labels.len());
    let key =
        |(&score, &label): (&f32, &f32)| u64::from(ascending_bits(score)) << 1 | u64::from(label != 0.0);
    let mut keys: Vec<u64> = scores.par_iter().zip(labels).map(key).collect();
    keys.par_sort_unstable();
    let (mut negatives, mut positives, mut ordered_twice) = (0u128, 0u128, 0u128);
    for ties in keys.chunk_by(|a, b| a >> 1 == b >> 1) {
        let tied_positives = ties.iter().filter(|&key| key & 1 == 1).count() as u128;
        let tied_negatives = ties.len() as u128 - tied_positives;
        ordered_twice += tied_positives * (2 * negatives + tied_negatives);
        negatives += tied_negatives;
        positives += tied_positives;
    }
    of_pairs(ordered_twice, positives, negatives)
}

/// The area, of twice the pairs in order, ties counting half, and of how many positives and negatives there are.
pub(crate) fn of_pairs(ordered_twice: u128, positives: u128, negatives: u128) -> Option<f64> {
    let pairs_twice = 2 * negatives * positives;
    (pairs_twice > 0).then(|| ordered_twice as f64 / pairs_twice as f64)
}

/// Maps floats to integers of the same order. -0 equals +0.
fn ascending_bits(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Ordering;

    proptest! {
        #[test]
        fn it_counts_pairs(
            samples in prop::collection::vec((-3..4i32, any::<bool>()), 0..200),
            scale in prop::sample::select(vec![1e-40f32, 0.5, 1e30]),
        ) {
            let scores: Vec<f32> = samples.iter().map(|sample| sample.0 as f32 * scale).collect();
            let labels: Vec<f32> = samples.iter().map(|sample| f32::from(u8::from(sample.1))).collect();
            let (mut pairs, mut ordered) = (0, 0.0);
            for positive in samples.iter().filter(|sample| sample.1) {
                for negative in samples.iter().filter(|sample| !sample.1) {
                    pairs += 1;
                    ordered += match positive.0.cmp(&negative.0) {
                        Ordering::Less => 0.0,
                        Ordering::Equal => 0.5,
                        Ordering::Greater => 1.0,
                    };
                }
            }
            match auc(&scores, &labels) {
                None => prop_assert_eq!(pairs, 0),
                Some(auc) => prop_assert!((auc - ordered / f64::from(pairs)).abs() < 1e-12),
            }
        }
    }

    #[test]
    fn zeros_of_both_signs_tie() {
        assert_eq!(auc(&[-0.0, 0.0], &[1.0, 0.0]), Some(0.5));
        assert_eq!(auc(&[0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY], &[0.0, 1.0, 1.0, 0.0]), Some(0.875));
    }
}
