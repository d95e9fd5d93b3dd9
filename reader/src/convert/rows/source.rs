//! What a conversion or prediction requires of a format of raw rows: reading them from start to end, in chunks that
//! threads can process independently, and naming bad rows.

use rankine_base::error::{Error, Result};

use crate::convert::rows::RawRows;
use crate::convert::rows::fault::{BadName, BadRow};
use crate::convert::rows::kept::KeptTexts;
use crate::convert::rows::selection::Selection;
use crate::convert::rows::split::ColumnSplit;
use crate::part::Part;
use crate::schema::{DenseDtype, DenseFunction, Schema};

/// Which columns a file may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequiredColumns {
    /// None: the rows are for training or evaluation.
    All,
    /// Labels and weight; labels that exist may be empty.
    Features,
}

/// The columns to read from files of named columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamedTarget<'a> {
    /// The columns.
    pub(crate) schema: &'a Schema,
    /// For each dense column, whether it is standardized, now or later.
    pub(crate) standardized: &'a [bool],
    pub(crate) needed: RequiredColumns,
}

impl NamedTarget<'_> {
    /// Returns the maximum magnitude of a raw number of a dense column.
    pub(crate) fn largest_number(&self, column: usize) -> f64 {
        let function = self.schema.dense[column].transform.function;
        largest_raw_number(function, self.standardized[column], self.schema.dense_dtype)
    }
}

/// Returns the maximum magnitude of a raw number of a column that is stored as `dtype`, standardized or not.
pub(crate) fn largest_raw_number(function: DenseFunction, standardized: bool, dtype: DenseDtype) -> f64 {
    // A number that is standardized need not fit its storage type before that.
    largest_number(function, if standardized { DenseDtype::F32 } else { dtype })
}

/// Returns the maximum magnitude of a raw number of a column that is stored as `dtype`: a number that is not
/// transformed must fit unchanged, and squares of all others must be finite.
pub(crate) fn largest_number(function: DenseFunction, dtype: DenseDtype) -> f64 {
    match function {
        DenseFunction::None => f64::from(dtype.largest()),
        DenseFunction::SignedLog1p | DenseFunction::MlperfLog => f64::from(f32::MAX),
    }
}

/// Raw rows of one format, in several files.
pub(crate) trait RowSource: Sync {
    /// Some rows of one file, at most a few megabytes.
    type Chunk: Send;
    /// The unit that numbers a file's rows in messages.
    const UNIT: &'static str;

    /// Checks that every file is as it was when it was first opened.
    ///
    /// # Errors
    /// [`Error::Changed`] for the first one that is not; [`Error::Io`].
    fn check_unchanged(&self) -> Result<()>;

    /// Returns the outcome of a pass over all files, unless one of them was changed since it was first opened: then
    /// neither a result nor an error such as a bad row says anything about the file as it is now.
    ///
    /// # Errors
    /// That of the pass; [`Error::Changed`] if a file was changed.
    fn if_unchanged<T>(&self, outcome: Result<T>) -> Result<T> {
        if !matches!(outcome, Err(Error::Stopped(_))) {
            self.check_unchanged()?;
        }
        outcome
    }

    /// Chooses columns whose texts [`RowSource::copy_kept`] copies, by their names in the files.
    ///
    /// # Errors
    /// [`Error::Columns`] if a file lacks a column, or its texts cannot be copied.
    fn keep(&mut self, columns: &[String]) -> Result<()>;

    /// Chooses the column that decides, by its rule, which part a row belongs to; [`RowSource::read`] then ignores its
    /// selection.
    ///
    /// # Errors
    /// [`Error::Columns`] if a file lacks the column, or its values have no text; [`Error::Setting`] if no column of
    /// the format has.
    fn split_by(&mut self, split: &ColumnSplit) -> Result<()>;

    /// Appends the texts of the columns to keep, of the good rows of a chunk; `bad` are the others.
    fn copy_kept(&self, chunk: &Self::Chunk, bad: &[BadRow], out: &mut KeptTexts);

    /// Returns all chunks in the files' order. They depend only on the files' contents.
    fn chunks(&self) -> impl Iterator<Item = Result<Self::Chunk>> + Send;

    /// Returns the position of a chunk among all rows.
    fn span(&self, chunk: &Self::Chunk) -> Span;

    /// Reads the rows of a chunk, each into the part that `selection` assigns to its number in the chunk, from 0, or
    /// the rule of [`RowSource::split_by`] to its text.
    /// Returns the bad ones in order; nothing of them remains in `rows`.
    ///
    /// # Errors
    /// If the chunk as a whole cannot be read.
    fn read(&self, chunk: &Self::Chunk, selection: Selection, rows: &mut PartRows) -> Result<Vec<BadRow>>;

    /// Gives up memory of a chunk that was read and has no bad rows.
    fn release(&self, _chunk: &mut Self::Chunk) {}

    /// Returns the name of a bad row of a chunk.
    fn name(&self, chunk: &Self::Chunk, bad: &BadRow) -> BadName;

    /// Appends a bad row, unchanged, to the quarantined rows. Returns whether it continues in the next chunk.
    fn copy(&self, chunk: &Self::Chunk, bad: &BadRow, out: &mut Vec<u8>) -> bool;

    /// Appends the piece of a chunk that belongs to the last row of the previous chunk. Returns whether that row
    /// still continues. Only rows of a text can continue.
    fn copy_rest(&self, _chunk: &Self::Chunk, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Returns the name of the file that holds every bad row, byte for byte.
    fn quarantine_name(&self) -> &'static str;

    /// Returns what the files should be, for the message about too many bad rows.
    fn expects(&self) -> String;

    /// Returns the bytes of all files on disk; 0 if they are unknown.
    fn bytes(&self) -> u64;
}

/// The position of a chunk among all rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// The number among all rows, from 0, of the first row that starts in the chunk.
    pub(crate) first_row: u64,
    /// Rows that start in the chunk.
    pub(crate) rows: u64,
    /// Whether the file's rows are the evaluation part regardless of the split.
    pub(crate) eval: bool,
    /// Bytes of all files that had been read from disk when this chunk was complete.
    pub(crate) bytes_done: u64,
}

/// The good rows of a chunk.
#[derive(Debug)]
pub(crate) struct PartRows {
    pub(crate) train: RawRows,
    pub(crate) eval: RawRows,
}

impl PartRows {
    pub(crate) fn new(schema: &Schema) -> Self {
        Self { train: RawRows::new(schema), eval: RawRows::new(schema) }
    }

    pub(crate) fn clear(&mut self) {
        self.train.clear();
        self.eval.clear();
    }

    /// Returns the rows of a part.
    #[inline]
    pub(crate) fn of(&mut self, part: Part) -> &mut RawRows {
        if part == Part::Eval { &mut self.eval } else { &mut self.train }
    }
}
