//! The part that a row belongs to.

use crate::part::Part;
use crate::split::HeldOut;

/// The parts that the rows of a chunk belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection {
    /// The rows for evaluation.
    pub(crate) eval: HeldOut,
    pub(crate) first_row: u64,
}

impl Selection {
    /// Whether all rows are for evaluation.
    pub(crate) const EVAL: Self = Self { eval: HeldOut::All, first_row: 0 };

    /// Returns the part of a row by its number in the chunk.
    #[inline]
    pub(crate) fn part(self, row: u64) -> Part {
        if self.eval.contains(self.first_row + row) { Part::Eval } else { Part::Train }
    }
}
