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

/// A rule for each categorical column. Columns with the same problem share one conflict.
pub(crate) fn id_rules(job: &Job, schema: &Schema) -> Result<Vec<OutOfRange>, Vec<Conflict>> {
    let mut rules = Vec::new();
    let mut problems: Vec<(IdProblem, Vec<&str>)> = Vec::new();
    for column in &schema.categorical {
        match id_rule(job, column) {
            Ok(rule) => rules.push(rule),
            Err(problem) => match problems.iter_mut().find(|(known, _)| *known == problem) {
                Some((_, columns)) => columns.push(&column.name),
                None => problems.push((problem, vec![&column.name])),
            },
        }
    }
    if problems.is_empty() {
        return Ok(rules);
    }
    Err(problems.iter().map(|(problem, columns)| problem.conflict(columns)).collect())
}

/// Why ids out of range have no row to be mapped to.
#[derive(PartialEq, Eq)]
enum IdProblem {
    /// Table `table` of the job names a row that its columns do not have.
    OovRowTooLarge { table: usize, oov_row: u64, rows: u64 },
    /// The column has no row for unknown categories. `key` is the policy that needs one.
    NoOovRow { key: String },
}

impl IdProblem {
    fn conflict(&self, columns: &[&str]) -> Conflict {
        let (named, have) = match columns {
            [column] => (format!("column {column}"), "has"),
            _ => (format!("columns {}", columns.join(", ")), "have"),
        };
        match self {
            Self::OovRowTooLarge { table, oov_row, rows } => Conflict::new(
                format!("table.{table}.oov_row"),
                format!("row {oov_row} is not below the {rows} rows of the table of {named}"),
            ),
            Self::NoOovRow { key } => Conflict::new(
                key,
                format!(
                    "{named} {have} no exact vocabulary, and so no row for unknown categories: name one with \
                     oov_row of a [[table]], or skip such ids with \"skip\""
                ),
            ),
        }
    }
}

fn id_rule(job: &Job, column: &Categorical) -> Result<OutOfRange, IdProblem> {
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
            match (own.and_then(|(table, own)| Some((table, own.oov_row?))), column.vocabulary) {
                (Some((table, oov_row)), _) if oov_row >= rows => {
                    Err(IdProblem::OovRowTooLarge { table, oov_row, rows })
                }
                (Some((_, row)), _) => Ok(OutOfRange::Row(row)),
                (None, VocabularyKind::Exact { .. }) => Ok(OutOfRange::Row(vocabulary::OUT_OF_VOCABULARY)),
                (None, VocabularyKind::Hash | VocabularyKind::Identity) => Err(IdProblem::NoOovRow { key }),
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
