//! Rows of tables with what their optimizers keep, wherever they lie: which rows a rank has, how each lies in memory,
//! and how rows come out of one place and into another.
//!
//! A rank has *parts*: some columns of some rows of a table. [`Rows`] reads them in the words in which they lie, on the
//! host or on a GPU, and [`RowsMut`] changes them. Everything else goes by these alone: [`Snapshot`] copies rows aside,
//! [`place`] puts rows from anywhere to wherever a rank has them, [`gather`] collects the weights of rows in order.

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
pub use place::{PlacedRows, gather, place};
pub use snapshot::{Choice, Snapshot};
pub use touched::Touched;

/// Rows cannot be reached where they lie.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RowsError(pub String);

/// Rows of a table, ascending, each with its *position* among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RowSet {
    /// `count` rows: `first`, `first + step`, and so on.
    Every {
        /// The first.
        first: u64,
        /// From one to the next, at least 1.
        step: u64,
        /// How many.
        count: u64,
    },
    /// These. Lists can be of millions: a vector becomes one without being copied.
    #[serde(skip)]
    Listed(Arc<Vec<u64>>),
}

impl RowSet {
    /// All rows of a table.
    pub fn all(rows: u64) -> Self {
        Self::Every { first: 0, step: 1, count: rows }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        match self {
            Self::Every { count, .. } => *count,
            Self::Listed(rows) => rows.len() as u64,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row at a position.
    ///
    /// # Panics
    /// Where a list is shorter.
    pub fn row(&self, position: u64) -> u64 {
        match self {
            Self::Every { first, step, .. } => first + position * step,
            Self::Listed(rows) => rows[position as usize],
        }
    }

    /// How many of these rows come before one.
    pub fn before(&self, row: u64) -> u64 {
        match self {
            Self::Every { first, step, count } => row.saturating_sub(*first).div_ceil(*step).min(*count),
            Self::Listed(rows) => rows.partition_point(|&own| own < row) as u64,
        }
    }

    /// The position of a row, if it is one of these.
    pub fn position(&self, row: u64) -> Option<u64> {
        let before = self.before(row);
        (before < self.len() && self.row(before) == row).then_some(before)
    }

    /// The rows at some positions.
    ///
    /// # Panics
    /// Where there are no such positions.
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

/// Some columns of some rows of a table, as a rank has them.
///
/// A part whose rows are listed goes before others: where another part has those rows too, what it has of them means
/// nothing. Such are the frequent rows of a table whose other rows take turns among the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPart {
    /// The number of the table.
    pub table: usize,
    /// The columns.
    pub columns: Range<usize>,
    /// The rows.
    pub rows: RowSet,
    /// The positions of those rows that this rank speaks for: where several have the same, one does for each.
    pub own: Range<u64>,
    /// How each row lies in memory.
    pub layout: RowLayout,
}

/// Rows that can be read.
pub trait Rows {
    /// What there is.
    fn parts(&self) -> &[RowPart];

    /// The words of the rows at some positions of a part, one behind the other; `scratch` serves where they lie
    /// elsewhere.
    ///
    /// # Errors
    /// Where they cannot be reached.
    ///
    /// # Panics
    /// Where there is no such part or position.
    fn read<'a>(
        &'a self,
        part: usize,
        positions: Range<u64>,
        scratch: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], RowsError>;

    /// The same, copied to `to`, which has as many words.
    ///
    /// # Errors
    /// As [`Rows::read`].
    ///
    /// # Panics
    /// As [`Rows::read`], and where `to` is of another length.
    fn copy(&self, part: usize, positions: Range<u64>, to: &mut [f32]) -> Result<(), RowsError> {
        to.copy_from_slice(self.read(part, positions, &mut Vec::new())?);
        Ok(())
    }

    /// The words of the rows at listed positions of a part, one behind the other, copied to `to`, which has as many.
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

    /// Which rows of a part have been written since [`RowsMut::begin_tracking`]; `None` where nobody keeps book.
    ///
    /// # Errors
    /// As [`Rows::read`].
    fn touched(&self, part: usize) -> Result<Option<Touched>, RowsError>;
}

/// Rows that can be changed.
pub trait RowsMut: Rows {
    /// Lets `edit` change the words of the rows at some positions of a part. Where it sets them all, `whole` is true,
    /// and it need not be given what lies there.
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

    /// Words between two rows that are better edited together than each for itself.
    fn gap_words(&self) -> usize {
        0
    }

    /// Forgets which rows have been written, and keeps book of it from now on.
    ///
    /// # Errors
    /// Where there is no memory for it.
    fn begin_tracking(&mut self) -> Result<(), RowsError>;
}

impl UpdateRule {
    /// The rule's name in a job file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Momentum { .. } => "momentum",
            Self::Adagrad { .. } => "adagrad",
            Self::RowwiseAdagrad { .. } => "rowwise-adagrad",
            Self::Adam { .. } => "adam",
            Self::Ftrl { .. } => "ftrl",
        }
    }

    /// What it keeps of parameters, by the names that PyTorch has for it.
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd => &[],
            Self::Momentum { .. } => &["momentum_buffer"],
            Self::Adagrad { .. } | Self::RowwiseAdagrad { .. } => &["sum"],
            Self::Adam { .. } => &["exp_avg", "exp_avg_sq"],
            Self::Ftrl { .. } => &["z", "n"],
        }
    }

    /// Whether it keeps one number a row, rather than one or two an element.
    pub fn is_rowwise(&self) -> bool {
        matches!(self, Self::RowwiseAdagrad { .. })
    }
}

/// Bytes of a row, some of whose columns are saved, with what its optimizer keeps of them.
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
