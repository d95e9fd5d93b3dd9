//! What a conversion, or a prediction, needs of a form of raw rows: to read them from front to back, in chunks that
//! threads can work on apart from each other, and to name those that are none.

use crate::convert::fault::{BadName, BadRow};
use crate::convert::rows::RawRows;
use crate::convert::selection::Selection;
use crate::error::Result;
use crate::part::Part;
use crate::schema::{DenseDtype, DenseFunction, Schema};

/// Which columns a file may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    /// None: rows are to be learnt from.
    All,
    /// Labels and weight; labels that are there may be empty.
    Features,
}

/// What files of named columns are read for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamedTarget<'a> {
    /// The columns.
    pub(crate) schema: &'a Schema,
    /// For each dense column, whether it is standardized, now or later.
    pub(crate) standardized: &'a [bool],
    pub(crate) needed: Needed,
}

impl NamedTarget<'_> {
    /// What a raw number of a dense column may be at most, either way.
    pub(crate) fn largest_number(&self, column: usize) -> f64 {
        // What is standardized need not fit its storage before it is.
        let dtype = if self.standardized[column] { DenseDtype::F32 } else { self.schema.dense_dtype };
        largest_number(self.schema.dense[column].transform.function, dtype)
    }
}

/// What a raw number of a column that is stored as `dtype` may be at most, either way: one that is not transformed must
/// fit as it is, and squares of all others must be finite.
pub(crate) fn largest_number(function: DenseFunction, dtype: DenseDtype) -> f64 {
    match function {
        DenseFunction::None => f64::from(dtype.largest()),
        DenseFunction::SignedLog1p | DenseFunction::MlperfLog => f64::from(f32::MAX),
    }
}

/// Raw rows of some form, in some files.
pub(crate) trait RowSource: Sync {
    /// Some rows of one file, a few megabytes of them at most.
    type Chunk: Send;
    /// What numbers the rows of a file in messages.
    const UNIT: &'static str;

    /// All chunks, in the files' order. They do not depend on anything but the files' contents.
    fn chunks(&self) -> impl Iterator<Item = Result<Self::Chunk>> + Send;

    /// Where a chunk lies among all rows.
    fn span(&self, chunk: &Self::Chunk) -> Span;

    /// Reads the rows of a chunk, each to the part that `selection` gives it by its number in the chunk, from 0.
    /// Returns the bad ones, in order; nothing of them is in `rows`.
    ///
    /// # Errors
    /// Where the chunk as a whole cannot be read.
    fn read(&self, chunk: &Self::Chunk, selection: Selection, rows: &mut PartRows) -> Result<Vec<BadRow>>;

    /// Names a bad row of a chunk.
    fn name(&self, chunk: &Self::Chunk, bad: &BadRow) -> BadName;

    /// Appends a bad row, as it stands in its file, to what is kept of bad rows. Returns whether it goes on in the next
    /// chunk.
    fn copy(&self, chunk: &Self::Chunk, bad: &BadRow, out: &mut Vec<u8>) -> bool;

    /// Appends the piece of a chunk that belongs to the last row of the chunk before. Returns whether that row goes on
    /// still.
    fn copy_rest(&self, chunk: &Self::Chunk, out: &mut Vec<u8>) -> bool;

    /// The file that holds every bad row, byte for byte.
    fn quarantine_name(&self) -> &'static str;

    /// What the files should be, for the message that too many rows are not it.
    fn expects(&self) -> String;

    /// Bytes of all files on disk.
    fn bytes(&self) -> u64;
}

/// Where a chunk lies among all rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// The number among all rows, from 0, of the first that begins here.
    pub(crate) first_row: u64,
    /// Rows that begin here.
    pub(crate) rows: u64,
    /// Whether the file's rows are the evaluation part whatever the split.
    pub(crate) eval: bool,
    /// Bytes of all files that had been read from disk when this chunk was whole.
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

    /// The rows of a part.
    #[inline]
    pub(crate) fn of(&mut self, part: Part) -> &mut RawRows {
        match part {
            Part::Train => &mut self.train,
            Part::Eval => &mut self.eval,
        }
    }
}
