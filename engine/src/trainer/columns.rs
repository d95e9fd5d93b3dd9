//! The columns of pushed rows.

use rankine_reader::{Columns, Dataset};

use super::TrainerError;
use crate::job::Job;
use crate::source::{Artifact, ModelSource};
use crate::training::{JobData, find_data};

/// Opens the dataset of a job, or the columns without samples of a run, an export or a shape.
pub(super) fn dataset_of(job: &Job) -> Result<Dataset, TrainerError> {
    let folder = job.data.folder().filter(|dir| !Dataset::exists(dir));
    if let Some(dir) = folder
        && let Ok(model) = ModelSource::find(dir, Artifact::Model)
    {
        return Ok(model.open()?.without_samples()?);
    }
    match (find_data(job)?, folder) {
        (JobData::Dataset(dataset), _) => Ok(*dataset),
        (JobData::Shape(schema), dir) => {
            let columns = Columns { schema, format: None, vocabularies: Vec::new() };
            Ok(columns
                .without_samples(dir.unwrap_or("".as_ref()))
                .map_err(crate::training::TrainError::from)?)
        }
        // The error says why there is no dataset.
        (JobData::Unknown, dir) => {
            Ok(Dataset::open(dir.unwrap_or("".as_ref())).map_err(crate::training::TrainError::from)?)
        }
    }
}
