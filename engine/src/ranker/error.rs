//! Why rows cannot be scored, and why a model does not replace another.

use super::ROWS_MAX;
use crate::features::FeatureError;
use crate::source::SourceError;

/// Why rows cannot be scored. Rows count from 0.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScoreError {
    /// There are more rows than can be scored at a time.
    #[error("{rows} rows are more than {ROWS_MAX}: score them in several calls")]
    TooManyRows {
        /// Their number.
        rows: usize,
    },
    /// The features of a row cannot be used.
    #[error(transparent)]
    Features(#[from] FeatureError),
    /// The array for the scores has another length than rows times heads.
    #[error("room for {found} scores; expected {}, rows times heads", rows * heads)]
    ScoresShape {
        /// Number of rows.
        rows: usize,
        /// Heads of the model.
        heads: usize,
        /// Length of the array.
        found: usize,
    },
    /// A score is NaN.
    #[error("the score of row {row} is not a number: numbers of the row are too large for the model")]
    NotANumber {
        /// The row.
        row: usize,
    },
}

/// Why a model does not replace the one that is scoring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// It cannot be loaded.
    #[error(transparent)]
    Load(#[from] SourceError),
    /// It has other columns or labels, so that callers would have to change with it.
    #[error("the new model has the columns {found:?}, but {expected:?} are being scored")]
    Columns {
        /// Those of the model that is scoring: labels, dense columns and categorical columns.
        expected: Vec<String>,
        /// Those of the new one.
        found: Vec<String>,
    },
}
