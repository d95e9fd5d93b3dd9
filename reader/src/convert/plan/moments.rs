//! Means and deviations that depend on nothing but the values: not on threads, chunks, files or machines.

use serde::{Deserialize, Serialize};

use crate::convert::plan::exact::{ExactSum, NearSums, SQUARES_DIGITS, SUM_DIGITS, deviation, mean};
use crate::schema::{DenseFunction, DenseTransform};

/// Count, sum and sum of squares of some values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Moments {
    count: u64,
    sum: ExactSum<SUM_DIGITS>,
    squares: ExactSum<SQUARES_DIGITS>,
}

/// Integers below this are counted, and the function of each is added as often as it occurs.
const SMALL: usize = 1 << 10;
/// Numbers that are looked at before those among them that were not counted are added.
const LOOKED_AT: usize = 1 << 10;
/// Numbers that are counted before their functions are added.
const COUNTED_MAX: usize = 1 << 20;

impl Moments {
    /// Returns the moments of a function of finite numbers, except for those that are missing: NaN.
    pub(crate) fn of(numbers: &[f64], function: impl Fn(f64) -> f64) -> Self {
        let (mut moments, mut near) = (Self::default(), NearSums::default());
        let mut add = |number: f64, times: u32| {
            moments.count += u64::from(times);
            near.add(function(number), times, &mut moments.sum, &mut moments.squares);
        };
        for numbers in numbers.chunks(COUNTED_MAX) {
            let mut counts = [0; SMALL + 1];
            for numbers in numbers.chunks(LOOKED_AT) {
                let mut others = [0.0; LOOKED_AT];
                let found = count_small(numbers, &mut counts, &mut others);
                others[..found].iter().for_each(|&number| add(number, 1));
            }
            let counted = counts[..SMALL].iter().enumerate().filter(|&(_, &count)| count > 0);
            counted.for_each(|(integer, &count)| add(integer as f64, count));
        }
        near.move_to(&mut moments.sum, &mut moments.squares);
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

/// Counts the small integers among some numbers; the last count is for all other numbers. Copies these, but not NaN, to
/// the front of `others`, and returns how many they are.
fn count_small(numbers: &[f64], counts: &mut [u32; SMALL + 1], others: &mut [f64; LOOKED_AT]) -> usize {
    // Sums with it have the unit 1, and their lowest bits are an integer from 0.
    const INTEGERS: f64 = (1_u64 << 52) as f64;
    let mut found = 0;
    // No branch depends on a number, since what it is comes at random: each one is copied, and kept if it is another.
    for &number in numbers {
        let moved = number + INTEGERS;
        let integer = moved.to_bits().wrapping_sub(INTEGERS.to_bits());
        let is_small = (integer < SMALL as u64) & (moved - INTEGERS == number);
        counts[if is_small { integer as usize } else { SMALL }] += 1;
        others[found] = number;
        found += usize::from(!is_small & !number.is_nan());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64]) -> Moments {
        Moments::of(values, |value| value)
    }

    fn mean_and_deviation(moments: &Moments) -> [f64; 2] {
        let DenseTransform { mean, deviation, .. } = moments.transform(DenseFunction::None);
        [mean, deviation]
    }

    #[test]
    fn a_constant_column_keeps_its_scale() {
        let mut moments = of(&[20.7; 1000]);
        moments.merge(&of(&[20.7; 333]));
        moments.merge(&Moments::default());
        assert_eq!(mean_and_deviation(&moments), [20.7, 1.0]);
        assert_eq!(mean_and_deviation(&Moments::default()), [0.0, 1.0]);
    }

    /// Values whose mean and deviation are known, at both ends of the range.
    #[test]
    fn nothing_is_rounded_before_the_end() {
        let of = |values: &[f64]| mean_and_deviation(&of(values));
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

    /// Sums each number and its square on its own.
    fn one_by_one(values: &[f64]) -> Moments {
        let mut moments = Moments { count: values.len() as u64, ..Moments::default() };
        for &value in values {
            moments.sum.add(value);
            moments.squares.add_square(value);
        }
        moments
    }

    fn text(moments: &Moments) -> String {
        serde_json::to_string(moments).unwrap()
    }

    /// More numbers than fit into a sum of squares with 128 bits.
    #[test]
    fn many_numbers_of_one_exponent_do_not_overflow() {
        let largest = f64::from_bits(2.0_f64.to_bits() - 1);
        let many = of(&vec![largest; 5 << 20]);
        let mut expected = one_by_one(&[largest; 5]);
        for _ in 0..20 {
            let half = expected.clone();
            expected.merge(&half);
        }
        assert_eq!(text(&many), text(&expected));
    }

    proptest! {
        /// Numbers of every magnitude and of both signs: on both sides of the ranges that are counted, or summed by
        /// exponent.
        #[test]
        fn sums_of_many_numbers_are_those_of_single_ones(
            numbers in prop::collection::vec((any::<f64>(), -40..40, 0..6_u8), 0..3000),
        ) {
            let number = |(any, exponent, kind): (f64, i32, u8)| match kind {
                0 if any.is_finite() => any,
                0 | 1 => 0.0_f64.copysign(any),
                2 => 2.0_f64.powi(exponent).copysign(any),
                3 => f64::from(exponent * 30 + 7),
                4 => f64::NAN,
                _ => f64::from_bits(any.to_bits() & !(0x7ff << 52) | u64::from((1023 + exponent) as u32) << 52),
            };
            let values: Vec<_> = numbers.into_iter().map(number).collect();
            let function = |value: f64| if value == 7.0 { 1e300 } else { value - 3.0 };
            let each: Vec<_> = values.iter().filter(|value| !value.is_nan()).map(|&value| function(value)).collect();
            prop_assert_eq!(text(&Moments::of(&values, function)), text(&one_by_one(&each)));
        }

        #[test]
        fn chunks_merge_to_the_same_bits(
            values in prop::collection::vec(-1e9..1e9f64, 1..200),
            chunk in 1..50usize,
            scale in prop::sample::select(&[1.0, 1e-200, 1e-30, 1e30][..]),
        ) {
            let values: Vec<f64> = values.iter().map(|value| value * scale).collect();
            let whole = of(&values);
            let mut merged = Moments::default();
            values.rchunks(chunk).for_each(|chunk| {
                let text = serde_json::to_string(&of(chunk)).unwrap();
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
            let [mean, deviation] = {
                let values: Vec<_> = integers.iter().map(|&x| x as f64 * unit).collect();
                mean_and_deviation(&of(&values))
            };
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
