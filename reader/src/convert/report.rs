//! What a conversion did, for people and programs: `conversion.json`.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::convert::fault::BadReason;
use crate::convert::unknown::UnknownCategories;
use crate::origin::Conversion;
use crate::schema::VocabularyKind;

/// The file that holds a conversion's report.
pub const REPORT_NAME: &str = "conversion.json";

/// What a conversion did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConversionReport {
    /// What is also in the dataset's manifest.
    #[serde(flatten)]
    pub conversion: Conversion,
    /// How many rows are bad for each reason; reasons that did not occur are absent.
    pub bad_by_reason: BTreeMap<BadReason, u64>,
    /// Categorical columns by name, in their order.
    #[serde(serialize_with = "as_map")]
    pub columns: Vec<(String, CategoricalReport)>,
    /// Dense columns by name, in their order.
    #[serde(serialize_with = "as_map")]
    pub dense: Vec<(String, DenseReport)>,
}

/// A map keeps the columns' order, which one sorted by name (C1, C10, C11, ...) would not.
fn as_map<V: Serialize, S: Serializer>(columns: &[(String, V)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(columns.iter().map(|(name, report)| (name, report)))
}

/// What became of a categorical column.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CategoricalReport {
    /// How categories became rows.
    pub vocabulary: VocabularyKind,
    /// Rows of the table.
    pub rows: u64,
    /// For exact columns.
    #[serde(flatten)]
    pub exact: Option<ExactReport>,
}

/// What became of a column that has an exact vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExactReport {
    /// Categories that have rows of their own.
    pub kept_categories: u64,
    /// Categories of training rows that have none: they were too rare.
    pub unknown_train: UnknownCategories,
    /// Categories of evaluation rows that have none.
    pub unknown_eval: UnknownCategories,
}

/// What became of a dense column.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DenseReport {
    /// Subtracted from the logarithm.
    pub mean: f64,
    /// Divides what is left.
    pub deviation: f64,
    /// Training rows without a number here.
    pub missing: u64,
}
