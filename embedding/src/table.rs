//! What a table is, and how it is looked up, apart from where its rows lie.

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;

/// How the rows of a bag become one vector. An empty bag becomes zeros either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The sum of the rows.
    Sum,
    /// The sum divided by the number of ids.
    Mean,
}

impl Pooling {
    /// What each row of a bag of `ids` ids is multiplied by.
    pub fn scale(self, ids: usize) -> f32 {
        match self {
            Self::Sum => 1.0,
            Self::Mean => 1.0 / ids.max(1) as f32,
        }
    }
}

/// An embedding table. How its rows are pooled is a matter of the features that look it up, of which there may be
/// several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    /// Its name: that of the first categorical column that looks it up, unless the job names it.
    pub name: String,
    /// Rows: every id is below it.
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// What they are stored as.
    #[serde(default)]
    pub dtype: Dtype,
}

impl TableSpec {
    /// Rows start as uniform numbers within this distance of 0, as MLPerf's DLRM has it: `1 / sqrt(rows)`.
    pub fn initial_bound(&self) -> f32 {
        (1.0 / (self.rows as f64).sqrt()) as f32
    }
}
