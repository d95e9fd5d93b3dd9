//! Buckets: categorical columns that are computed from numbers.
//!
//! A bucket column is not stored. Whatever makes samples of blocks, raw records, raw rows or a program's features
//! appends its ids with [`append_ids`], from the numbers as they are stored. So a number has the same bucket in
//! training and in prediction.

use crate::samples::Samples;
use crate::schema::{Dense, DenseDtype, Schema};

/// Most buckets of a column.
pub const BUCKETS_MAX: u32 = 65_536;
/// The magnitudes at which logarithmic buckets begin: 2 to the power of these.
const LOG_EXPONENTS: std::ops::RangeInclusive<i32> = -20..=40;

/// Returns the bucket of a stored number: how many of the ascending boundaries are not above it.
pub fn bucket(boundaries: &[f32], value: f32) -> u64 {
    boundaries.partition_point(|&boundary| boundary <= value) as u64
}

/// Appends the ids of all bucket columns to samples whose other columns are complete.
#[doc(hidden)]
pub fn append_ids(schema: &Schema, samples: &mut Samples) {
    let stored = schema.stored_categorical().len();
    let Samples { len, dense, dense_columns, categorical, .. } = samples;
    for (column, bags) in schema.bucket_columns().iter().zip(&mut categorical[stored..]) {
        let Some((of, boundaries)) = column.buckets() else { continue };
        let Some(number) = schema.dense.iter().position(|dense| dense.name == of) else { continue };
        let done = bags.offsets.len() - 1;
        let values = dense.iter().skip(done * *dense_columns + number).step_by((*dense_columns).max(1));
        // Numbers of a program may have more precision than stored ones.
        let ids =
            values.take(*len - done).map(|&value| bucket(boundaries, schema.dense_dtype.rounded(value)));
        bags.extend_one_hot(ids);
    }
}

/// Returns the boundaries of a dense column as stored numbers; `raw` are numbers before its transform. A raw number
/// that is not below a boundary is in a bucket above it, however the storage type rounds.
pub fn stored_boundaries(column: &Dense, dtype: DenseDtype, raw: impl IntoIterator<Item = f64>) -> Vec<f32> {
    let largest = dtype.largest();
    let stored = |raw| dtype.rounded(column.transform.apply(Some(raw)).clamp(-largest, largest));
    let mut boundaries: Vec<_> = raw.into_iter().map(stored).collect();
    boundaries.sort_by(f32::total_cmp);
    boundaries
}

/// Returns the boundaries of logarithmic buckets of a dense column: 0, and the powers of 2 from 2^-20 to 2^40 and their
/// negatives, before the column's transform, without those that are stored as the same number.
pub fn log_boundaries(column: &Dense, dtype: DenseDtype) -> Vec<f32> {
    let magnitudes = || LOG_EXPONENTS.map(|exponent| f64::from(exponent).exp2());
    let raw = magnitudes().map(|magnitude| -magnitude).chain([0.0]).chain(magnitudes());
    let mut boundaries = stored_boundaries(column, dtype, raw);
    boundaries.dedup();
    boundaries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Categorical, DenseFunction, DenseTransform, Hotness, Pooling, VocabularyKind};

    fn column(function: DenseFunction, mean: f64, deviation: f64) -> Dense {
        Dense { name: "age".into(), transform: DenseTransform { function, mean, deviation } }
    }

    #[test]
    fn a_bucket_begins_at_its_boundary() {
        let boundaries = [-1.0, 0.0, 0.0, 2.5];
        let cases = [(-7.0, 0), (-1.0, 1), (-0.5, 1), (-0.0, 3), (0.0, 3), (2.4, 3), (2.5, 4), (f32::MAX, 4)];
        for (value, expected) in cases {
            assert_eq!(bucket(&boundaries, value), expected, "{value}");
        }
        assert_eq!((bucket(&[], 1.0), bucket(&boundaries, f32::NAN)), (0, 0));
    }

    /// A raw number at or above a boundary is not below it once both are stored.
    #[test]
    fn boundaries_are_transformed_and_rounded_as_numbers_are() {
        for dtype in [DenseDtype::F16, DenseDtype::F32] {
            let column = column(DenseFunction::SignedLog1p, 1.5, 0.7);
            let raw = [-30.0, -0.1, 0.0, 0.3, 17.0, 18.0, 1e9];
            let boundaries = stored_boundaries(&column, dtype, raw);
            assert_eq!(boundaries.len(), raw.len());
            assert!(boundaries.is_sorted());
            for (number, raw) in raw.into_iter().enumerate() {
                let stored = dtype.rounded(column.transform.apply(Some(raw)));
                assert_eq!(bucket(&boundaries, stored), number as u64 + 1, "{raw} in {dtype}");
            }
        }
        // What the storage type cannot represent becomes its largest number.
        let plain = column(DenseFunction::None, 0.0, 1.0);
        assert_eq!(stored_boundaries(&plain, DenseDtype::F16, [1.0, 1e6]), [1.0, 65504.0]);
    }

    /// A program's 0.7 is stored as 0.7002, which is in the bucket above 0.7001.
    #[test]
    fn a_number_of_a_program_has_the_bucket_of_the_stored_number() {
        let of = column(DenseFunction::None, 0.0, 1.0);
        for (dtype, expected) in [(DenseDtype::F16, 1), (DenseDtype::F32, 0)] {
            let schema = Schema {
                labels: Vec::new(),
                weight: None,
                dense: vec![of.clone()],
                dense_dtype: dtype,
                sequences: Vec::new(),
                categorical: vec![Categorical {
                    name: "age_buckets".into(),
                    rows: Some(2),
                    hotness: Hotness::Fixed(1),
                    pooling: Pooling::Sum,
                    vocabulary: VocabularyKind::Buckets { of: "age".into(), boundaries: vec![0.7001] },
                    weighted: false,
                    shares: None,
                }],
            };
            let mut samples = Samples { len: 2, dense: vec![0.7, 5.0], ..Samples::new(&schema) };
            append_ids(&schema, &mut samples);
            assert_eq!(samples.categorical[0].ids, [expected, 1]);
            // Only those of further samples are appended.
            samples.len = 3;
            samples.dense.push(-1.0);
            append_ids(&schema, &mut samples);
            assert_eq!(
                (&samples.categorical[0].ids[1..], samples.categorical[0].bag(2)),
                (&[1, 0][..], &[0][..])
            );
        }
    }

    #[test]
    fn logarithmic_buckets_begin_at_powers_of_2() {
        let plain = log_boundaries(&column(DenseFunction::None, 0.0, 1.0), DenseDtype::F32);
        assert_eq!(plain.len(), 2 * 61 + 1);
        assert_eq!((plain[0], plain[61], plain[62]), (-(40f32.exp2()), 0.0, (-20f32).exp2()));
        assert_eq!(bucket(&plain, 4.0), bucket(&plain, 7.9));
        assert_eq!(bucket(&plain, 4.0) + 1, bucket(&plain, 8.0));
        assert_eq!(bucket(&plain, 0.0), 62);
        // Without negative numbers there are half as many.
        let floored = log_boundaries(&column(DenseFunction::MlperfLog, 0.0, 1.0), DenseDtype::F32);
        assert_eq!(floored.len(), 62);
        assert!(floored.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
