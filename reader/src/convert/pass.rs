//! What every pass over the sources does: chunks, lines, and which part a row belongs to.

use std::sync::{Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::convert::Progress;
use crate::convert::bad::{BadRow, BadRows};
use crate::convert::lines::{Chunk, Chunks, Limits, Source};
use crate::convert::options::{ConvertOptions, Split};
use crate::convert::row::RowParser;
use crate::convert::rows::RawRows;
use crate::dataset::Part;
use crate::error::Result;
use crate::schema::Schema;

/// What the passes over the sources share.
pub(crate) struct Pass<'a> {
    pub(crate) options: &'a ConvertOptions,
    pub(crate) parser: &'a RowParser,
    schema: &'a Schema,
    sources: &'a [Source],
    limits: Limits,
    assignment: Assignment,
    progress: &'a dyn Progress,
    /// Memory for rows, handed from chunk to chunk.
    rows: Pool<PartRows>,
}

/// The good rows of a chunk.
#[derive(Debug)]
pub(crate) struct PartRows {
    pub(crate) train: RawRows,
    pub(crate) eval: RawRows,
}

impl<'a> Pass<'a> {
    /// Reads all sources once to count their rows, where the split depends on that.
    pub(crate) fn new(
        options: &'a ConvertOptions,
        sources: &'a [Source],
        parser: &'a RowParser,
        schema: &'a Schema,
        limits: Limits,
        progress: &'a dyn Progress,
    ) -> Result<Self> {
        let rows = Pool::default();
        let assignment = Assignment::Train;
        let mut pass = Self { options, parser, schema, sources, limits, assignment, progress, rows };
        pass.assignment = match options.split {
            Split::None => Assignment::Train,
            Split::Last { share } => {
                let mut rows = 0;
                for chunk in pass.chunks() {
                    let chunk = chunk?;
                    rows = chunk.first_row + chunk.rows;
                    pass.advance("counting rows", &chunk);
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

    pub(crate) fn chunks(&self) -> Chunks<'a> {
        Chunks::new(self.sources, self.limits)
    }

    /// Takes the bad rows of this pass.
    pub(crate) fn bad_rows(&self, dir: Option<&'a std::path::Path>) -> BadRows<'a> {
        let (on_bad, limit) = (self.options.on_bad, self.options.bad_limit);
        BadRows::new(self.sources, self.parser, (on_bad, limit), dir)
    }

    pub(crate) fn advance(&self, pass: &'static str, chunk: &Chunk) {
        let total = self.sources.iter().map(|source| source.bytes).sum();
        self.progress.advance(pass, chunk.bytes_done.min(total), total);
    }

    /// Reads a chunk's lines, hands the good rows to `take`, and returns the bad ones.
    pub(crate) fn read_rows<R>(&self, chunk: &Chunk, take: impl FnOnce(&PartRows) -> R) -> (R, Vec<BadRow>) {
        let new = || PartRows { train: RawRows::new(self.schema), eval: RawRows::new(self.schema) };
        let mut rows = self.rows.take().unwrap_or_else(new);
        rows.train.clear();
        rows.eval.clear();
        let mut bad = Vec::new();
        let eval_source = self.sources[chunk.source].eval;
        for (number, line) in chunk.lines().enumerate() {
            let part = match eval_source {
                true => Part::Eval,
                false => self.assignment.part(chunk.first_row + number as u64),
            };
            let out = match part {
                Part::Train => &mut rows.train,
                Part::Eval => &mut rows.eval,
            };
            if let Err(fault) = self.parser.push(&chunk.bytes[line.clone()], out) {
                let (start, end) = (line.start as u32, line.end as u32);
                bad.push(BadRow { line: number as u32, start, end, fault });
            }
        }
        let taken = take(&rows);
        self.rows.put(rows);
        (taken, bad)
    }
}

/// Which part a row belongs to, by its number among all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assignment {
    Train,
    Last { first_eval_row: u64 },
    Random { below: u64, seed: u64 },
}

impl Assignment {
    #[inline]
    fn part(self, row: u64) -> Part {
        let eval = match self {
            Self::Train => false,
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
