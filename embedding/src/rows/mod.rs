//! Rows of tables with their optimizer state, wherever they are stored: which rows a rank has, their memory layout,
//! and how they are copied between placements.
//!
//! A rank has *parts*: some columns of some rows of a table. [`Rows`] reads them as stored words, on the host or on a
//! GPU, and [`RowsMut`] changes them. Everything else is built on these two: [`Snapshot`] copies rows, [`place`]
//! writes rows from any source to the rank's parts, [`gather`] collects the weights of rows in order.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use crate::optimizer::UpdateRule;

mod format;
mod place;
mod snapshot;
mod touched;

pub use format::RowLayout;
pub(crate) use format::VECTOR;
pub use place::{RowPiece, gather, place};
pub use snapshot::{RowSelection, Snapshot};
pub use touched::TouchedRows;

/// Rows could not be accessed.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// The memory or the file that has them cannot be read or written.
    #[error(transparent)]
    Access(Box<dyn std::error::Error + Send + Sync>),
    /// The tables do not track which rows are updated.
    #[error("the tables do not track updated rows")]
    Untracked,
}

/// Rows of a table, ascending, each with its *position* among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RowSet {
    /// `count` rows: `first`, `first + step`, and so on.
    Every {
        /// The first.
        first: u64,
        /// The distance from one to the next, at least 1.
        step: u64,
        /// How many.
        count: u64,
    },
    /// The given rows. Lists can have millions of rows: a vector is converted without copying.
    #[serde(skip)]
    Listed(Arc<Vec<u64>>),
}

impl RowSet {
    /// All rows of a table.
    pub fn all(rows: u64) -> Self {
        Self::Every { first: 0, step: 1, count: rows }
    }

    /// The number of rows.
    pub fn len(&self) -> u64 {
        match self {
            Self::Every { count, .. } => *count,
            Self::Listed(rows) => rows.len() as u64,
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row at a position.
    ///
    /// # Panics
    /// If a list is shorter.
    pub fn row(&self, position: u64) -> u64 {
        match self {
            Self::Every { first, step, .. } => first + position * step,
            Self::Listed(rows) => rows[position as usize],
        }
    }

    /// The number of these rows before `row`.
    pub fn before(&self, row: u64) -> u64 {
        match self {
            Self::Every { first, step, count } => row.saturating_sub(*first).div_ceil(*step).min(*count),
            Self::Listed(rows) => rows.partition_point(|&own| own < row) as u64,
        }
    }

    /// The position of a row, or `None` if it is not one of these.
    pub fn position(&self, row: u64) -> Option<u64> {
        let before = self.before(row);
        (before < self.len() && self.row(before) == row).then_some(before)
    }

    /// The rows at some positions.
    ///
    /// # Panics
    /// If there are no such positions.
    pub fn at(&self, positions: &Self) -> Self {
        match (self, positions) {
            (Self::Every { first: 0, step: 1, .. }, positions) => positions.clone(),
            (Self::Every { first, step, .. }, Self::Every { first: begin, step: by, count }) => {
                Self::Every { first: first + begin * step, step: step * by, count: *count }
            }
            (Self::Listed(rows), Self::Every { first, step: 1, count }) => {
                Self::from(rows[*first as usize..(first + count) as usize].to_vec())
            }
            (_, Self::Listed(positions)) => {
                Self::from(positions.par_iter().map(|&position| self.row(position)).collect::<Vec<_>>())
            }
            (_, positions) => {
                Self::from(positions.iter().map(|position| self.row(position)).collect::<Vec<_>>())
            }
        }
    }

    /// The rows at a range of positions.
    pub fn part(&self, positions: Range<u64>) -> Self {
        self.at(&Self::Every { first: positions.start, step: 1, count: positions.end - positions.start })
    }

    /// The rows, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|position| self.row(position))
    }
}

/// Some columns of some rows of a table, as a rank stores them.
///
/// A part with listed rows takes precedence: if another part has those rows too, that part's contents for them are
/// undefined. This is the case for frequent rows of a table whose other rows take turns among the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPart {
    /// The number of the table.
    pub table: usize,
    /// The columns.
    pub columns: Range<usize>,
    /// The rows.
    pub rows: RowSet,
    /// The positions of the rows that this rank is responsible for. If several ranks have a row, exactly one is
    /// responsible.
    pub own: Range<u64>,
    /// The memory layout of each row.
    pub layout: RowLayout,
}

