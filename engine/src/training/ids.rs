//! Ids outside their tables: the job's policy applied to a dataset, and counts.

use std::collections::BTreeMap;

use rankine_job::Job;
use rankine_reader::vocabulary::OUT_OF_VOCABULARY;
use rankine_reader::{Dataset, OutOfRange, Schema};

use super::error::TrainError;

/// Counts of ids outside their tables, by column; columns without any are absent.
pub type IdCounts = BTreeMap<String, u64>;

/// Applies a job's policy to the ids of a dataset.
///
/// # Errors
/// [`TrainError::Conflicts`] if the policy names a row that a column does not have.
pub fn with_ids(job: &Job, dataset: Dataset) -> Result<Dataset, TrainError> {
    with_ids_of_grown(job, dataset, &[])
}

/// Applies a job's policy to the ids of a dataset of which some columns have grown: their further ids stand for
/// categories that a model does not know.
///
/// # Errors
/// As [`with_ids`].
pub(super) fn with_ids_of_grown(job: &Job, dataset: Dataset, grown: &[usize]) -> Result<Dataset, TrainError> {
    let mut rules = job.id_rules(dataset.schema()).map_err(TrainError::Conflicts)?;
    grown.iter().for_each(|&column| rules[column] = OutOfRange::Row(OUT_OF_VOCABULARY));
    Ok(dataset.with_ids(&rules)?)
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
