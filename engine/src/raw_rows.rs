//! Raw rows in batches of one size, as a dataset has them: whatever is computed from both has the same bits.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use rankine_base::Error;
use rankine_reader::Samples;
use rankine_reader::convert::{
    BadLimit, BadName, BadTally, KeptTexts, Progress, RawChunk, RawReader, UnknownCategories,
};

/// Bad rows that are logged; all are counted.
const LOGGED_MAX: u64 = 10;

/// How raw rows are batched.
#[derive(Debug, Clone, Copy)]
pub struct RowOptions {
    /// Rows scored together.
    pub batch_size: usize,
    /// Threads that read rows.
    pub threads: NonZeroUsize,
    /// How many unreadable rows may be skipped; with `None` the first one ends the work.
    pub bad_limit: Option<BadLimit>,
}

/// A batch of good rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowBatch<'a> {
    /// The rows.
    pub(crate) samples: &'a Samples,
    /// The number of each row, from 1 through all files, bad rows included.
    pub(crate) numbers: &'a [u64],
    /// The texts of the columns to keep.
    pub(crate) kept: &'a KeptTexts,
    /// Ids that are not rows of their tables, one number per categorical column, or nothing.
    pub(crate) out_of_range: &'a [u64],
}

/// What is done with raw rows.
pub(crate) trait RowSink {
    /// Why it fails.
    type Error;

    /// Takes a batch.
    fn batch(&mut self, batch: RowBatch<'_>) -> Result<(), Self::Error>;
}

/// Why raw rows cannot be used.
#[derive(Debug)]
pub(crate) enum RowsError<E> {
    /// This row is bad, and bad rows are not to be skipped.
    BadRow(BadName),
    /// The files cannot be read, or too many rows are bad.
    Data(Error),
    /// What takes the rows has failed.
    Sink(E),
}

impl<E> From<Error> for RowsError<E> {
    fn from(error: Error) -> Self {
        Self::Data(error)
    }
}

/// Counts of raw rows.
#[derive(Debug, Clone)]
pub(crate) struct RowsRead {
    /// Rows that were read, bad ones included.
    pub(crate) read: u64,
    /// Rows that could not be read.
    pub(crate) bad: u64,
    /// The unknown categories of the good rows, one entry per categorical column.
    pub(crate) unknown: Vec<UnknownCategories>,
}

/// Reads the rows of `files` in their order, and passes the good ones to `sink`.
///
/// # Errors
/// [`RowsError::BadRow`] for the first bad row if such rows are not skipped; [`RowsError::Data`] if more rows are bad
/// than the limit admits, if no row is good, or if a file cannot be read; the errors of `sink`.
pub(crate) fn read_rows<S: RowSink>(
    reader: &RawReader<'_>,
    files: &[PathBuf],
    options: &RowOptions,
    progress: &dyn Progress,
    sink: &mut S,
) -> Result<RowsRead, RowsError<S::Error>> {
    let mut rows = Rows::new(reader, options, sink);
    let unknown = reader.read(files, progress, |chunk| rows.take(chunk))?;
    let (read, bad) = rows.finish()?;
    Ok(RowsRead { read, bad, unknown })
}

/// Rows being collected into batches. Chunks of files have any size; batches have one size, as those of a dataset do,
/// so that both give the same bits.
struct Rows<'r, S> {
    reader: &'r RawReader<'r>,
    options: &'r RowOptions,
    sink: &'r mut S,
    batch: Samples,
    /// The number of each row of the batch.
    numbers: Vec<u64>,
    /// The texts to keep of each row of the batch.
    kept: KeptTexts,
    /// Ids out of range in the batch, one number per categorical column.
    out_of_range: Vec<u64>,
    read: u64,
    bad: u64,
    tally: BadTally,
    /// The expected format of the files, in words.
    expects: String,
}

impl<'r, S: RowSink> Rows<'r, S> {
    fn new(reader: &'r RawReader<'_>, options: &'r RowOptions, sink: &'r mut S) -> Self {
        Self {
            reader,
            options,
            sink,
            batch: Samples::new(reader.schema),
            numbers: Vec::new(),
            kept: KeptTexts::new(reader.keep.len()),
            out_of_range: Vec::new(),
            read: 0,
            bad: 0,
            // Without a limit the first bad row ends the work before the limit is checked.
            tally: BadTally::new(options.bad_limit.unwrap_or_default()),
            expects: String::new(),
        }
    }

    fn take(&mut self, chunk: RawChunk<'_>) -> Result<(), RowsError<S::Error>> {
        let mut bad_numbers = Vec::new();
        for (number, name) in chunk.bad {
            if self.options.bad_limit.is_none() {
                return Err(RowsError::BadRow(name));
            }
            self.tally.add_bad(|| name.to_string());
            if self.bad + (bad_numbers.len() as u64) < LOGGED_MAX {
                tracing::warn!("skipped: {name}");
            }
            bad_numbers.push(number);
        }
        self.read += chunk.rows;
        self.bad += chunk.bad_rows;
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
            self.kept.append(&chunk.kept, start..end);
            self.numbers.extend(numbers.by_ref().take(end - start));
            start = end;
            if self.batch.len == self.options.batch_size {
                self.pass_on()?;
            }
        }
        Ok(())
    }

    /// Passes the remaining rows on, and checks how many rows were bad. Returns the numbers of rows and of bad rows.
    fn finish(mut self) -> Result<(u64, u64), RowsError<S::Error>> {
        self.tally.check_any_is_good(&self.expects)?;
        self.tally.check_in_all(&self.expects)?;
        self.pass_on()?;
        Ok((self.read, self.bad))
    }

    fn pass_on(&mut self) -> Result<(), RowsError<S::Error>> {
        if self.batch.len == 0 {
            return Ok(());
        }
        self.reader.ids.apply(&mut self.batch, &mut self.out_of_range);
        let batch = RowBatch {
            samples: &self.batch,
            numbers: &self.numbers,
            kept: &self.kept,
            out_of_range: &self.out_of_range,
        };
        self.sink.batch(batch).map_err(RowsError::Sink)?;
        self.batch.clear();
        self.numbers.clear();
        self.kept.clear();
        Ok(())
    }
}
