//! The common part of all passes over the sources: chunks, rows, and the part that each row belongs to.

use std::num::NonZeroUsize;

use rankine_base::error::Result;

use crate::convert::Progress;
use crate::convert::bad::BadRows;
use crate::convert::plan::options::ConvertOptions;
use crate::convert::pool::Pool;
use crate::convert::rows::fault::BadRow;
use crate::convert::rows::selection::Selection;
use crate::convert::rows::source::{PartRows, RowSource, Span};
use crate::convert::rows::split::RowSplit;
use crate::schema::Schema;
use crate::split::{HeldOut, Split};

/// Returns how many chunks may be in flight: with many threads, they and what was made of them take most of the memory.
/// All take about equally long, so that few finished ones wait for an earlier one.
pub(crate) fn chunks_in_flight(threads: NonZeroUsize) -> usize {
    threads.get() + threads.get().div_ceil(2) + 1
}

/// State shared by the passes over the sources.
pub(crate) struct Pass<'a, S> {
    pub(crate) options: &'a ConvertOptions,
    pub(crate) source: &'a S,
    /// The columns, as far as they are known before anything is learnt.
    pub(crate) draft: &'a Schema,
    /// The rows for evaluation, except in files that are all for evaluation.
    eval: HeldOut,
    progress: &'a dyn Progress,
    /// Memory for rows, reused from chunk to chunk.
    rows: Pool<PartRows>,
}

impl<'a, S: RowSource> Pass<'a, S> {
    /// Reads all sources once to count their rows if the split depends on that.
    pub(crate) fn new(
        options: &'a ConvertOptions,
        source: &'a S,
        draft: &'a Schema,
        progress: &'a dyn Progress,
    ) -> Result<Self> {
        let rows = Pool::default();
        let mut pass = Self { options, source, draft, eval: HeldOut::None, progress, rows };
        let mut rows = 0;
        // A split by a column is up to the source.
        let split = match options.split {
            RowSplit::ByNumber(split) => split,
            RowSplit::ByColumn(_) => Split::None,
        };
        if let Split::Last { .. } = split {
            for chunk in source.chunks() {
                options.stop.check()?;
                let span = source.span(&chunk?);
                rows = span.first_row + span.rows;
                pass.advance("counting rows", span);
            }
        }
        pass.eval = HeldOut::of(split, rows);
        Ok(pass)
    }

    /// Creates the handler of this pass's bad rows.
    pub(crate) fn bad_rows(&self, dir: Option<&'a std::path::Path>) -> BadRows<'a, S> {
        BadRows::new(self.source, (self.options.on_bad, self.options.bad_limit), dir)
    }

    pub(crate) fn advance(&self, pass: &'static str, span: Span) {
        let total = self.source.bytes();
        self.progress.advance(pass, span.bytes_done.min(total), total);
    }

    /// Reads a chunk, passes the good rows to `take`, and returns the bad ones. A chunk without any only keeps its
    /// position.
    pub(crate) fn read<R>(
        &self,
        chunk: &mut S::Chunk,
        take: impl FnOnce(&PartRows) -> Result<R>,
    ) -> Result<(R, Vec<BadRow>)> {
        let mut rows = self.rows.take().unwrap_or_else(|| PartRows::new(self.draft));
        rows.clear();
        let Span { first_row, eval, .. } = self.source.span(chunk);
        let eval = if eval { HeldOut::All } else { self.eval };
        let bad = self.source.read(chunk, Selection { eval, first_row }, &mut rows)?;
        if bad.is_empty() {
            self.source.release(chunk);
        }
        let taken = take(&rows)?;
        self.rows.put(rows);
        Ok((taken, bad))
    }
}
