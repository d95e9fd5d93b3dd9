//! Why raw columns do not fit a model.

use crate::convert::number;
use crate::convert::rows::fault::unequal_lengths;

/// Why raw columns do not fit a model. Rows count from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RawColumnError {
    /// The model's data have no raw rows.
    #[error("generated data have no raw rows: give mapped features")]
    NoRawRows,
    /// A column of the model is missing.
    #[error("there is no column {name}{hint}")]
    Missing {
        /// The column.
        name: String,
        /// What the caller may have meant, or nothing.
        hint: String,
    },
    /// The model has no such column.
    #[error("the model has no column {name}{hint}")]
    Unknown {
        /// The column.
        name: String,
        /// What the caller may have meant, or nothing.
        hint: String,
    },
    /// Two columns have one name.
    #[error("column {name} is given twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// A column has another number of rows.
    #[error("column {column} has {found} {}; expected {expected}", if *found == 1 { "row" } else { "rows" })]
    Rows {
        /// The column.
        column: String,
        /// Rows of the batch.
        expected: usize,
        /// Rows of the column.
        found: usize,
    },
    /// Offsets do not start at 0, decrease, or do not end at the number of values.
    #[error("column {column}: its offsets must rise from 0 to the number of values, {values}")]
    Offsets {
        /// The column.
        column: String,
        /// The number of values.
        values: usize,
    },
    /// A column has more values than offsets can count.
    #[error("column {column} has more than {} values: give fewer rows at a time", u32::MAX)]
    TooManyValues {
        /// The column.
        column: String,
    },
    /// The values of a column have the wrong type.
    #[error("column {column} has {found}, but the model needs {expected}")]
    Type {
        /// The column.
        column: String,
        /// The type of the values.
        found: String,
        /// What is needed.
        expected: &'static str,
    },
    /// A value is not one of its column.
    #[error("column {column}, row {row}: {value} is not {expected}")]
    Value {
        /// The column.
        column: String,
        /// The row.
        row: usize,
        /// The value.
        value: String,
        /// What is needed.
        expected: String,
    },
    /// A row has another number of weights than of categories.
    #[error("column {column}, row {row}: {}", number::weight_count((*found, *expected), of))]
    WeightCount {
        /// The column of the weights.
        column: String,
        /// The row.
        row: usize,
        /// The column of the categories.
        of: String,
        /// Categories of the row.
        expected: usize,
        /// Weights of the row.
        found: usize,
    },
    /// The columns of a sequence have different numbers of categories in a row.
    #[error("column {column}, row {row}: {}", unequal_lengths((*found, *expected), of))]
    SequenceLength {
        /// A column of the sequence.
        column: String,
        /// The row.
        row: usize,
        /// The first column of the sequence.
        of: String,
        /// Categories of that column.
        expected: usize,
        /// Categories of this column.
        found: usize,
    },
    /// A row has another number of categories than the column has in training.
    #[error("column {column}, row {row}: {found} categories; expected {expected}")]
    BagSize {
        /// The column.
        column: String,
        /// The row.
        row: usize,
        /// Categories per row.
        expected: String,
        /// Categories of this row.
        found: usize,
    },
}

impl RawColumnError {
    /// A list of a sequence has a null, so that later categories would be at other positions.
    pub fn null_in_sequence(column: &str, row: usize) -> Self {
        let (column, value) = (column.to_owned(), "null".into());
        Self::Value { column, row, value, expected: "a category: each position of a sequence has one".into() }
    }
}
