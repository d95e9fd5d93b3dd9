//! Ids outside their tables: the job's policy for a dataset's columns, and counts.

use std::collections::BTreeMap;

use rankine_reader::schema::{Categorical, VocabularyKind};
use rankine_reader::{Dataset, IdRules, OutOfRange, Schema, vocabulary};

use super::TrainError;
use crate::job::{Conflict, IdPolicy, Job};

/// Counts of ids outside their tables, by column; columns without any are absent.
pub type IdCounts = BTreeMap<String, u64>;

/// Applies a job's policy to the ids of a dataset.
///
/// # Errors
/// [`TrainError::Conflicts`] if the policy names a row that a column does not have.
pub fn with_ids(job: &Job, dataset: Dataset) -> Result<Dataset, TrainError> {
    let rules = id_rules(job, dataset.schema()).map_err(TrainError::Conflicts)?;
    Ok(dataset.with_ids(&rules)?)
}

/// The rules for ids of a job's columns, without a dataset: for raw rows that its model scores.
///
/// # Errors
/// As [`with_ids`].
pub fn ids_of(job: &Job, schema: &Schema) -> Result<IdRules, TrainError> {
    Ok(IdRules::new(schema, &id_rules(job, schema).map_err(TrainError::Conflicts)?)?)
}

/// A rule for each categorical column.
pub(crate) fn id_rules(job: &Job, schema: &Schema) -> Result<Vec<OutOfRange>, Vec<Conflict>> {
    let (mut rules, mut conflicts) = (Vec::new(), Vec::new());
    for column in &schema.categorical {
        match id_rule(job, column) {
            Ok(rule) => rules.push(rule),
            Err(conflict) => conflicts.push(conflict),
        }
    }
    if conflicts.is_empty() { Ok(rules) } else { Err(conflicts) }
}

fn id_rule(job: &Job, column: &Categorical) -> Result<OutOfRange, Conflict> {
    let own = job.table_of(&column.name);
    let (policy, key) = match own.and_then(|(number, table)| Some((number, table.ids_out_of_range?))) {
        Some((number, policy)) => (policy, format!("table.{number}.ids_out_of_range")),
        None => (job.guard.ids_out_of_range, "guard.ids_out_of_range".to_owned()),
    };
    let rows = column.rows;
    match policy {
        IdPolicy::Fail => Ok(OutOfRange::Fail),
        IdPolicy::Skip => Ok(OutOfRange::Leave),
        IdPolicy::Oov => {
            match (own.and_then(|(number, table)| Some((number, table.oov_row?))), column.vocabulary) {
                (Some((number, row)), _) if row >= rows => Err(Conflict::new(
                    format!("table.{number}.oov_row"),
                    format!("row {row} is not below the {rows} rows of the table of column {}", column.name),
                )),
                (Some((_, row)), _) => Ok(OutOfRange::Row(row)),
                (None, VocabularyKind::Exact { .. }) => Ok(OutOfRange::Row(vocabulary::OUT_OF_VOCABULARY)),
                (None, VocabularyKind::Hash | VocabularyKind::Identity) => Err(Conflict::new(
                    key,
                    format!(
                        "column {} has no exact vocabulary, and so no row for unknown categories: name one with \
                         oov_row of a [[table]], or skip such ids with \"skip\"",
                        column.name
                    ),
                )),
            }
        }
    }
}

/// Adds the counts of a batch; returns the indexes of the columns that had none before.
pub(crate) fn add(counts: &mut IdCounts, schema: &Schema, of_batch: &[u64]) -> Vec<usize> {
    let mut first = Vec::new();
    let columns = schema.categorical.iter().zip(of_batch).enumerate();
    for (number, (column, &count)) in columns.filter(|(_, (_, count))| **count > 0) {
        let counted = counts.entry(column.name.clone()).or_default();
        if *counted == 0 {
            first.push(number);
        }
        *counted += count;
    }
    first
}

/// What a rule does with ids, in words.
pub(super) fn fate(rule: OutOfRange) -> String {
    match rule {
        OutOfRange::Row(row) => format!("they are mapped to row {row}"),
        OutOfRange::Leave => "they are skipped".into(),
        OutOfRange::Fail => "they are errors".into(),
    }
}
