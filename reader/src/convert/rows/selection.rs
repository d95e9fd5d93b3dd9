//! The part that a row belongs to.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::part::Part;

/// The parts that the rows of a chunk belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection {
    pub(crate) assignment: Assignment,
    pub(crate) first_row: u64,
}

impl Selection {
    /// Whether all rows are for evaluation.
    pub(crate) const EVAL: Self = Self { assignment: Assignment::Eval, first_row: 0 };

    /// Returns the part of a row by its number in the chunk.
    #[inline]
    pub(crate) fn part(self, row: u64) -> Part {
        self.assignment.part(self.first_row + row)
    }
}

/// The part that a row belongs to, by its number among all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Assignment {
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
