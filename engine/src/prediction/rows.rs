//! Predictions for raw rows, read, encoded and batched as those of the training were.

use std::path::PathBuf;

use rankine_reader::convert::{Encoder, Progress, RawReader, RowFormat};

use super::Predictions;
use super::error::PredictError;
use crate::raw_rows::{RowBatch, RowOptions, RowSink, RowsError, read_rows};

/// Scores the rows of `files`, in their order. Rows are numbered from 1 through all files, bad ones included, so that
/// predictions can be joined to the rows. `format` and `encoder` are the model's. A file may be
/// [`rankine_reader::convert::STANDARD_INPUT`].
///
/// # Errors
/// [`PredictError::BadRow`] for an unreadable row if such rows are not skipped; [`PredictError::Data`] if more rows
/// are bad than the limit admits, if no row is good, or if a file cannot be read or lacks a column; otherwise as
/// [`Predictions::add`].
pub fn predict_rows(
    predictions: &mut Predictions<'_>,
    files: &[PathBuf],
    format: &RowFormat,
    encoder: &Encoder,
    options: &RowOptions,
    progress: &dyn Progress,
) -> Result<(), PredictError> {
    let (schema, ids, keep) = (predictions.schema, predictions.ids.clone(), predictions.keep.to_vec());
    let threads = options.threads;
    let reader = RawReader { format, schema, encoder, ids: &ids, labelled: false, keep: &keep, threads };
    let rows = read_rows(&reader, files, options, progress, predictions)?;
    predictions.add_bad(rows.bad);
    predictions.set_distinct(&rows.unknown);
    Ok(())
}

impl RowSink for Predictions<'_> {
    type Error = PredictError;

    fn batch(&mut self, batch: RowBatch<'_>) -> Result<(), PredictError> {
        self.count_ids(batch.out_of_range);
        self.add_with(batch.samples, batch.numbers, batch.kept)
    }
}

impl From<RowsError<Self>> for PredictError {
    fn from(error: RowsError<Self>) -> Self {
        match error {
            RowsError::BadRow(name) => Self::BadRow(name),
            RowsError::Data(error) => Self::Data(error),
            RowsError::Sink(error) => error,
        }
    }
}
