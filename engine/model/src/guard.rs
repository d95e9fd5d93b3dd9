//! The outcome of a training step: its loss, and whether the step was applied.
//!
//! The verdict falls before the first weight is written. A step whose loss or gradients are not finite is skipped as a
//! whole, on all ranks: no weight, row or optimizer state changes. Whether training then continues is the job's
//! policy, which back ends do not know.

use std::fmt;

use rankine_topology::Rank;

/// The largest gradient element with respect to a vector with which a step is applied: 2^36. A training that does not
/// diverge stays far below it. It also leaves room in f32: the gradients of 2^20 look-ups of a row can be added up and
/// squared, and the squares of 2^16 elements added up, before anything becomes infinite, so these sums cannot damage a
/// row. `element.cuh` has the same constant.
pub const VECTOR_GRADIENT_MAX: f32 = 68_719_476_736.0;

/// The largest sum of squares of the dense gradients with which a step is applied: 2^126, so that each gradient can be
/// squared in f32. `guard.cu` has the same constant.
pub const DENSE_SQUARES_MAX: f64 = 8.507_059_173_023_462e37;

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutcome {
    /// The loss before the update.
    pub loss: f64,
    /// Why the step was skipped; `None` if it was applied.
    pub skipped: Option<SkipReason>,
}

/// Why a step was not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipReason {
    /// Gradients times the loss scale exceed the range of f16: the scale is halved.
    LossScale,
    /// The loss or a gradient is not finite.
    NonFinite(NonFinite),
}

impl SkipReason {
    /// The names of all reasons, for counts.
    pub const NAMES: [&str; 4] = ["loss", "dense_gradients", "vector_gradients", "loss_scale"];

    /// Returns the index in [`SkipReason::NAMES`]: of the first that holds, since a loss that is not finite makes
    /// gradients that are not finite either.
    fn index(&self) -> usize {
        match self {
            Self::NonFinite(NonFinite { loss: true, .. }) => 0,
            Self::NonFinite(NonFinite { dense_gradients: true, .. }) => 1,
            Self::NonFinite(_) => 2,
            Self::LossScale => 3,
        }
    }
}

/// Counts of skipped steps by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SkippedSteps([u64; SkipReason::NAMES.len()]);

impl SkippedSteps {
    /// Counts a step that was skipped for this reason.
    pub fn add(&mut self, reason: &SkipReason) {
        self.0[reason.index()] += 1;
    }

    /// Returns each reason's name and count.
    pub fn iter(self) -> impl Iterator<Item = (&'static str, u64)> {
        SkipReason::NAMES.into_iter().zip(self.0)
    }
}

/// What is not finite in a step, or so large that its sums or squares would not be finite.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NonFinite {
    /// The loss.
    pub loss: bool,
    /// Gradients of dense parameters, all-reduced over the ranks.
    pub dense_gradients: bool,
    /// Gradients with respect to embedding vectors, or to the bottom MLP's output, which enters the interaction with
    /// them.
    pub vector_gradients: bool,
    /// Names of the tables of these vectors, as far as known; GPUs do not report them.
    pub tables: Vec<String>,
    /// The ranks whose samples have a non-finite loss or non-finite vector gradients.
    pub found_on: FoundOn,
}

/// Ranks on which something non-finite was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FoundOn {
    /// On no single rank: only a sum over all of them is not finite.
    #[default]
    SumOverRanks,
    /// On one rank.
    Rank(Rank),
    /// On this number of ranks.
    Several(usize),
}

impl StepOutcome {
    /// Returns what was not finite, if the step was skipped for that.
    pub fn non_finite(&self) -> Option<&NonFinite> {
        match &self.skipped {
            Some(SkipReason::NonFinite(found)) => Some(found),
            Some(SkipReason::LossScale) | None => None,
        }
    }
}

impl FoundOn {
    /// Given the number of ranks that found something, and the sum of their rank numbers.
    pub fn from_ranks(ranks: usize, sum: usize) -> Self {
        match ranks {
            0 => Self::SumOverRanks,
            1 => Self::Rank(Rank(sum)),
            ranks => Self::Several(ranks),
        }
    }
}

/// Example: "the loss and the gradients with respect to vectors of C3, on rank 1".
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
                [] => "the gradients with respect to vectors".into(),
                tables => format!("the gradients with respect to vectors of {}", tables.join(", ")),
            });
        }
        match found.split_last() {
            Some((last, [])) => f.write_str(last)?,
            Some((last, others)) => write!(f, "{} and {last}", others.join(", "))?,
            None => f.write_str("nothing")?,
        }
        match self.found_on {
            FoundOn::SumOverRanks => Ok(()),
            FoundOn::Rank(rank) => write!(f, ", on rank {rank}"),
            FoundOn::Several(ranks) => write!(f, ", on {ranks} ranks"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_what_is_not_finite_and_where() {
        let found = NonFinite { dense_gradients: true, ..NonFinite::default() };
        assert_eq!(found.to_string(), "the gradients of dense parameters");
        let found = NonFinite { loss: true, found_on: FoundOn::from_ranks(1, 3), ..found };
        assert_eq!(found.to_string(), "the loss and the gradients of dense parameters, on rank 3");
        let tables = vec!["C1".into(), "C7".into()];
        let found =
            NonFinite { vector_gradients: true, tables, found_on: FoundOn::from_ranks(2, 3), ..found };
        let text =
            "the loss, the gradients of dense parameters and the gradients with respect to vectors of C1, C7";
        assert_eq!(found.to_string(), format!("{text}, on 2 ranks"));
    }

    #[test]
    fn a_skipped_step_counts_for_the_first_cause() {
        let mut skipped = SkippedSteps::default();
        let dense = NonFinite { dense_gradients: true, vector_gradients: true, ..NonFinite::default() };
        let loss = NonFinite { loss: true, ..dense.clone() };
        let vectors = NonFinite { vector_gradients: true, ..NonFinite::default() };
        for found in [dense.clone(), dense, vectors, loss] {
            skipped.add(&SkipReason::NonFinite(found));
        }
        skipped.add(&SkipReason::LossScale);
        let expected = [("loss", 1), ("dense_gradients", 2), ("vector_gradients", 1), ("loss_scale", 1)];
        assert!(skipped.iter().eq(expected));
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
