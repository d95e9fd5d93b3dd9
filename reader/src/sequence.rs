//! The description of sequences: categorical columns whose bags have the same number of ids in each sample, in a
//! meaningful order.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Categorical columns that describe the same positions: the items that a user has seen and the categories of these,
/// for example. In each sample, their bags have the same number of ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sequence {
    /// The name, by which jobs refer to it.
    pub name: String,
    /// The columns, each with an id per position.
    pub columns: Vec<String>,
    /// The most positions of a sample.
    pub max: u32,
    /// Which positions remain if there are more.
    pub keep: Keep,
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, columns, max, keep } = self;
        let keep = if *keep == Keep::First { "first" } else { "last" };
        write!(f, "the sequence {name} of {} (the {keep} {max} positions)", columns.join(" and "))
    }
}

/// Which positions of a sequence remain if there are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// The first ones.
    First,
    /// The last ones.
    Last,
}

/// A sample has two columns of one sequence with different numbers of ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "column {column} has {found} ids and column {of} has {expected}, but both are of the sequence {sequence}"
)]
pub struct UnequalLengths {
    /// The sequence.
    pub sequence: String,
    /// The sample.
    pub sample: usize,
    /// A column.
    pub column: String,
    /// Its ids.
    pub found: usize,
    /// The first column of the sequence.
    pub of: String,
    /// Its ids.
    pub expected: usize,
}
