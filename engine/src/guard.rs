//! What a step of training came to: its loss, and whether it was written.
//!
//! A step is judged before its first weight is written. One whose loss or gradients are no finite numbers is left out as
//! a whole, on all ranks: no weight, no row and no optimizer state changes. What becomes of the training then is the
//! job's policy, which back ends do not know.

use std::fmt;

/// The largest magnitude of a gradient by a vector with which a step is written: 2^36. It is far beyond what a training
/// that does not diverge comes to, and so far below what f32 holds that the gradients of 2^20 look-ups of a row can be
/// added up, squared, and the squares of 2^16 elements added up, before anything is infinite. So rows are not harmed by
/// sums either. `element.cuh` has the same number.
pub const VECTOR_GRADIENT_MAX: f32 = 68_719_476_736.0;

/// The largest sum of squares of the dense gradients with which a step is written: 2^126, so that each of them can be
/// squared in f32. `guard.cu` has the same number.
pub const DENSE_SQUARES_MAX: f64 = 8.507_059_173_023_462e37;

/// What a step came to.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutcome {
    /// The loss before the update.
    pub loss: f64,
    /// Why nothing was written, where that is so.
    pub left_out: Option<LeftOut>,
}

/// Why a step was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftOut {
    /// Gradients, times the scale of the loss, are beyond the range of f16: the scale is halved.
    LossScale,
    /// Something is no finite number.
    NonFinite(NonFinite),
}

/// What is no finite number in a step, or is so large that sums and squares of it would be none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NonFinite {
    /// The loss.
    pub loss: bool,
    /// Gradients of dense parameters, summed over all ranks.
    pub dense_gradients: bool,
    /// Gradients by embedding vectors, or by what the bottom MLP puts beside them.
    pub vector_gradients: bool,
    /// Tables whose vectors these are, by name, as far as that is known; GPUs do not tell.
    pub tables: Vec<String>,
    /// The ranks whose samples have such a loss, or such gradients by vectors.
    pub found_on: FoundOn,
}

/// Ranks on which something was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FoundOn {
    /// On none by itself: what is wrong is a sum over all of them.
    #[default]
    Sums,
    /// On one alone.
    Rank(usize),
    /// On so many.
    Several(usize),
}

impl StepOutcome {
    /// What was no finite number, where the step was left out for it.
    pub fn non_finite(&self) -> Option<&NonFinite> {
        match &self.left_out {
            Some(LeftOut::NonFinite(found)) => Some(found),
            Some(LeftOut::LossScale) | None => None,
        }
    }
}

impl FoundOn {
    /// Of so many ranks, whose numbers have this sum.
    pub(crate) fn of(ranks: usize, sum: usize) -> Self {
        match ranks {
            0 => Self::Sums,
            1 => Self::Rank(sum),
            ranks => Self::Several(ranks),
        }
    }
}

/// As in "the loss and the gradients by vectors of C3, on rank 1".
impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut found = Vec::new();
        if self.loss {
            found.push("the loss".to_owned());
        }
        if self.dense_gradients {
            found.push("the gradients of dense parameters".into());
        }
        if self.vector_gradients {
            found.push(match &self.tables[..] {
                [] => "the gradients by vectors".into(),
                tables => format!("the gradients by vectors of {}", tables.join(", ")),
            });
        }
        match found.split_last() {
            Some((last, [])) => f.write_str(last)?,
            Some((last, others)) => write!(f, "{} and {last}", others.join(", "))?,
            None => f.write_str("nothing")?,
        }
        match self.found_on {
            FoundOn::Sums => Ok(()),
            FoundOn::Rank(rank) => write!(f, ", on rank {rank}"),
            FoundOn::Several(ranks) => write!(f, ", on {ranks} ranks"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_named() {
        let found = NonFinite { dense_gradients: true, ..NonFinite::default() };
        assert_eq!(found.to_string(), "the gradients of dense parameters");
        let found = NonFinite { loss: true, found_on: FoundOn::of(1, 3), ..found };
        assert_eq!(found.to_string(), "the loss and the gradients of dense parameters, on rank 3");
        let tables = vec!["C1".into(), "C7".into()];
        let found = NonFinite { vector_gradients: true, tables, found_on: FoundOn::of(2, 3), ..found };
        let words =
            "the loss, the gradients of dense parameters and the gradients by vectors of C1, C7, on 2 ranks";
        assert_eq!(found.to_string(), words);
    }

    /// The sums and squares that the largest gradients allow are finite.
    #[test]
    fn bounds_leave_room_for_sums_and_squares() {
        let sum = VECTOR_GRADIENT_MAX * (1 << 20) as f32;
        assert!((sum * sum * (1 << 15) as f32).is_finite());
        let dense = DENSE_SQUARES_MAX.sqrt() as f32;
        assert!((dense * dense).is_finite() && dense == 2f32.powi(63));
    }
}
