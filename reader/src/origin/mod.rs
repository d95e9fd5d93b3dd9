//! Where the samples of a dataset come from, as its manifest records it.

mod row_format;

use serde::{Deserialize, Serialize};

use crate::shape::Shape;

pub use row_format::{CategorySource, ColumnSources, CsvFormat, LabelRule, LabelSource, RowFormat};

/// Where the samples of a dataset come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Made by the generator.
    Generated(Generation),
    /// Converted from click logs.
    Converted(Conversion),
}

/// How a converted dataset came to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conversion {
    /// How rows of the source are read.
    pub format: RowFormat,
    /// The sources, as they were named, in order.
    pub files: Vec<String>,
    /// The sources of the evaluation part, where it has its own.
    pub eval: Vec<String>,
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
    /// Rows of the training part.
    pub train: u64,
    /// Rows of the evaluation part.
    pub eval: u64,
}

/// What to generate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateSpec {
    /// Columns and tables.
    pub shape: Shape,
    /// No table has more rows than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_cap: Option<u64>,
    /// Samples of the training part.
    pub samples: u64,
    /// Samples of the evaluation part; 0 for none.
    pub eval_samples: u64,
    /// The exponent of the power law of ids.
    pub alpha: f64,
    /// Where all random numbers come from.
    pub seed: u64,
}

/// How a generated dataset came to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// What was asked for.
    pub spec: GenerateSpec,
    /// The AUC of the teacher's own logits on the evaluation part: no model can be expected to do better. Absent where
    /// that part lacks one of the labels.
    pub auc_achievable: Option<f64>,
}
