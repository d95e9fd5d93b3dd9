//! The description of a table and of its look-ups, independent of where its rows are stored.

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use crate::membership::DynamicRows;

/// How the rows of a bag are combined into one vector. An empty bag yields zeros either way. If ids have weights, each
/// row is multiplied by the weight of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The sum of the rows.
    Sum,
    /// The sum divided by the number of ids, or by the sum of their weights.
    Mean,
}

impl Pooling {
    /// The factor of each row of a bag of `ids` ids without weights.
    pub fn scale(self, ids: usize) -> f32 {
        match self {
            Self::Sum => 1.0,
            Self::Mean => 1.0 / ids.max(1) as f32,
        }
    }
}

/// An embedding table. Pooling is a property of the features that look it up, of which there may be several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    /// Its name: that of the first categorical column that looks it up, unless the job sets it.
    pub name: String,
    /// Rows: every id is below this.
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// The type in which they are stored.
    #[serde(default)]
    pub dtype: Dtype,
    /// How rows are given to ids as they come; `None` if each id is a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<DynamicRows>,
}

impl TableSpec {
    /// The largest magnitude of initial weights, which are uniform, as in MLPerf's DLRM: `1 / sqrt(rows)`.
    pub fn initial_bound(&self) -> f32 {
        (1.0 / (self.rows as f64).sqrt()) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_divide_by_the_ids_and_weights_begin_within_the_root_of_the_rows() {
        assert_eq!((Pooling::Sum.scale(4), Pooling::Mean.scale(4)), (1.0, 0.25));
        assert_eq!((Pooling::Mean.scale(0), Pooling::Mean.scale(1)), (1.0, 1.0));
        let bound = |rows| {
            TableSpec { name: "C1".into(), rows, dim: 8, dtype: Dtype::Fp32, dynamic: None }.initial_bound()
        };
        assert_eq!((bound(1), bound(64), bound(1 << 40)), (1.0, 0.125, 2f32.powi(-20)));
    }
}
