//! The columns that a job makes of a dataset's numbers (`[[feature]]`).

use rankine_job::{Buckets, Conflict, Feature, Job};
use rankine_reader::schema::VocabularyKind;
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
    let mut columns = job.bucket_columns(dataset.schema()).map_err(TrainError::Conflicts)?;
    let initial = initial_schema(job);
    let mut missing = Vec::new();
    for (number, (feature, column)) in job.features.iter().zip(&mut columns).enumerate() {
        let Buckets::Quantiles(buckets) = feature.buckets else { continue };
        let known =
            known.into_iter().chain(&initial).find_map(|schema| known_buckets(schema, feature, buckets));
        match known {
            Some(buckets) => column.vocabulary = buckets,
            None => missing.push((number, QuantileBuckets { column: &feature.column, buckets })),
        }
    }
    if let Some(&(number, _)) = missing.first() {
        let wanted: Vec<_> = missing.iter().map(|&(_, wanted)| wanted).collect();
        let found = quantile_boundaries(&dataset, &wanted).map_err(|error| match error {
            rankine_base::Error::Unsuitable { what: why, .. }
            | rankine_base::Error::Columns { what: why, .. } => {
                let what =
                    format!("quantiles are those of the training part, but {why}: list the boundaries");
                TrainError::Conflicts(vec![Conflict::new(format!("feature.{number}.buckets"), what)])
            }
            error => error.into(),
        })?;
        for ((number, wanted), boundaries) in missing.into_iter().zip(found) {
            let of = wanted.column.to_owned();
            columns[number].vocabulary = VocabularyKind::Buckets { of, boundaries };
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
    schema.categorical.extend(columns);
    Ok(schema)
}

/// The columns of the model that training starts from, if there are quantiles to take from it. Whether the model suits
/// the job is checked elsewhere.
fn initial_schema(job: &Job) -> Option<Schema> {
    let has_quantiles = job.features.iter().any(|feature| matches!(feature.buckets, Buckets::Quantiles(_)));
    let path = job.train.init_from.as_ref().filter(|_| has_quantiles)?;
    let model = ModelSource::find(path, Artifact::Model).ok()?.open().ok()?;
    Some(model.columns().schema.clone())
}

/// The buckets that a trained model has for a feature, if there are as many.
fn known_buckets(schema: &Schema, feature: &Feature, buckets: u32) -> Option<VocabularyKind> {
    let column = schema.bucket_columns().iter().find(|column| column.name == feature.name())?;
    let (of, _) = column.buckets()?;
    (of == feature.column && column.rows == u64::from(buckets)).then(|| column.vocabulary.clone())
}
