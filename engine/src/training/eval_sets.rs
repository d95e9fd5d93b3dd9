//! The further datasets that a job evaluates its model on (`[[eval.set]]`).

use rankine_job::{Conflict, EvalSet, Job};
use rankine_reader::{Columns, Dataset, Part};

use super::error::TrainError;
use super::ids::with_ids;

/// A dataset that the trained model is evaluated on, besides the evaluation part of its own.
#[derive(Debug)]
pub(super) struct NamedDataset {
    /// The name in the job.
    pub(super) name: String,
    pub(super) dataset: Dataset,
    /// The evaluation part, or the training part if there is no other.
    pub(super) part: Part,
}

/// Opens the datasets, and checks that they have the columns of the dataset that is trained on.
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
        let dataset = dataset.with_buckets_of(trained.schema());
        if let Some(what) = columns.difference(&dataset) {
            let dir = dataset.dir().display();
            return Err(conflict(format!(
                "the dataset {dir} does not fit the one that is trained on: {what}. Convert its rows with `rankine \
                 convert ... --like DATASET`"
            )));
        }
        let dataset = with_ids(job, dataset)?;
        let part = if dataset.samples(Part::Eval) > 0 { Part::Eval } else { Part::Train };
        Ok(NamedDataset { name: set.name.clone(), dataset, part })
    };
    job.eval.set.iter().enumerate().map(set).collect()
}
