//! The source of a dataset's samples, as its manifest records it.

mod row_format;

use serde::{Deserialize, Serialize};

use crate::shape::Shape;

pub use row_format::{CategorySource, ColumnSources, CsvFormat, LabelRule, LabelSource, RowFormat};

/// The source of a dataset's samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Made by the generator.
    Generated(Generation),
    /// Converted from click logs.
    Converted(Conversion),
}

/// How a dataset was converted, or a fit was learned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conversion {
    /// The format of the source's rows.
    pub format: RowFormat,
    /// The sources, as they were named, in order.
    pub files: Vec<String>,
    /// The sources of the evaluation part, if given separately.
    pub eval: Vec<String>,
    /// The requested split of rows into parts.
    pub split: String,
    /// Counts of the source's rows.
    pub rows: RowCounts,
}

/// Counts of the source's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowCounts {
    /// All rows.
    pub read: u64,
    /// Good rows: those in the dataset, if there is one.
    pub kept: u64,
    /// Rows that cannot be read.
    pub bad: u64,
    /// Rows of the training part.
    pub train: u64,
    /// Rows of the evaluation part.
    pub eval: u64,
}

impl RowCounts {
    /// Adds rows that were read, of which these are good.
    pub(crate) fn add(&mut self, read: u64, train: u64, eval: u64) {
        self.read += read;
        self.kept += train + eval;
        self.bad += read - train - eval;
        self.train += train;
        self.eval += eval;
    }
}

/// What to generate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateSpec {
    /// Columns and tables.
    pub shape: Shape,
    /// The maximum number of rows of a table, if limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_cap: Option<u64>,
    /// Samples of the training part.
    pub samples: u64,
    /// Samples of the evaluation part; 0 for none.
    pub eval_samples: u64,
    /// The exponent of the power law of ids.
    pub alpha: f64,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// How a dataset was generated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// The request.
    pub spec: GenerateSpec,
    /// The AUC of the teacher's own logits on the evaluation part, which no model can be expected to exceed. Absent
    /// if that part lacks positive or negative labels.
    pub auc_achievable: Option<f64>,
}
