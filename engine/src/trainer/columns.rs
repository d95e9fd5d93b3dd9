//! The columns of pushed rows.

use rankine_job::Job;
use rankine_reader::{Columns, Dataset};

use super::TrainerError;
use crate::source::{Artifact, ModelSource};
use crate::training::{JobData, TrainError, find_data, with_features};

/// Opens the dataset of a job, or the columns without samples of a run, an export or a shape.
pub(super) fn dataset_of(job: &Job) -> Result<Dataset, TrainerError> {
    let folder = job.data.folder().filter(|dir| !Dataset::exists(dir));
    if let Some(dir) = folder
        && let Ok(model) = ModelSource::find(dir, Artifact::Model)
    {
        let model = model.open()?;
        return Ok(with_features(job, model.without_samples()?, Some(&model.columns().schema))?);
    }
    match (find_data(job)?, folder) {
        (JobData::Dataset(dataset), _) => Ok(*dataset),
        (JobData::Shape(schema), dir) => {
            let columns = Columns { schema: schema.stored(), format: None, vocabularies: Vec::new() };
            let dataset = columns.without_samples(dir.unwrap_or("".as_ref()));
            Ok(with_features(job, dataset.map_err(TrainError::from)?, None)?)
        }
        // The error says why there is no dataset.
        (JobData::Unknown, dir) => Ok(Dataset::open(dir.unwrap_or("".as_ref())).map_err(TrainError::from)?),
    }
}
