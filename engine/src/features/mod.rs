//! Features of some rows, as a program has them in memory: mapped to numbers and rows of tables, or raw.
//!
//! A [`crate::ranker::Ranker`] scores them, and a [`crate::trainer::Trainer`] trains on them, with labels.

#[cfg(feature = "arrow")]
mod arrow;
mod error;
mod labels;
mod raw;

use rankine_reader::buckets::append_ids;
use rankine_reader::schema::{Categorical, Hotness};
use rankine_reader::{Bags, IdRules, OutOfRange, Samples, Schema};

#[cfg(feature = "arrow")]
pub(crate) use arrow::MappedRows;
#[cfg(feature = "arrow")]
pub use arrow::{ArrowColumn, ArrowRows};
pub use error::FeatureError;
pub use labels::TrainingRows;
pub(crate) use labels::check_bags;
pub use rankine_reader::convert::{RawColumn, RawColumnError, RawColumnValues};
pub(crate) use raw::RawEncoder;

/// Mapped features of some rows: what a dataset stores, in the order of the model's columns.
#[derive(Debug, Clone, Copy)]
pub struct Features<'a> {
    /// Number of rows.
    pub rows: usize,
    /// `[rows, dense columns]`, row-major: finite numbers, after the dataset's transforms.
    pub dense: &'a [f32],
    /// One entry per categorical column, except for those that the job has made of numbers: their ids follow from
    /// `dense`.
    pub categorical: &'a [Ids<'a>],
}

/// The ids of a categorical column: numbers of rows of its table.
#[derive(Debug, Clone, Copy)]
pub enum Ids<'a> {
    /// As many ids in each row as the column has, row-major.
    Fixed(&'a [u64]),
    /// Any number of ids in each row: row `i` has `ids[offsets[i]..offsets[i + 1]]`.
    Bags {
        /// Where each row's ids start, then the end of the last one's: `rows + 1` numbers, the first one 0.
        offsets: &'a [u32],
        /// The ids of all rows.
        ids: &'a [u64],
    },
    /// The same with a weight for each id: for columns with weights.
    Weighted {
        /// Where each row's ids start, then the end of the last one's: `rows + 1` numbers, the first one 0.
        offsets: &'a [u32],
        /// The ids of all rows.
        ids: &'a [u64],
        /// One per id, 0 or more.
        weights: &'a [f32],
    },
}

impl Features<'_> {
    /// Copies checked features into `samples`, which have the columns of the schema, without positions of sequences
    /// that are too many. Ids out of range stay, where the rules are that they are no errors. Allocates nothing if
    /// `samples` had as many rows and ids before.
    pub(crate) fn check(
        &self,
        schema: &Schema,
        rules: &IdRules,
        samples: &mut Samples,
    ) -> Result<(), FeatureError> {
        let Self { rows, dense, categorical } = *self;
        let columns = schema.dense.len();
        if dense.len() != rows * columns {
            return Err(FeatureError::DenseShape { rows, columns, found: dense.len() });
        }
        if let Some(at) = dense.iter().position(|value| !value.is_finite()) {
            let column = schema.dense[at % columns].name.clone();
            return Err(FeatureError::NotFinite { row: at / columns, column, value: dense[at] });
        }
        // Buckets are computed from the numbers.
        let stored = schema.stored_categorical();
        if categorical.len() != stored.len() {
            let expected = stored.len();
            return Err(FeatureError::CategoricalColumns { expected, found: categorical.len() });
        }
        samples.clear();
        samples.len = rows;
        samples.dense.extend_from_slice(dense);
        for (number, (ids, column)) in categorical.iter().zip(stored).enumerate() {
            let bags = &mut samples.categorical[number];
            let copy = CheckedCopy { column, rows };
            match *ids {
                Ids::Fixed(ids) => copy.fixed(ids, bags)?,
                Ids::Bags { .. } if column.weighted => {
                    return Err(FeatureError::NoIdWeights { column: column.name.clone() });
                }
                Ids::Bags { offsets, ids } => copy.bags(offsets, ids, bags)?,
                Ids::Weighted { .. } if !column.weighted => {
                    return Err(FeatureError::IdWeights { column: column.name.clone() });
                }
                Ids::Weighted { offsets, ids, weights } => {
                    copy.bags(offsets, ids, bags)?;
                    copy.weights(weights, bags)?;
                }
            }
        }
        schema.check_lengths(samples, 0)?;
        schema.trim_sequences(samples, 0);
        append_ids(schema, samples);
        check_ids(schema, rules, samples)
    }
}

