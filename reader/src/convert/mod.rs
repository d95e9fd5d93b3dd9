//! From click logs to a dataset.

use serde::{Deserialize, Serialize};

/// How a converted dataset came to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conversion {
    /// The format of the source: `criteo-tsv`.
    pub format: String,
    /// How rows became parts, as it was asked for.
    pub split: String,
    /// What became of the rows.
    pub rows: RowCounts,
}

/// What became of the rows of the source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowCounts {
    /// All rows.
    pub read: u64,
    /// Rows in the dataset.
    pub kept: u64,
    /// Rows that are not.
    pub bad: u64,
}
