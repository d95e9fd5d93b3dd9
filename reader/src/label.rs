//! Label columns, and which share of their negatives rows have.

use serde::{Deserialize, Serialize};

/// A label column. Labels are 0, 1 or missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// The column's name.
    pub name: String,
    /// The share of samples with label 0 that the rows were left with, if they were downsampled: above 0, at most 1.
    /// Samples with label 1 were all kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negatives_kept: Option<f64>,
}

impl Label {
    /// Returns a label whose negatives were all kept.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), negatives_kept: None }
    }

    /// Returns the share of negatives that were kept: 1 without downsampling.
    pub fn share_kept(&self) -> f64 {
        self.negatives_kept.unwrap_or(1.0)
    }
}

/// Returns whether a number can be the share of negatives that were kept.
pub(crate) fn is_share(share: f64) -> bool {
    share > 0.0 && share <= 1.0
}
