//! What becomes of ids that are no rows of their tables: the job's policy for a dataset's columns, and how many there
//! were.

use std::collections::BTreeMap;

use rankine_reader::schema::{Categorical, VocabularyKind};
use rankine_reader::{Dataset, IdRules, OutOfRange, Schema, vocabulary};

use super::TrainError;
use crate::job::{Conflict, IdPolicy, Job};

/// Ids that were no rows of their tables, by column; columns without such are absent.
pub type IdCounts = BTreeMap<String, u64>;

/// Has a dataset's ids dealt with as a job says.
///
/// # Errors
/// [`TrainError::Conflicts`] where ids are to stand for a row that a column does not have.
pub fn with_ids(job: &Job, dataset: Dataset) -> Result<Dataset, TrainError> {
    let rules = id_rules(job, dataset.schema()).map_err(TrainError::Conflicts)?;
    Ok(dataset.with_ids(&rules)?)
}

/// Rules for ids of a job's columns, apart from a dataset: of raw rows that are scored by its model.
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
                        "column {} has no vocabulary, and so no row for what is not in it: name one with oov_row of a \
                     [[table]], or let such ids be left out with \"skip\"",
                        column.name
                    ),
                )),
            }
        }
    }
}

/// Adds what was counted in a batch; returns the numbers of the columns that had none before.
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

/// What becomes of ids by a rule, in words.
pub(super) fn fate(rule: OutOfRange) -> String {
    match rule {
        OutOfRange::Row(row) => format!("they stand for row {row}"),
        OutOfRange::Leave => "they are left out of their bags".into(),
        OutOfRange::Fail => "they are errors".into(),
    }
}
