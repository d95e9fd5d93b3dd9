//! Means and deviations that do not depend on the number of threads: one sum per chunk, merged in chunk order.

use crate::schema::{DenseFunction, DenseTransform};

/// Count, mean and squared deviations of some values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Moments {
    pub(crate) count: u64,
    pub(crate) mean: f64,
    /// The sum of `(value - mean)^2`.
    pub(crate) squares: f64,
}

impl Moments {
    /// Returns the moments of one chunk's values. Sums are taken about the first value, so equal values give squares
    /// of exactly 0.
    pub(crate) fn of(mut values: impl Iterator<Item = f64>) -> Self {
        let Some(origin) = values.next() else { return Self::default() };
        let (mut count, mut sum, mut sum_squares) = (1, 0.0, 0.0);
        for value in values {
            let delta = value - origin;
            count += 1;
            sum += delta;
            sum_squares += delta * delta;
        }
        let squares = f64::max(sum_squares - sum * sum / count as f64, 0.0);
        Self { count, mean: origin + sum / count as f64, squares }
    }

    /// Adds the moments of the values that follow these (Chan, Golub and LeVeque, 1979).
    pub(crate) fn merge(&mut self, other: &Self) {
        if self.count == 0 || other.count == 0 {
            if self.count == 0 {
                *self = *other;
            }
            return;
        }
        let (mine, theirs) = (self.count as f64, other.count as f64);
        let delta = other.mean - self.mean;
        self.count += other.count;
        self.mean += delta * (theirs / (mine + theirs));
        self.squares += other.squares + delta * delta * (mine * theirs / (mine + theirs));
    }

    /// Returns the transformation that standardizes these values: mean 0, and deviation 1 unless all are equal.
    pub(crate) fn transform(&self, function: DenseFunction) -> DenseTransform {
        let deviation = (self.squares / self.count.max(1) as f64).sqrt();
        let deviation = if deviation > 0.0 { deviation } else { 1.0 };
        DenseTransform { function, mean: self.mean, deviation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_constant_column_keeps_its_scale() {
        let mut moments = Moments::of([20.7; 1000].into_iter());
        moments.merge(&Moments::of([20.7; 333].into_iter()));
        moments.merge(&Moments::default());
        let transform = moments.transform(DenseFunction::SignedLog1p);
        assert_eq!((transform.mean, transform.deviation), (20.7, 1.0));
        let none = Moments::default().transform(DenseFunction::SignedLog1p);
        assert_eq!((none.mean, none.deviation), (0.0, 1.0));
    }

    proptest! {
        #[test]
        fn chunks_merge_to_the_whole(
            values in prop::collection::vec(-50.0..50.0f64, 1..200),
            chunk in 1..50usize,
            offset in prop::sample::select(&[0.0, 1e6][..]),
        ) {
            let values: Vec<f64> = values.iter().map(|value| value + offset).collect();
            let mut merged = Moments::default();
            values.chunks(chunk).for_each(|chunk| merged.merge(&Moments::of(chunk.iter().copied())));
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            // A few hundred rounding errors of numbers up to the offset's size.
            let tolerance = 1e-13 * (1.0 + offset);
            prop_assert!((merged.mean - mean).abs() < tolerance);
            prop_assert!((merged.squares - squares).abs() < tolerance * 100.0 * n + squares * 1e-12);
            prop_assert_eq!(merged.count as f64, n);
        }
    }
}
