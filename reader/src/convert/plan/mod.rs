//! The plan of a conversion: the columns as far as they are known before any row is read, and how they become a
//! schema once the training part has been read.

pub(crate) mod exact;
pub(crate) mod moments;
pub(crate) mod options;
pub(crate) mod schema_file;
mod sequence_entry;

use std::collections::BTreeMap;

use rankine_base::error::Result;
use serde::{Deserialize, Serialize};

use crate::convert::BAG_MAX;
use crate::convert::plan::moments::Moments;
use crate::convert::rows::fault::BadReason;
use crate::convert::rows::source::{NamedTarget, RequiredColumns};
use crate::origin::{RowCounts, RowFormat};
use crate::schema::{Hotness, Schema, VocabularyKind};
use crate::vocabulary::Lookup;

/// The plan of a conversion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// The columns. Exact tables have no rows yet, ragged bags hold up to [`BAG_MAX`], and nothing is standardized.
    pub(crate) draft: Schema,
    /// For each dense column, whether it is standardized after its function is applied.
    pub(crate) standardized: Vec<bool>,
    /// The format of the rows.
    pub(crate) format: RowFormat,
    /// What the rows decide.
    pub(crate) learning: Learning,
}

/// What is learnt from the rows, in addition to the sizes of bags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Learning {
    /// Vocabularies, means and deviations.
    All,
    /// New categories of vocabularies that exist already; transforms exist, too.
    NewCategories,
    /// Nothing: transforms and vocabularies exist.
    Nothing,
}

/// What was learnt from the rows.
#[derive(Debug, Default)]
pub(crate) struct ColumnStatistics {
    /// One entry per categorical column; `None` if it does not own an exact vocabulary. Those that exist before are
    /// replaced by what is learnt.
    pub(crate) vocabularies: Vec<Option<Lookup>>,
    /// One entry per dense column: moments of its function's values in the training part.
    pub(crate) moments: Vec<Moments>,
    /// One entry per categorical column: the maximum number of categories in any row.
    pub(crate) largest_bags: Vec<u32>,
    /// Counts of the rows of all sources, if they had to be read.
    pub(crate) rows: Option<RowCounts>,
    /// The number of bad rows for each reason, as far as rows were read.
    pub(crate) bad_by_reason: BTreeMap<BadReason, u64>,
}

impl ColumnStatistics {
    /// Returns what is known before rows are read: the vocabularies that exist, one entry per categorical column.
    pub(crate) fn before(draft: &Schema, vocabularies: Vec<Option<Lookup>>) -> Self {
        Self {
            vocabularies,
            moments: vec![Moments::default(); draft.dense.len()],
            largest_bags: vec![0; draft.categorical.len()],
            ..Self::default()
        }
    }
}

impl Plan {
    /// Returns the columns to read from files of named columns.
    pub(crate) fn target(&self) -> NamedTarget<'_> {
        NamedTarget { schema: &self.draft, standardized: &self.standardized, needed: RequiredColumns::All }
    }

    /// Returns whether rows must be read before the schema is known.
    pub(crate) fn must_learn(&self) -> bool {
        let categorical = self.draft.categorical.iter().any(|column| {
            self.learns_categories() && matches!(column.vocabulary, VocabularyKind::Exact { .. })
                || matches!(column.hotness, Hotness::Ragged { .. })
        });
        categorical || self.learns_transforms() && self.standardized.contains(&true)
    }

    /// Returns whether exact vocabularies are learnt, at least in part.
    pub(crate) fn learns_categories(&self) -> bool {
        self.learning != Learning::Nothing
    }

    /// Returns whether the means and deviations of standardized columns are learnt.
    pub(crate) fn learns_transforms(&self) -> bool {
        self.learning == Learning::All
    }

    /// Returns the schema of the dataset.
    ///
    /// # Errors
    /// If a column shares a vocabulary that does not exist.
    pub(crate) fn schema(&self, statistics: &ColumnStatistics) -> Result<Schema> {
        let mut schema = self.draft.clone();
        for (number, column) in schema.dense.iter_mut().enumerate() {
            if self.learns_transforms() && self.standardized[number] {
                column.transform = statistics.moments[number].transform(column.transform.function);
            }
        }
        for (number, column) in schema.categorical.iter_mut().enumerate() {
            let owner = self.draft.vocabulary_owner(number)?;
            if let Some(vocabulary) = statistics.vocabularies.get(owner).and_then(Option::as_ref) {
                column.rows = Some(vocabulary.rows());
            }
            if let Hotness::Ragged { max } = &mut column.hotness {
                *max = match self.draft.sequence_of(&column.name) {
                    Some(sequence) => sequence.max,
                    None => statistics.largest_bags.get(number).copied().unwrap_or(BAG_MAX).max(1),
                };
            }
        }
        Ok(schema)
    }
}
