//! What every pass over the sources does: chunks, rows, and which part a row belongs to.

use std::sync::{Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::convert::Progress;
use crate::convert::bad::{BadRow, BadRows};
use crate::convert::options::{ConvertOptions, Split};
use crate::convert::source::{PartRows, RowSource, Span};
use crate::dataset::Part;
use crate::error::Result;
use crate::schema::Schema;

/// What the passes over the sources share.
pub(crate) struct Pass<'a, S> {
    pub(crate) options: &'a ConvertOptions,
    pub(crate) source: &'a S,
    /// The columns, as far as they are known before anything is learnt.
    pub(crate) draft: &'a Schema,
    assignment: Assignment,
    progress: &'a dyn Progress,
    /// Memory for rows, handed from chunk to chunk.
    rows: Pool<PartRows>,
}

impl<'a, S: RowSource> Pass<'a, S> {
    /// Reads all sources once to count their rows, where the split depends on that.
    pub(crate) fn new(
        options: &'a ConvertOptions,
        source: &'a S,
        draft: &'a Schema,
        progress: &'a dyn Progress,
    ) -> Result<Self> {
        let rows = Pool::default();
        let mut pass = Self { options, source, draft, assignment: Assignment::Train, progress, rows };
        pass.assignment = match options.split {
            Split::None => Assignment::Train,
            Split::Last { share } => {
                let mut rows = 0;
                for chunk in source.chunks() {
                    options.stop.check()?;
                    let span = source.span(&chunk?);
                    rows = span.first_row + span.rows;
                    pass.advance("counting rows", span);
                }
                Assignment::Last { first_eval_row: rows - (rows as f64 * share).round() as u64 }
            }
            Split::Random { share, seed } => {
                // The share of all hashes, which the conversion to an integer rounds down.
                Assignment::Random { below: (share * 2.0_f64.powi(64)) as u64, seed }
            }
        };
        Ok(pass)
    }

    /// Takes the bad rows of this pass.
    pub(crate) fn bad_rows(&self, dir: Option<&'a std::path::Path>) -> BadRows<'a, S> {
        BadRows::new(self.source, (self.options.on_bad, self.options.bad_limit), dir)
    }

    pub(crate) fn advance(&self, pass: &'static str, span: Span) {
        let total = self.source.bytes();
        self.progress.advance(pass, span.bytes_done.min(total), total);
    }

    /// Reads a chunk, hands the good rows to `take`, and returns the bad ones.
    pub(crate) fn read<R>(
        &self,
        chunk: &S::Chunk,
        take: impl FnOnce(&PartRows) -> Result<R>,
    ) -> Result<(R, Vec<BadRow>)> {
        let mut rows = self.rows.take().unwrap_or_else(|| PartRows::new(self.draft));
        rows.clear();
        let Span { first_row, eval, .. } = self.source.span(chunk);
        let assignment = if eval { Assignment::Eval } else { self.assignment };
        let bad = self.source.read(chunk, Selection { assignment, first_row }, &mut rows)?;
        let taken = take(&rows)?;
        self.rows.put(rows);
        Ok((taken, bad))
    }
}

/// Which part the rows of a chunk belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection {
    assignment: Assignment,
    first_row: u64,
}

impl Selection {
    /// All rows are for evaluation.
    pub(crate) const EVAL: Self = Self { assignment: Assignment::Eval, first_row: 0 };

    /// The part of a row, by its number in the chunk.
    #[inline]
    pub(crate) fn part(self, row: u64) -> Part {
        self.assignment.part(self.first_row + row)
    }
}

/// Which part a row belongs to, by its number among all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assignment {
    Train,
    Eval,
    Last { first_eval_row: u64 },
    Random { below: u64, seed: u64 },
}

impl Assignment {
    #[inline]
    fn part(self, row: u64) -> Part {
        let eval = match self {
            Self::Train => false,
            Self::Eval => true,
            Self::Last { first_eval_row } => row >= first_eval_row,
            Self::Random { below, seed } => xxh3_64_with_seed(&row.to_le_bytes(), seed) < below,
        };
        if eval { Part::Eval } else { Part::Train }
    }
}

/// Things that are costly to make anew for each chunk.
#[derive(Debug)]
pub(crate) struct Pool<T>(Mutex<Vec<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Pool<T> {
    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub(crate) fn put(&self, thing: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(thing);
    }
}
