//! The further datasets that a job evaluates its model on (`[[eval.set]]`).

use rankine_job::{Conflict, EvalSet, Job};
use rankine_reader::merge::with_tables_of;
use rankine_reader::{Columns, Dataset, Part};

use super::error::TrainError;
use super::ids::with_ids_of_grown;

/// A dataset that the trained model is evaluated on, besides the evaluation part of its own.
#[derive(Debug)]
pub(super) struct NamedDataset {
    /// The name in the job.
    pub(super) name: String,
    pub(super) dataset: Dataset,
    /// The evaluation part, or the training part if there is no other.
    pub(super) part: Part,
}

/// Opens the datasets, and checks that they have the columns of the dataset that is trained on. Vocabularies may be
/// larger or smaller if one grew from the other; categories that the training does not know are unknown.
///
/// # Errors
/// [`TrainError::Conflicts`] if one cannot be opened or has other columns.
pub(super) fn open(job: &Job, trained: &Dataset) -> Result<Vec<NamedDataset>, TrainError> {
    let columns = Columns::of(trained);
    let set = |(number, set): (usize, &EvalSet)| {
        let conflict = |what: String| {
            TrainError::Conflicts(vec![Conflict::new(format!("eval.set.{number}.data"), what)])
        };
        let dataset = job.data.open_beside(set.data.paths()).map_err(|error| conflict(error.to_string()))?;
        let mut dataset = dataset.with_buckets_of(trained.schema());
        let mut grown = Vec::new();
        if let Some(what) = columns.difference(&dataset) {
            (dataset, grown) = with_tables_of(&dataset, trained)?.ok_or_else(|| {
                conflict(format!(
                    "the dataset {} does not fit the one that is trained on: {what}. Convert its rows with `rankine \
                     convert ... --like DATASET`",
                    dataset.dir().display()
                ))
            })?;
        }
        let dataset = with_ids_of_grown(job, dataset, &grown)?;
        let part = if dataset.samples(Part::Eval) > 0 { Part::Eval } else { Part::Train };
        Ok(NamedDataset { name: set.name.clone(), dataset, part })
    };
    job.eval.set.iter().enumerate().map(set).collect()
}
