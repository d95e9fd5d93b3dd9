//! Synthetic data.

use serde::{Deserialize, Serialize};

/// How a generated dataset came to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// The AUC of the teacher's own probabilities on the evaluation part.
    pub auc_achievable: Option<f64>,
}
