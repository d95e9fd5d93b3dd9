//! The report of a conversion, for people and programs: `conversion.json`.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::convert::rows::fault::BadReason;
use crate::convert::write::keys::KeyReport;
use crate::convert::write::unknown::UnknownCategories;
use crate::origin::Conversion;
use crate::schema::{Schema, VocabularyKind};

/// The file that holds a conversion's report.
pub const REPORT_NAME: &str = "conversion.json";

/// The report of a conversion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConversionReport {
    /// The part that is also in the dataset's manifest.
    #[serde(flatten)]
    pub conversion: Conversion,
    /// The dataset or model whose columns, transforms and vocabularies were kept, as it was named; absent if there is
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    /// The number of bad rows for each reason; reasons that did not occur are absent.
    pub bad_by_reason: BTreeMap<BadReason, u64>,
    /// Categorical columns by name, in schema order.
    #[serde(serialize_with = "as_map")]
    pub columns: Vec<(String, CategoricalReport)>,
    /// Dense columns by name, in schema order.
    #[serde(serialize_with = "as_map")]
    pub dense: Vec<(String, DenseReport)>,
}

impl ConversionReport {
    /// Records the old dataset whose columns were kept. `grown` states whether categories were to be added.
    pub(crate) fn set_like(&mut self, name: String, old: &Schema, grown: bool) {
        self.like = Some(name);
        for ((_, column), old) in self.columns.iter_mut().zip(&old.categorical) {
            if let Some(exact) = &mut column.exact {
                exact.new_categories =
                    column.rows.zip(old.rows).filter(|_| grown).map(|(rows, old)| rows - old);
            }
        }
    }
}

/// Serializes a map in the columns' order; a map sorted by name would give C1, C10, C11, ...
pub(crate) fn as_map<V: Serialize, S: Serializer>(
    columns: &[(String, V)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(columns.iter().map(|(name, report)| (name, report)))
}

/// The report of a categorical column.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CategoricalReport {
    /// How categories became rows.
    pub vocabulary: VocabularyKind,
    /// Rows of the table; absent if the vocabulary is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// For exact columns only.
    #[serde(flatten)]
    pub exact: Option<ExactReport>,
    /// For open columns that do not share the vocabulary of another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeyReport>,
}

/// The report of a column with an exact vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExactReport {
    /// Number of categories with their own rows.
    pub kept_categories: u64,
    /// Categories of the training part that were added to the vocabulary of an old dataset; absent if categories were
    /// not to be added. They are among `kept_categories`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_categories: Option<u64>,
    /// Categories of training rows that have no row: they are too rare, or the vocabulary is that of an old dataset.
    pub unknown_train: UnknownCategories,
    /// Categories of evaluation rows that have no row.
    pub unknown_eval: UnknownCategories,
}

/// The report of a dense column.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DenseReport {
    /// Subtracted from the transformed number.
    pub mean: f64,
    /// Divides the difference.
    pub deviation: f64,
    /// Training rows in which the number is missing.
    pub missing: u64,
}