/// Words of rows that are visited at a time, if they have to be copied before.
const VISIT_WORDS: usize = 1 << 22;

/// Rows that can be read.
pub trait Rows {
    /// The parts.
    fn parts(&self) -> &[RowPart];

    /// Returns the words of the rows at some positions of a part, one after another; `scratch` is used if they are
    /// not in host memory.
    ///
    /// # Errors
    /// If they cannot be accessed.
    ///
    /// # Panics
    /// If there is no such part or position.
    fn read<'a>(
        &'a self,
        part: usize,
        positions: Range<u64>,
        scratch: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], RowsError>;

    /// Passes the words of these rows to `visit`, some rows at a time, with the position of the first of them.
    ///
    /// # Errors
    /// As [`Rows::read`].
    ///
    /// # Panics
    /// As [`Rows::read`].
    fn visit(
        &self,
        part: usize,
        positions: Range<u64>,
        visit: &mut dyn FnMut(u64, &[f32]),
    ) -> Result<(), RowsError> {
        let at_once = (VISIT_WORDS / self.parts()[part].layout.words).max(1);
        let mut scratch = Vec::new();
        for first in positions.clone().step_by(at_once) {
            let last = positions.end.min(first + at_once as u64);
            visit(first, self.read(part, first..last, &mut scratch)?);
        }
        Ok(())
    }

    /// Copies the words of the rows at some positions of a part, one after another, to `to`, which must have as many
    /// words.
    ///
    /// # Errors
    /// As [`Rows::read`].
    ///
    /// # Panics
    /// As [`Rows::read`], and if `to` has another length.
    fn copy(&self, part: usize, positions: Range<u64>, to: &mut [f32]) -> Result<(), RowsError> {
        to.copy_from_slice(self.read(part, positions, &mut Vec::new())?);
        Ok(())
    }

    /// Copies the words of the rows at listed positions of a part, one after another, to `to`, which must have as
    /// many words.
    ///
    /// # Errors
    /// As [`Rows::read`].
    ///
    /// # Panics
    /// As [`Rows::copy`].
    fn copy_listed(&self, part: usize, positions: &[u64], to: &mut [f32]) -> Result<(), RowsError> {
        let (words, mut scratch) = (self.parts()[part].layout.words, Vec::new());
        assert_eq!(to.len(), positions.len() * words, "room for the rows");
        for (&position, to) in positions.iter().zip(to.chunks_exact_mut(words)) {
            to.copy_from_slice(self.read(part, position..position + 1, &mut scratch)?);
        }
        Ok(())
    }

    /// Which rows of a part have been written since [`RowsMut::begin_tracking`]; `None` without tracking.
    ///
    /// # Errors
    /// As [`Rows::read`].
    fn touched(&self, _part: usize) -> Result<Option<TouchedRows>, RowsError> {
        Ok(None)
    }
}

/// Rows that can be changed.
pub trait RowsMut: Rows {
    /// Calls `edit` to change the words of the rows at some positions of a part. `whole` says that it sets all of
    /// them; then it need not be given the current contents.
    ///
    /// # Errors
    /// As [`Rows::read`].
    ///
    /// # Panics
    /// As [`Rows::read`].
    fn edit(
        &mut self,
        part: usize,
        positions: Range<u64>,
        whole: bool,
        edit: &mut dyn FnMut(&mut [f32]),
    ) -> Result<(), RowsError>;

    /// Rows that are at most this many words apart are better edited together than separately.
    fn gap_words(&self) -> usize {
        0
    }

    /// Forgets which rows have been written, and starts tracking writes.
    ///
    /// # Errors
    /// If there is no memory for it.
    fn begin_tracking(&mut self) -> Result<(), RowsError>;
}

/// Bytes of a saved row with some of its columns, including their optimizer state.
pub fn saved_row_bytes(columns: &Range<usize>, dtype: Dtype, rule: &UpdateRule) -> usize {
    let state = if rule.is_rowwise() {
        usize::from(columns.start == 0)
    } else {
        rule.state_names().len() * columns.len()
    };
    columns.len() * dtype.bytes() + state * size_of::<f32>()
}

#[cfg(test)]
mod tests;
