//! Why a prediction fails.

use std::path::PathBuf;

use rankine_reader::convert::BadName;
use rankine_saved::SavedModelError;

/// Why there are no predictions.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    /// The dataset or the raw rows cannot be read.
    #[error(transparent)]
    Data(#[from] rankine_base::Error),
    /// The model cannot be read.
    #[error(transparent)]
    Saved(#[from] SavedModelError),
    /// The predictions cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Two columns of the predictions would have one name.
    #[error(
        "the predictions would have two columns named {column}: leave it out of --keep-columns, or rename it in the \
         files"
    )]
    Column {
        /// The name.
        column: String,
    },
    /// A category has no row of its own, and such rows are not to be scored.
    #[error(
        "row {row} has an unknown category in column {column}: it was rare or absent in the training data. --unknown \
         oov scores such rows with the row for unknown categories, --unknown skip skips them"
    )]
    Unknown {
        /// The number of the row, the first being 1.
        row: u64,
        /// The column.
        column: String,
    },
    /// A row cannot be read, and bad rows are not to be skipped.
    #[error("{0}\nno predictions were written; --on-bad skip skips such rows, and counts and lists them")]
    BadRow(BadName),
    /// A prediction is NaN.
    #[error("the prediction of row {row} is not a number: numbers of the row are too large for the model")]
    NotFinite {
        /// The number of the row, the first being 1.
        row: u64,
    },
}