/// Checks that ids are rows of their tables where the policy is that others are errors.
fn check_ids(schema: &Schema, rules: &IdRules, samples: &Samples) -> Result<(), FeatureError> {
    for (number, (column, bags)) in schema.categorical.iter().zip(&samples.categorical).enumerate() {
        let Some(rows) = column.rows.filter(|_| rules.of(number) == OutOfRange::Fail) else { continue };
        if let Some(at) = bags.ids.iter().position(|&id| id >= rows) {
            let row = row_of(&bags.offsets, at);
            let (column, id) = (column.name.clone(), bags.ids[at]);
            return Err(FeatureError::IdOutOfRange { column, row, id, rows });
        }
    }
    Ok(())
}

/// Returns the row that the value at a position belongs to, by checked offsets.
fn row_of(offsets: &[u32], at: usize) -> usize {
    offsets.partition_point(|&offset| offset as usize <= at) - 1
}

/// Copies the ids of a column.
struct CheckedCopy<'a> {
    column: &'a Categorical,
    rows: usize,
}

impl CheckedCopy<'_> {
    fn fixed(&self, ids: &[u64], to: &mut Bags) -> Result<(), FeatureError> {
        let Hotness::Fixed(count) = self.column.hotness else {
            return Err(FeatureError::NoOffsets { column: self.column.name.clone() });
        };
        let (rows, count) = (self.rows, count as usize);
        if ids.len() != rows * count {
            let column = self.column.name.clone();
            return Err(FeatureError::IdsShape { column, rows, count, found: ids.len() });
        }
        (0..rows).for_each(|row| to.push(ids[row * count..(row + 1) * count].iter().copied()));
        Ok(())
    }

    fn bags(&self, offsets: &[u32], ids: &[u64], to: &mut Bags) -> Result<(), FeatureError> {
        let column = || self.column.name.clone();
        if offsets.len() != self.rows + 1 {
            return Err(FeatureError::OffsetsLength {
                column: column(),
                expected: self.rows + 1,
                found: offsets.len(),
            });
        }
        if offsets[0] != 0 {
            return Err(FeatureError::FirstOffset { column: column(), found: offsets[0] });
        }
        if let Some(row) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            let (from, to) = (offsets[row], offsets[row + 1]);
            return Err(FeatureError::OffsetsDecrease { column: column(), row, from, to });
        }
        let end = offsets[self.rows];
        if end as usize != ids.len() {
            return Err(FeatureError::LastOffset { column: column(), end, ids: ids.len() });
        }
        for (row, pair) in offsets.windows(2).enumerate() {
            let bag = &ids[pair[0] as usize..pair[1] as usize];
            if let Hotness::Fixed(expected) = self.column.hotness
                && bag.len() != expected as usize
            {
                return Err(FeatureError::BagSize { column: column(), row, expected, found: bag.len() });
            }
            to.push(bag.iter().copied());
        }
        Ok(())
    }

    /// Copies the weights of ids, and leaves out the ids whose weight is 0.
    fn weights(&self, weights: &[f32], to: &mut Bags) -> Result<(), FeatureError> {
        let column = || self.column.name.clone();
        if weights.len() != to.ids.len() {
            let (expected, found) = (to.ids.len(), weights.len());
            return Err(FeatureError::IdWeightCount { column: column(), expected, found });
        }
        to.weights.extend_from_slice(weights);
        let is_weight = |weight: &f32| *weight >= 0.0 && weight.is_finite();
        if let Some(at) = to.weights.iter().position(|weight| !is_weight(weight)) {
            let (row, value) = (row_of(&to.offsets, at), to.weights[at]);
            return Err(FeatureError::Weight { column: column(), row, value });
        }
        to.remove_zero_weights(0);
        Ok(())
    }
}
