//! `[[sequence]]` of a schema file: categorical columns that describe the same positions.

use rankine_base::did_you_mean;
use rankine_base::document::Conflict;
use serde::Deserialize;

use crate::schema::{HOTNESS_MAX, Keep, Schema, Sequence};

/// The most positions of a sequence, unless the schema file says otherwise.
const POSITIONS: u32 = 50;

/// A sequence: categorical columns with the same number of categories in each row.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct SequenceEntry {
    /// The name, by which `[[attention]]` of a job refers to it.
    #[cfg_attr(test, schemars(length(min = 1)))]
    name: String,
    /// The names of the categorical columns, each with a category per position.
    #[cfg_attr(test, schemars(length(min = 1)))]
    columns: Vec<String>,
    /// The most positions of a row, by default 50.
    #[cfg_attr(test, schemars(range(min = 1, max = HOTNESS_MAX)))]
    max: Option<u32>,
    /// Which positions remain if there are more, by default the last ones.
    keep: Option<Keep>,
}

impl SequenceEntry {
    /// Returns the sequence; `draft` has the categorical columns and the earlier sequences.
    pub(super) fn sequence(self, draft: &Schema) -> Result<Sequence, Conflict> {
        let Self { name, columns, max, keep } = self;
        let section = format!("sequence.{}", draft.sequences.len());
        let conflict = |key: &str, message: String| Err(Conflict::new(format!("{section}.{key}"), message));
        if name.is_empty() {
            return conflict("name", "a sequence needs a name, such as \"clicks\"".into());
        }
        if draft.sequences.iter().any(|other| other.name == name) {
            return conflict("name", format!("an earlier sequence is named {name:?}, too"));
        }
        if columns.is_empty() {
            return conflict("columns", "a sequence needs a categorical column: columns = [\"...\"]".into());
        }
        let max = max.unwrap_or(POSITIONS);
        if !(1..=HOTNESS_MAX).contains(&max) {
            return conflict("max", format!("max must be a number from 1 to {HOTNESS_MAX}"));
        }
        for (number, column) in columns.iter().enumerate() {
            let known = draft.categorical.iter().map(|other| other.name.as_str());
            let key = format!("columns.{number}");
            if !known.clone().any(|other| other == column) {
                let meant = did_you_mean(column, known);
                return conflict(&key, format!("no categorical column is named {column:?}{meant}"));
            }
            if draft.sequence_of(column).is_some() || columns[..number].contains(column) {
                return conflict(&key, format!("the column {column:?} is already in a sequence"));
            }
        }
        Ok(Sequence { name, columns, max, keep: keep.unwrap_or(Keep::Last) })
    }
}

/// Returns what is wrong with a column of a sequence that has weights, or no bags; `instead` is how it gets some.
pub(super) fn unsuitable_column(draft: &Schema, instead: &str) -> Option<Conflict> {
    for (number, sequence) in draft.sequences.iter().enumerate() {
        for (position, name) in sequence.columns.iter().enumerate() {
            let column = draft.categorical.iter().find(|column| column.name == *name)?;
            let key = format!("sequence.{number}.columns.{position}");
            if column.weighted {
                let message = format!("the column {name:?} has weights, and columns of a sequence have none");
                return Some(Conflict::new(key, message));
            }
            if !column.hotness.varies() {
                let message = format!("the column {name:?} has one category per row: {instead}");
                return Some(Conflict::new(key, message));
            }
        }
    }
    None
}
