//! What a conversion is to make: the columns as far as they are known before any row is read, and how they become a
//! schema once the training part has taught the rest.

use crate::convert::BAG_MAX;
use crate::convert::moments::Moments;
use crate::convert::source::{NamedTarget, Needed};
use crate::error::Result;
use crate::origin::RowFormat;
use crate::schema::{Hotness, Schema, VocabularyKind};
use crate::vocabulary::Vocabulary;

/// What a conversion is to make.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// The columns. Exact tables have no rows yet, ragged bags hold up to [`BAG_MAX`], nothing is standardized.
    pub(crate) draft: Schema,
    /// For each dense column, whether it is to be standardized behind its function.
    pub(crate) standardized: Vec<bool>,
    /// How rows are read.
    pub(crate) format: RowFormat,
}

/// What the rows taught.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    /// One entry a categorical column; `None` where it has no exact vocabulary of its own.
    pub(crate) vocabularies: Vec<Option<Vocabulary>>,
    /// One entry a dense column, of its function's values in the training part.
    pub(crate) moments: Vec<Moments>,
    /// One entry a categorical column: the most categories of any row.
    pub(crate) largest_bags: Vec<u32>,
    /// Rows of all sources, where they had to be read.
    pub(crate) rows: Option<u64>,
}

impl Plan {
    /// What files of named columns are read for.
    pub(crate) fn target(&self) -> NamedTarget<'_> {
        NamedTarget { schema: &self.draft, standardized: &self.standardized, needed: Needed::All }
    }

    /// Whether rows must be read before the schema is known.
    pub(crate) fn must_learn(&self) -> bool {
        let categorical = self.draft.categorical.iter().any(|column| {
            matches!(column.vocabulary, VocabularyKind::Exact { .. })
                || matches!(column.hotness, Hotness::Ragged { .. })
        });
        categorical || self.standardized.contains(&true)
    }

    /// The schema of the dataset.
    ///
    /// # Errors
    /// Where a column shares a vocabulary that is not there.
    pub(crate) fn schema(&self, learnt: &Learnt) -> Result<Schema> {
        let mut schema = self.draft.clone();
        for (number, column) in schema.dense.iter_mut().enumerate() {
            if self.standardized[number] {
                column.transform = learnt.moments[number].transform(column.transform.function);
            }
        }
        for (number, column) in schema.categorical.iter_mut().enumerate() {
            let owner = self.draft.vocabulary_owner(number)?;
            if let Some(vocabulary) = learnt.vocabularies.get(owner).and_then(Option::as_ref) {
                column.rows = vocabulary.rows();
            }
            if let Hotness::Ragged { max } = &mut column.hotness {
                *max = learnt.largest_bags.get(number).copied().unwrap_or(BAG_MAX).max(1);
            }
        }
        Ok(schema)
    }
}
