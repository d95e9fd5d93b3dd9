//! Means and deviations that depend on nothing but the values: not on threads, chunks, files or machines.

use serde::{Deserialize, Serialize};

use crate::convert::plan::exact::{ExactSum, SQUARES_DIGITS, SUM_DIGITS, deviation, mean};
use crate::schema::{DenseFunction, DenseTransform};

/// Count, sum and sum of squares of some values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Moments {
    count: u64,
    sum: ExactSum<SUM_DIGITS>,
    squares: ExactSum<SQUARES_DIGITS>,
}

impl Moments {
    /// Returns the moments of finite values.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut moments = Self::default();
        for value in values {
            moments.count += 1;
            moments.sum.add(value);
            moments.squares.add_square(value);
        }
        moments
    }

    /// Returns the number of values.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Adds the moments of other values.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum.merge(&other.sum);
        self.squares.merge(&other.squares);
    }

    /// Returns the transformation that standardizes these values: mean 0, and deviation 1 unless all are equal.
    pub(crate) fn transform(&self, function: DenseFunction) -> DenseTransform {
        if self.count == 0 {
            return DenseTransform { function, mean: 0.0, deviation: 1.0 };
        }
        let deviation = deviation(&self.sum, &self.squares, self.count);
        let deviation = if deviation > 0.0 { deviation } else { 1.0 };
        DenseTransform { function, mean: mean(&self.sum, self.count), deviation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mean_and_deviation(moments: &Moments) -> [f64; 2] {
        let DenseTransform { mean, deviation, .. } = moments.transform(DenseFunction::None);
        [mean, deviation]
    }

    #[test]
    fn a_constant_column_keeps_its_scale() {
        let mut moments = Moments::of([20.7; 1000].into_iter());
        moments.merge(&Moments::of([20.7; 333].into_iter()));
        moments.merge(&Moments::default());
        assert_eq!(mean_and_deviation(&moments), [20.7, 1.0]);
        assert_eq!(mean_and_deviation(&Moments::default()), [0.0, 1.0]);
    }

    /// Values whose mean and deviation are known, at both ends of the range.
    #[test]
    fn nothing_is_rounded_before_the_end() {
        let of = |values: &[f64]| mean_and_deviation(&Moments::of(values.iter().copied()));
        assert_eq!(of(&[1.0, 3.0]), [2.0, 1.0]);
        assert_eq!(of(&[-1.0, -3.0]), [-2.0, 1.0]);
        let [mean, deviation] = of(&[1e300, 1.0, -1e300]);
        assert_eq!(mean, 1.0 / 3.0);
        // Rounded four times, here and there.
        assert!((deviation / ((2.0 / 3.0_f64).sqrt() * 1e300) - 1.0).abs() < 4.0 * f64::EPSILON);
        let tiny = f64::from_bits(1);
        assert_eq!(of(&[tiny, 3.0 * tiny]), [2.0 * tiny, tiny]);
        assert_eq!(of(&[f64::MAX; 3]), [f64::MAX, 1.0]);
        assert_eq!(of(&[f64::MAX, -f64::MAX]), [0.0, f64::MAX]);
        // A difference that is lost in sums of doubles: (2^53 + 1) / 2 has a half that is rounded to even.
        assert_eq!(of(&[9_007_199_254_740_992.0, 1.0])[0], 4_503_599_627_370_496.5);
    }

    proptest! {
        #[test]
        fn chunks_merge_to_the_same_bits(
            values in prop::collection::vec(-1e9..1e9f64, 1..200),
            chunk in 1..50usize,
            scale in prop::sample::select(&[1.0, 1e-200, 1e-30, 1e30][..]),
        ) {
            let values: Vec<f64> = values.iter().map(|value| value * scale).collect();
            let whole = Moments::of(values.iter().copied());
            let mut merged = Moments::default();
            values.rchunks(chunk).for_each(|chunk| {
                let text = serde_json::to_string(&Moments::of(chunk.iter().copied())).unwrap();
                merged.merge(&serde_json::from_str(&text).unwrap());
            });
            prop_assert_eq!(mean_and_deviation(&merged), mean_and_deviation(&whole));
            prop_assert_eq!(serde_json::to_string(&merged).unwrap(), serde_json::to_string(&whole).unwrap());
        }

        /// Integers, whose sums and sums of squares are exact in 128 bits.
        #[test]
        fn means_and_deviations_are_those_of_integers(
            integers in prop::collection::vec(-1_000_000_000..1_000_000_000_i64, 1..100),
            exponent in -900..900,
        ) {
            let unit = 2.0_f64.powi(exponent);
            let [mean, deviation] = mean_and_deviation(&Moments::of(integers.iter().map(|&x| x as f64 * unit)));
            let n = integers.len() as i128;
            let sum: i128 = integers.iter().map(|&x| i128::from(x)).sum();
            let squares: i128 = integers.iter().map(|&x| i128::from(x).pow(2)).sum();
            // Both numbers are below 2^53, so only the division rounds.
            prop_assert_eq!(mean, sum as f64 / n as f64 * unit);
            let difference = n * squares - sum * sum;
            let expected = if difference > 0 { (difference as f64).sqrt() / n as f64 * unit } else { 1.0 };
            // Rounding before the root, the root and the division: each is within 2^-53.
            prop_assert!((deviation - expected).abs() <= 4.0 * f64::EPSILON * expected, "{} {}", deviation, expected);
        }
    }
}
