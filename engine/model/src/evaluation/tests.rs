//! The AUC against pairs counted one by one, and against scikit-learn.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::auc::{WEIGHT_CLASSES, auc, weight_scales, weighted_auc};

/// Scores, labels and weights.
type Columns = (Vec<f32>, Vec<f32>, Vec<f32>);

/// Counts pair by pair. All terms are positive, and each sum has at most `samples` of them, so the relative error of
/// the result is below `4 * samples * 2^-53`.
fn naive(scores: &[f32], labels: &[f32], weights: &[f32]) -> Option<f64> {
    let of_label = |label: f32| {
        let samples = scores.iter().zip(labels).zip(weights).filter(move |((_, own), _)| **own == label);
        samples.map(|((&score, _), &weight)| (score, f64::from(weight)))
    };
    let (mut pairs, mut ordered) = (0.0, 0.0);
    for (score, weight) in of_label(1.0) {
        let ordered_here = of_label(0.0).map(|(other, weight)| match score.partial_cmp(&other) {
            Some(Ordering::Greater) => weight,
            Some(Ordering::Equal) => weight / 2.0,
            _ => 0.0,
        });
        ordered += weight * ordered_here.sum::<f64>();
        pairs += weight * of_label(0.0).map(|(_, weight)| weight).sum::<f64>();
    }
    (pairs > 0.0).then(|| ordered / pairs)
}

/// Up to 200 samples: scores with many ties, and weights from `weights`.
fn samples(weights: impl Strategy<Value = f32>) -> impl Strategy<Value = Columns> {
    let samples = prop::collection::vec((-3..4i32, any::<bool>(), weights), 0..200);
    let scale = prop::sample::select(vec![1e-40f32, 0.5, 1e30]);
    (samples, scale).prop_map(|(samples, scale)| columns(&samples, scale))
}

fn columns(samples: &[(i32, bool, f32)], scale: f32) -> Columns {
    let scores = samples.iter().map(|sample| sample.0 as f32 * scale).collect();
    let labels = samples.iter().map(|sample| f32::from(u8::from(sample.1))).collect();
    (scores, labels, samples.iter().map(|sample| sample.2).collect())
}

/// Weights of similar size, many of them equal, or 0.
fn usual_weights() -> impl Strategy<Value = f32> {
    prop_oneof![Just(0.0), Just(1.0), (1..5u8).prop_map(f32::from), 0.001..2.0f32]
}

/// Any weight, from the least subnormal number to the largest finite one.
fn all_weights() -> impl Strategy<Value = f32> {
    (0..=f32::MAX.to_bits()).prop_map(f32::from_bits)
}

fn bits(auc: Option<f64>) -> Option<u64> {
    auc.map(f64::to_bits)
}

proptest! {
    #[test]
    fn pairs_count_alike_without_weights((scores, labels, ones) in samples(Just(1.0))) {
        match (auc(&scores, &labels), naive(&scores, &labels, &ones)) {
            (Some(found), Some(expected)) => prop_assert!((found - expected).abs() < 1e-13),
            (found, expected) => prop_assert_eq!(found, expected),
        }
        prop_assert_eq!(bits(weighted_auc(&scores, &labels, &ones)), bits(auc(&scores, &labels)));
    }

    #[test]
    fn pairs_count_as_the_products_of_their_weights(
        (scores, labels, weights) in prop_oneof![samples(usual_weights()), samples(all_weights())],
    ) {
        match (weighted_auc(&scores, &labels, &weights), naive(&scores, &labels, &weights)) {
            (Some(found), Some(expected)) => prop_assert!((found - expected).abs() < 1e-13),
            (found, expected) => prop_assert_eq!(found, expected),
        }
    }

    #[test]
    fn equal_weights_change_no_bit((scores, labels, weights) in samples(Just(1.0)), exponent in -149..128i32) {
        let weights: Vec<f32> = weights.iter().map(|one| (f64::from(*one) * 2f64.powi(exponent)) as f32).collect();
        prop_assert_eq!(bits(weighted_auc(&scores, &labels, &weights)), bits(auc(&scores, &labels)));
    }

    #[test]
    fn a_sample_of_weight_n_counts_as_n_samples(
        (scores, labels, weights) in samples((0..5u8).prop_map(f32::from)),
    ) {
        let repeated = |column: &[f32]| -> Vec<f32> {
            let times = |(&value, &weight): (&f32, &f32)| std::iter::repeat_n(value, weight as usize);
            column.iter().zip(&weights).flat_map(times).collect()
        };
        let expected = auc(&repeated(&scores), &repeated(&labels));
        prop_assert_eq!(bits(weighted_auc(&scores, &labels, &weights)), bits(expected));
    }

    #[test]
    fn neither_order_nor_samples_without_weight_change_a_bit(
        shuffled in prop::collection::vec((-3..4i32, any::<bool>(), all_weights()), 0..200).prop_shuffle(),
        without_weight in prop::collection::vec((-3..4i32, any::<bool>(), prop::sample::select(vec![0.0, -0.0])), 0..9),
    ) {
        let mut sorted = shuffled.clone();
        sorted.sort_by(|one, other| one.2.total_cmp(&other.2));
        let all = [without_weight, shuffled].concat();
        let auc_of = |samples: &[(i32, bool, f32)]| {
            let (scores, labels, weights) = columns(samples, 1.0);
            bits(weighted_auc(&scores, &labels, &weights))
        };
        prop_assert_eq!(auc_of(&sorted), auc_of(&all));
    }

    #[test]
    fn integer_weights_neither_overflow_nor_lose_bits(
        classes in prop::collection::vec((0..255u32, 1..1u64 << 31), 1..4),
        positive in any::<bool>(),
    ) {
        let mut counts = [0; WEIGHT_CLASSES];
        let label = usize::from(positive);
        for &(exponent, count) in &classes {
            counts[label << 8 | exponent as usize] += count;
        }
        let scales = weight_scales(&counts).unwrap();
        prop_assert_eq!(scales[1 - label], 0.0);
        let sum = |mantissa: u32| -> u128 {
            let integer = |exponent| {
                let weight = f32::from_bits(exponent << 23 | mantissa);
                (f64::from(weight) * scales[label]).round() as u128
            };
            classes.iter().map(|&(exponent, count)| integer(exponent) * u128::from(count)).sum()
        };
        // The largest and the smallest weights of the classes; subnormal numbers need fewer bits.
        prop_assert!(sum((1 << 23) - 1) < 1 << 63);
        prop_assert!(sum(0) >= 1 << 61 || classes.iter().any(|&(exponent, _)| exponent == 0));
    }
}

