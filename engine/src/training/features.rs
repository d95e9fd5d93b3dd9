//! The columns that a job makes of a dataset's numbers (`[[feature]]`).

use std::path::Path;

use rankine_job::{Buckets, Conflict, Job};
use rankine_reader::schema::{Categorical, VocabularyKind};
use rankine_reader::{Dataset, QuantileBuckets, Schema, quantile_boundaries};

use super::error::TrainError;
use crate::source::{Artifact, ModelSource};

/// Returns a dataset with the bucket columns of a job. They replace any bucket columns that the dataset already has.
///
/// Quantiles are computed from the training part, unless a trained model defines them, since the rows of its tables
/// belong to its buckets. That model is the one with the columns `known`, or else the one that training starts from.
///
/// # Errors
/// [`TrainError::Conflicts`] if the job does not suit the dataset; [`TrainError::Data`] if it cannot be read.
pub(crate) fn with_features(
    job: &Job,
    dataset: Dataset,
    known: Option<&Schema>,
) -> Result<Dataset, TrainError> {
    if job.features.is_empty() && dataset.schema().bucket_columns().is_empty() {
        return Ok(dataset);
    }
    let columns = job.bucket_columns(dataset.schema()).map_err(TrainError::Conflicts)?;
    let (numbers, mut columns): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let initial = initial_schema(job);
    let mut missing = Vec::new();
    for (place, column) in columns.iter_mut().enumerate() {
        let feature = numbers[place];
        let Buckets::Quantiles(buckets) = job.features[feature].buckets else { continue };
        match known.into_iter().chain(&initial).find_map(|schema| known_buckets(schema, column)) {
            Some(buckets) => column.vocabulary = buckets,
            None => missing.extend(column.buckets().map(|(of, _)| (place, of.to_owned(), buckets))),
        }
    }
    if let Some(&(first, ..)) = missing.first() {
        let wanted: Vec<_> = missing
            .iter()
            .map(|(_, column, buckets)| QuantileBuckets { column, buckets: *buckets })
            .collect();
        let found = quantile_boundaries(&dataset, &wanted).map_err(|error| match error {
            rankine_base::Error::Unsuitable { what: why, .. }
            | rankine_base::Error::Columns { what: why, .. } => {
                let what =
                    format!("quantiles are those of the training part, but {why}: list the boundaries");
                TrainError::Conflicts(vec![Conflict::new(
                    format!("feature.{}.buckets", numbers[first]),
                    what,
                )])
            }
            error => error.into(),
        })?;
        for ((place, of, _), boundaries) in missing.into_iter().zip(found) {
            columns[place].vocabulary = VocabularyKind::Buckets { of, boundaries };
        }
    }
    Ok(dataset.with_buckets(&columns)?)
}

/// Adds the columns of a job to those of a dataset without samples. Quantiles have no boundaries.
///
/// # Errors
/// [`TrainError::Conflicts`] if the job does not suit the columns.
pub(crate) fn with_shape(job: &Job, mut schema: Schema) -> Result<Schema, TrainError> {
    let columns = job.bucket_columns(&schema).map_err(TrainError::Conflicts)?;
    schema.categorical.extend(columns.into_iter().map(|(_, column)| column));
    Ok(schema)
}

/// Returns the columns of a run that is resumed, if there are quantiles to take from its checkpoints: another version
/// may have divided the same samples differently.
pub(super) fn schema_of_run(job: &Job, run: &Path) -> Option<Schema> {
    if !has_quantiles(job) {
        return None;
    }
    let run = ModelSource::Run(run.to_owned());
    let checkpoints = run.checkpoints().unwrap_or_default().into_iter().map(ModelSource::Checkpoint);
    let model = checkpoints.chain([run]).find_map(|source| source.open().ok())?;
    Some(model.columns().schema.clone())
}

/// The columns of the model that training starts from, if there are quantiles to take from it. Whether the model suits
/// the job is checked elsewhere.
fn initial_schema(job: &Job) -> Option<Schema> {
    let path = job.train.init_from.as_ref().filter(|_| has_quantiles(job))?;
    let model = ModelSource::find(path, Artifact::Model).ok()?.open().ok()?;
    Some(model.columns().schema.clone())
}

fn has_quantiles(job: &Job) -> bool {
    job.features.iter().any(|feature| matches!(feature.buckets, Buckets::Quantiles(_)))
}

/// The buckets that a trained model has for a column, if there are as many.
fn known_buckets(schema: &Schema, column: &Categorical) -> Option<VocabularyKind> {
    let known = schema.bucket_columns().iter().find(|known| known.name == column.name)?;
    let of = |column: &Categorical| column.buckets().map(|(of, _)| of.to_owned());
    (of(known) == of(column) && known.rows == column.rows).then(|| known.vocabulary.clone())
}
