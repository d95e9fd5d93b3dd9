//! Why features of rows cannot be used.

use rankine_reader::convert::RawColumnError;
use rankine_reader::schema::UnequalLengths;

/// Why features of rows cannot be used. Rows count from 0.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FeatureError {
    /// The array of dense features has another length than rows times columns.
    #[error("dense features: {found} numbers for {rows} rows of {columns} columns; expected {}", rows * columns)]
    DenseShape {
        /// Number of rows.
        rows: usize,
        /// Dense columns of the model.
        columns: usize,
        /// Length of the array.
        found: usize,
    },
    /// A dense feature is NaN or infinite.
    #[error("column {column}, row {row}: {value} is not finite; mapped features have no missing numbers")]
    NotFinite {
        /// The row.
        row: usize,
        /// The column.
        column: String,
        /// The number.
        value: f32,
    },
    /// There are more or fewer categorical columns than the model has.
    #[error("{found} categorical columns, but the model has {expected}")]
    CategoricalColumns {
        /// Those of the model.
        expected: usize,
        /// Those of the caller.
        found: usize,
    },
    /// A column whose rows have any number of ids comes without offsets.
    #[error("column {column} is ragged, so it needs offsets")]
    NoOffsets {
        /// The column.
        column: String,
    },
    /// The array of ids has another length than rows times ids per row.
    #[error("column {column}: {found} ids for {rows} rows of {count}; expected {}", rows * count)]
    IdsShape {
        /// The column.
        column: String,
        /// Number of rows.
        rows: usize,
        /// Ids per row.
        count: usize,
        /// Length of the array.
        found: usize,
    },
    /// There are not as many offsets as rows and one more.
    #[error("column {column}: {found} offsets; expected {expected}, one per row and the end of the last one")]
    OffsetsLength {
        /// The column.
        column: String,
        /// The number that is needed.
        expected: usize,
        /// Length of the array.
        found: usize,
    },
    /// The first offset is not 0.
    #[error("column {column}: the first offset is {found}; expected 0")]
    FirstOffset {
        /// The column.
        column: String,
        /// The offset.
        found: u32,
    },
    /// An offset is less than the one before.
    #[error("column {column}, row {row}: the offsets decrease from {from} to {to}")]
    OffsetsDecrease {
        /// The column.
        column: String,
        /// The row.
        row: usize,
        /// Where it starts.
        from: u32,
        /// Where it ends.
        to: u32,
    },
    /// A column whose ids have weights comes without weights.
    #[error("column {column}: its ids have weights in the dataset, but none were given: pass one per id")]
    NoIdWeights {
        /// The column.
        column: String,
    },
    /// A column whose ids have no weights comes with weights.
    #[error("column {column}: weights were given, but its ids have none in the dataset: omit them")]
    IdWeights {
        /// The column.
        column: String,
    },
    /// The columns of a sequence have different numbers of ids in a row.
    #[error("column {column}, row {row}: {found} ids, but column {of} of the same sequence has {expected}")]
    SequenceLength {
        /// A column of the sequence.
        column: String,
        /// The row.
        row: usize,
        /// The first column of the sequence.
        of: String,
        /// Ids of that column.
        expected: usize,
        /// Ids of this column.
        found: usize,
    },
    /// There are more or fewer weights than ids.
    #[error("column {column}: {found} weights for {expected} ids; expected one per id")]
    IdWeightCount {
        /// The column.
        column: String,
        /// The number of ids.
        expected: usize,
        /// The number of weights.
        found: usize,
    },
    /// The last offset is not the number of ids.
    #[error("column {column}: the last offset is {end}, but there are {ids} ids")]
    LastOffset {
        /// The column.
        column: String,
        /// The offset.
        end: u32,
        /// The number of ids.
        ids: usize,
    },
    /// A row of a column with a fixed number of ids has another number.
    #[error("column {column}, row {row}: {found} ids; expected {expected}, as in training")]
    BagSize {
        /// The column.
        column: String,
        /// The row.
        row: usize,
        /// Ids per row.
        expected: u32,
        /// Ids of this row.
        found: usize,
    },
    /// An id is not a row of its table, and the job's policy is `fail`.
    #[error("column {column}, row {row}: id {id} is out of range: its table has {rows} rows")]
    IdOutOfRange {
        /// The column.
        column: String,
        /// The row.
        row: usize,
        /// The id.
        id: u64,
        /// Rows of the table.
        rows: u64,
    },
    /// Raw columns do not fit the model.
    #[error(transparent)]
    Raw(#[from] RawColumnError),
    /// A row has more ids than any row of the dataset has.
    #[error("column {column}, row {row}: {found} ids; expected at most {most}, the maximum in the dataset")]
    BagTooLarge {
        /// The column.
        column: String,
        /// The row.
        row: usize,
        /// The most ids of a row.
        most: u32,
        /// Ids of this row.
        found: usize,
    },
    /// There are more or fewer labels than the dataset has.
    #[error("{found} {}; expected {expected}", if *found == 1 { "label" } else { "labels" })]
    Labels {
        /// Those of the dataset.
        expected: usize,
        /// Those of the caller.
        found: usize,
    },
    /// A label or the weight has another number of rows.
    #[error("column {column} has {found} {}; expected {expected}", if *found == 1 { "row" } else { "rows" })]
    Rows {
        /// The column.
        column: String,
        /// Number of rows.
        expected: usize,
        /// Length of the array.
        found: usize,
    },
    /// A label is not 0, 1 or NaN.
    #[error("column {column}, row {row}: {value} is not a label: it must be 0 or 1, or NaN if it is missing")]
    Label {
        /// The column.
        column: String,
        /// The row.
        row: usize,
        /// The value.
        value: f32,
    },
    /// The dataset has weights, and the rows have none.
    #[error("no weights were given, but the dataset has the weight column `{column}`: pass them")]
    NoWeights {
        /// The column.
        column: String,
    },
    /// The rows have weights, and the dataset has none.
    #[error("weights were given, but the dataset has no weight column: omit them")]
    Weights,
    /// A weight is negative or not finite.
    #[error(
        "column {column}, row {row}: {value} is not a weight: it must be 0, or a number from 1.5e-45 to 3.4e38"
    )]
    Weight {
        /// The column.
        column: String,
        /// The row.
        row: usize,
        /// The value.
        value: f32,
    },
}

impl From<UnequalLengths> for FeatureError {
    fn from(unequal: UnequalLengths) -> Self {
        let UnequalLengths { sequence: _, sample: row, column, found, of, expected } = unequal;
        Self::SequenceLength { column, row, of, expected, found }
    }
}

#[cfg(any(feature = "arrow", test))]
impl FeatureError {
    /// Makes the row of the error count from `rows` rows earlier.
    pub(crate) fn shift_rows(&mut self, rows: usize) {
        match self {
            Self::NotFinite { row, .. }
            | Self::OffsetsDecrease { row, .. }
            | Self::BagSize { row, .. }
            | Self::BagTooLarge { row, .. }
            | Self::IdOutOfRange { row, .. }
            | Self::Label { row, .. }
            | Self::Weight { row, .. }
            | Self::SequenceLength { row, .. }
            | Self::Raw(
                RawColumnError::Value { row, .. }
                | RawColumnError::BagSize { row, .. }
                | RawColumnError::SequenceLength { row, .. }
                | RawColumnError::WeightCount { row, .. },
            ) => *row += rows,
            _ => {}
        }
    }
}