#[test]
fn zeros_of_both_signs_tie() {
    assert_eq!(auc(&[-0.0, 0.0], &[1.0, 0.0]), Some(0.5));
    let (scores, labels) = ([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY], [0.0, 1.0, 1.0, 0.0]);
    assert_eq!(auc(&scores, &labels), Some(0.875));
    // Pairs: 2 * 1 tied, 2 * 4 ordered, 3 * 1 ordered, 3 * 4 ordered.
    assert_eq!(weighted_auc(&scores, &labels, &[1.0, 2.0, 3.0, 4.0]), Some(24.0 / 25.0));
}

#[test]
fn there_is_no_auc_without_weight_on_both_labels_or_with_unusable_weights() {
    let weighted = |weights: [f32; 3]| weighted_auc(&[0.0, 1.0, 2.0], &[0.0, 1.0, 1.0], &weights);
    assert_eq!(weighted([1.0, 0.0, 1e-45]), Some(1.0));
    assert_eq!((weighted([0.0, 1.0, 1.0]), weighted([1.0, 0.0, -0.0])), (None, None));
    assert_eq!(weighted_auc(&[], &[], &[]), None);
    for unusable in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, -1e-45] {
        assert_eq!(
            (weighted([1.0, unusable, 1.0]), weighted([unusable, 1.0, 1.0])),
            (None, None),
            "{unusable}"
        );
    }
}

#[derive(Debug, Clone, Copy)]
enum Weights {
    Counts,
    Fractions,
    Tail,
}

/// Seed, samples, distinct scores, weights, and the AUC as `auc_golden.py` prints it with scikit-learn 1.9.1.
const SCIKIT_LEARN: &[(u64, usize, u64, Weights, f64)] = &[
    (1, 8, 3, Weights::Counts, 0.7),
    (2, 50, 5, Weights::Counts, 0.7572892040977147),
    (3, 1_000, 7, Weights::Fractions, 0.641805736062087),
    (4, 1_000, 1_048_576, Weights::Fractions, 0.6416573320431629),
    (5, 10_000, 100, Weights::Tail, 0.6321344763468657),
    (6, 10_000, 1_048_576, Weights::Tail, 0.6601368314833205),
    (7, 50_000, 2, Weights::Counts, 0.6208792597754914),
    (8, 200_000, 1_000, Weights::Tail, 0.6360459766657663),
    (9, 200_000, 1_048_576, Weights::Fractions, 0.6374365852315218),
    (10, 200_000, 1_048_576, Weights::Counts, 0.6402867807082411),
];

#[test]
fn scikit_learn_agrees() {
    for &(seed, count, scores, kind, expected) in SCIKIT_LEARN {
        let (scores, labels, weights) = golden_samples(seed, count, scores, kind);
        let found = weighted_auc(&scores, &labels, &weights).unwrap();
        assert!((found - expected).abs() <= 1e-12, "seed {seed}: {found}, and scikit-learn has {expected}");
        assert!(
            (auc(&scores, &labels).unwrap() - expected).abs() > 1e-6,
            "seed {seed}: weights do not matter"
        );
    }
}

/// As `auc_golden.py` generates them.
fn golden_samples(seed: u64, count: usize, scores: u64, kind: Weights) -> Columns {
    let mut words = split_mix(seed);
    let mut columns = Columns::default();
    for _ in 0..count {
        let score = words() % scores;
        let label = words() % 100 < 20 + 40 * score / scores;
        let word = words();
        columns.0.push((score as f32 - scores as f32 / 2.0) / 8.0);
        columns.1.push(f32::from(u8::from(label)));
        columns.2.push(match kind {
            Weights::Counts => (word % 4) as f32,
            Weights::Fractions => (word >> 40) as f32 / (1 << 20) as f32,
            Weights::Tail => {
                (1.0 + ((word >> 40) % 1024) as f32 / 1024.0) * 2f32.powi((word % 31) as i32 - 15)
            }
        });
    }
    columns
}

fn split_mix(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
