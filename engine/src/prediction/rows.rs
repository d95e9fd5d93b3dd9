//! Predictions for raw rows, read, encoded and batched as those of the training were.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use rankine_reader::convert::{BadLimit, BadTally, Encoder, Progress, RawChunk, RawReader, RowFormat};
use rankine_reader::{Error, Samples, Schema};

use super::Predictions;
use super::error::PredictError;

/// Bad rows that are logged; all are counted.
const LOGGED_MAX: u64 = 10;

/// How raw rows are scored.
#[derive(Debug, Clone, Copy)]
pub struct RowOptions {
    /// Rows scored together.
    pub batch_size: usize,
    /// Threads that read rows.
    pub threads: NonZeroUsize,
    /// How many unreadable rows may be skipped; with `None` the first one ends the prediction.
    pub bad_limit: Option<BadLimit>,
}

/// Scores the rows of `files`, in their order. Rows are numbered from 1 through all files, bad ones included, so that
/// predictions can be joined to the rows. `format` and `encoder` are the model's.
///
/// # Errors
/// [`PredictError::BadRow`] for an unreadable row if such rows are not skipped; [`PredictError::Data`] if more rows
/// are bad than the limit admits, if no row is good, or if a file cannot be read; otherwise as [`Predictions::add`].
pub fn predict_rows(
    predictions: &mut Predictions<'_>,
    files: &[PathBuf],
    format: &RowFormat,
    encoder: &Encoder,
    options: &RowOptions,
    progress: &dyn Progress,
) -> Result<(), PredictError> {
    let (schema, ids) = (predictions.schema, predictions.ids.clone());
    let reader = RawReader { format, schema, encoder, ids: &ids, threads: options.threads };
    let mut rows = Rows::new(predictions, schema, options);
    let mut failed = None;
    let read = reader.read(files, progress, |chunk| {
        rows.take(chunk).map_err(|error| match error {
            PredictError::Data(error) => error,
            // The reader has no variant for a model's errors, so this one is kept outside.
            other => Error::Invalid(failed.insert(other).to_string()),
        })
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let unknown = read?;
    rows.finish()?;
    predictions.set_distinct(&unknown);
    Ok(())
}

/// Rows being collected into batches. Chunks of files have any size; batches have one size, as those of a dataset do,
/// so that both give the same bits.
struct Rows<'p, 'a> {
    predictions: &'p mut Predictions<'a>,
    options: &'p RowOptions,
    batch: Samples,
    /// The number of each row of the batch.
    numbers: Vec<u64>,
    /// Ids out of range in the batch, one number per categorical column.
    out_of_range: Vec<u64>,
    tally: BadTally,
    /// The expected format of the files, in words.
    expects: String,
}

impl<'p, 'a> Rows<'p, 'a> {
    fn new(predictions: &'p mut Predictions<'a>, schema: &Schema, options: &'p RowOptions) -> Self {
        Self {
            predictions,
            options,
            batch: Samples::new(schema),
            numbers: Vec::new(),
            out_of_range: Vec::new(),
            // Without a limit the first bad row ends the prediction before the limit is checked.
            tally: BadTally::new(options.bad_limit.unwrap_or_default()),
            expects: String::new(),
        }
    }

    fn take(&mut self, chunk: RawChunk<'_>) -> Result<(), PredictError> {
        let mut bad_numbers = Vec::new();
        for (number, name) in chunk.bad {
            if self.options.bad_limit.is_none() {
                return Err(PredictError::BadRow(name.to_string()));
            }
            self.tally.add_bad(|| name.to_string());
            if self.predictions.counts.bad + (bad_numbers.len() as u64) < LOGGED_MAX {
                tracing::warn!("skipped: {name}");
            }
            bad_numbers.push(number);
        }
        self.predictions.add_bad(chunk.bad_rows);
        self.tally.add_rows(chunk.rows);
        self.tally.check_so_far(chunk.expects)?;
        if self.expects.is_empty() {
            chunk.expects.clone_into(&mut self.expects);
        }
        let mut bad = bad_numbers.into_iter().peekable();
        let good = (0..chunk.rows).filter(|number| bad.next_if_eq(number).is_none());
        let mut numbers = good.map(|number| chunk.first_row + number + 1);

        let mut start = 0;
        while start < chunk.samples.len {
            let end = chunk.samples.len.min(start + self.options.batch_size - self.batch.len);
            self.batch.append(&chunk.samples, start..end);
            self.numbers.extend(numbers.by_ref().take(end - start));
            start = end;
            if self.batch.len == self.options.batch_size {
                self.score()?;
            }
        }
        Ok(())
    }

    /// Scores the remaining rows, and checks how many rows were bad.
    fn finish(mut self) -> Result<(), PredictError> {
        self.tally.check_any_is_good(&self.expects)?;
        self.tally.check_in_all(&self.expects)?;
        self.score()
    }

    fn score(&mut self) -> Result<(), PredictError> {
        self.predictions.ids.apply(&mut self.batch, &mut self.out_of_range);
        self.predictions.count_ids(&self.out_of_range);
        self.predictions.add(&self.batch, &self.numbers)?;
        self.batch.clear();
        self.numbers.clear();
        Ok(())
    }
}
