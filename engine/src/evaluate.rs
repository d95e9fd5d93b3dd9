//! Evaluates a trained model on a dataset.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rankine_reader::convert::RowFormat;
use rankine_reader::{Dataset, Part, Stop};

use crate::evaluation::{EvalMetrics, EvalSummary};
use crate::job::ThreadCount;
use crate::saved::SavedModelError;
use crate::source::{Artifact, ModelSource, OpenModel, SourceError};
use crate::training::{self, EvaluationOptions, Event, Observer, TrainError};

/// What a model is evaluated on.
#[derive(Debug, Clone, Copy)]
pub struct EvaluateOptions<'a> {
    /// The dataset folder; by default the dataset of the model's job. Its columns must be those that the model was
    /// trained on, with the same names, transforms and vocabularies.
    pub data: Option<&'a Path>,
    /// Raw files instead, with the records that the model was trained on.
    pub raw: &'a [PathBuf],
    /// The part of the dataset; by default the evaluation part. [`Part::Validation`] is what the model's job held out
    /// of the training part.
    pub part: Part,
    /// Number of CPU threads; by default that of the model's job.
    pub threads: Option<ThreadCount>,
    /// A request to stop: the evaluation ends after the current batch with
    /// [`TrainError::EvaluationStopped`].
    pub stop: Option<&'a Stop>,
}

impl Default for EvaluateOptions<'_> {
    fn default() -> Self {
        Self { data: None, raw: &[], part: Part::Eval, threads: None, stop: None }
    }
}

/// A model could not be evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// There is no such model, or the dataset cannot be opened.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The model's job does not suit the dataset, a prediction is not finite, or the evaluation was stopped.
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl From<SavedModelError> for EvaluateError {
    fn from(error: SavedModelError) -> Self {
        SourceError::from(error).into()
    }
}

impl From<rankine_reader::Error> for EvaluateError {
    fn from(error: rankine_reader::Error) -> Self {
        SourceError::from(error).into()
    }
}

/// Evaluates the model of a finished run, a checkpoint or an export, as `rankine eval` does.
///
/// The observer receives [`Event::Evaluating`] and [`Event::Evaluated`].
///
/// # Errors
/// [`EvaluateError`] if there is no model, or it does not suit the dataset.
pub fn evaluate(
    model: impl AsRef<Path>,
    options: &EvaluateOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<EvalSummary, EvaluateError> {
    let model = ModelSource::find(model.as_ref(), Artifact::Model)?.open()?;
    let mut job = model.job().clone();
    job.device.threads = options.threads.or(job.device.threads);
    let job = &job;
    let dataset = open_dataset(&model, options)?;
    model.check_columns(&dataset)?;
    let mut dataset = training::with_ids(job, dataset)?;
    if options.part == Part::Validation {
        dataset = dataset.with_validation(job.train.validation)?;
    }
    let batches =
        EvaluationOptions { batch_size: job.eval.batch_size.get() as usize, io: job.reader.io_options() };
    let (pool, _) = training::thread_pool(job)?;
    let began = Instant::now();
    let (heads, ids_out_of_range) = pool.install(|| {
        let mut weights = model.load()?;
        Ok::<_, EvaluateError>(training::evaluate(
            &mut weights,
            &dataset,
            options.part,
            &batches,
            options.stop,
            observer,
        )?)
    })?;
    let (step, seconds) = (model.steps(), began.elapsed().as_secs_f64());
    observer.observe(Event::Evaluated { step, part: options.part, set: None, seconds, heads: &heads });
    Ok(EvalSummary {
        metrics: EvalMetrics::from(heads.as_slice()),
        // The achievable AUC is that of the evaluation part.
        auc_achievable: dataset.auc_achievable().filter(|_| options.part == Part::Eval),
        seconds,
        ids_out_of_range,
        ..EvalSummary::default()
    })
}

/// Opens the dataset that the options name, or that of the model's job.
fn open_dataset(model: &OpenModel, options: &EvaluateOptions<'_>) -> Result<Dataset, SourceError> {
    if let Some(dir) = options.data {
        return Ok(Dataset::open(dir)?);
    }
    let job = model.job();
    match (&model.columns().format, &job.data.raw) {
        (Some(RowFormat::HugectrRaw(format)), _) if !options.raw.is_empty() => {
            Ok(Dataset::raw(format, &[], options.raw)?)
        }
        _ if !options.raw.is_empty() => Err(SourceError::NoRecords),
        (_, Some(raw)) => Ok(Dataset::raw(&raw.format()?, &raw.train, &raw.eval)?),
        (_, None) => Ok(Dataset::open(job.data.folder().unwrap_or(Path::new("")))?),
    }
}
