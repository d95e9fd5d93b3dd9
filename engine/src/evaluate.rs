//! Evaluates a trained model on datasets and on raw rows.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rankine_base::Stop;
use rankine_engine_cpu::CpuModel;
use rankine_job::{DataSource, Job, ThreadCount};
use rankine_model::evaluation::{EvalMetrics, EvalSummary, Evaluation, HeadMetrics, JudgedHead, RowCounts};
use rankine_reader::convert::{BadLimit, Progress, RawReader};
use rankine_reader::schema::VocabularyKind;
use rankine_reader::{Dataset, Part, Schema};
use rankine_saved::SavedModelError;

use crate::importance::{Importance, ImportanceOptions, Permutations};
use crate::raw_rows::{RowBatch, RowOptions, RowSink, RowsError, RowsRead, read_rows};
use crate::source::{Artifact, ModelSource, OpenModel, SourceError};
use crate::training::{self, EvaluationOptions, Event, IdCounts, Observer, TrainError, ids};

/// What a model is evaluated on.
#[derive(Debug, Clone, Copy)]
pub struct EvaluateOptions<'a> {
    /// The dataset folder; by default the dataset of the model's job. Its columns must be those that the model was
    /// trained on, with the same names, transforms and vocabularies.
    pub data: Option<&'a Path>,
    /// Raw files instead, in the format of the model's training data. All rows are evaluated, with the vocabularies and
    /// transforms of the model, and the results are those of a dataset with these rows. `-` is standard input.
    pub raw: &'a [PathBuf],
    /// How many unreadable rows of raw files may be skipped; by default the first one ends the evaluation.
    pub bad_limit: Option<BadLimit>,
    /// The part of the dataset; by default the evaluation part. [`Part::Validation`] is what the model's job held out
    /// of the training part.
    pub part: Part,
    /// Whether predictions are corrected by the share of negatives that the training data kept, and the samples
    /// weighted by the share that they were left with; see [`JudgedHead`]. By default they are.
    pub corrected: bool,
    /// Number of CPU threads; by default that of the model's job.
    pub threads: Option<ThreadCount>,
    /// A request to stop: the evaluation ends after the current batch with
    /// [`TrainError::EvaluationStopped`].
    pub stop: Option<&'a Stop>,
}

impl Default for EvaluateOptions<'_> {
    fn default() -> Self {
        Self {
            data: None,
            raw: &[],
            bad_limit: None,
            part: Part::Eval,
            corrected: true,
            threads: None,
            stop: None,
        }
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

impl From<rankine_base::Error> for EvaluateError {
    fn from(error: rankine_base::Error) -> Self {
        SourceError::from(error).into()
    }
}

/// Evaluates the model of a finished run, a checkpoint or an export, as `rankine eval` does.
///
/// The observer receives [`Event::Evaluating`] and [`Event::Evaluated`].
///
/// # Errors
/// [`EvaluateError`] if there is no model, or it does not suit the dataset or the rows.
pub fn evaluate(
    model: impl AsRef<Path>,
    options: &EvaluateOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<EvalSummary, EvaluateError> {
    let mut evaluations = Evaluations::open(model.as_ref(), *options)?;
    let set = evaluations.set(options.data)?;
    evaluations.evaluate(&set, observer)
}

/// A model that is being evaluated on one set of samples after another.
#[derive(Debug)]
pub struct Evaluations<'a> {
    model: OpenModel,
    job: Job,
    options: EvaluateOptions<'a>,
    /// The weights, once they are needed.
    weights: Option<CpuModel>,
}

/// Samples that suit the model.
#[derive(Debug)]
pub struct EvaluationSet(Samples);

#[derive(Debug)]
enum Samples {
    Dataset(Box<Dataset>),
    Rows,
}

impl<'a> Evaluations<'a> {
    /// Opens a model. The options say how it is evaluated.
    ///
    /// # Errors
    /// [`SourceError`] if there is no model.
    pub fn open(model: &Path, options: EvaluateOptions<'a>) -> Result<Self, SourceError> {
        let model = ModelSource::find(model, Artifact::Model)?.open()?;
        let mut job = model.job().clone();
        job.device.threads = options.threads.or(job.device.threads);
        Ok(Self { model, job, options, weights: None })
    }

    /// Opens what the model is evaluated on: the dataset `data`, or else what the options name.
    ///
    /// # Errors
    /// [`EvaluateError`] if it does not suit the model.
    pub fn set(&self, data: Option<&Path>) -> Result<EvaluationSet, EvaluateError> {
        let EvaluateOptions { raw, part, .. } = self.options;
        let dataset = match (data, raw, self.job.data.source()) {
            (Some(dir), ..) => self.job.data.open_beside(&[dir.to_owned()])?,
            (None, [_, ..], _) if self.model.columns().format.is_some() => {
                return Ok(EvaluationSet(Samples::Rows));
            }
            (None, [_, ..], _) => return Err(SourceError::NoRawRows.into()),
            (None, [], DataSource::Raw(raw)) => Dataset::raw(&raw.format()?, &raw.train, &raw.eval)?,
            (None, [], DataSource::Folders(folders)) => folders.open().map_err(|error| match error {
                rankine_base::Error::Unsuitable { path, what } => rankine_base::Error::Unsuitable {
                    path,
                    what: format!("{what}. If the dataset has moved, name it with --data"),
                },
                error => error,
            })?,
        };
        let dataset = self.model.with_columns(dataset)?;
        let mut dataset = training::with_ids(&self.job, dataset)?;
        if part == Part::Validation {
            dataset = dataset.with_validation(self.job.train.validation)?;
        }
        Ok(EvaluationSet(Samples::Dataset(Box::new(dataset))))
    }

    /// Evaluates the model on a set.
    ///
    /// # Errors
    /// [`EvaluateError`] if the model or the samples cannot be read, or a prediction is not finite.
    pub fn evaluate(
        &mut self,
        set: &EvaluationSet,
        observer: &mut dyn Observer,
    ) -> Result<EvalSummary, EvaluateError> {
        let (pool, _) = training::thread_pool(&self.job)?;
        let began = Instant::now();
        let part = self.options.part;
        let (heads, ids_out_of_range, rows) = pool.install(|| match &set.0 {
            Samples::Dataset(dataset) => self.evaluate_dataset(dataset, observer),
            Samples::Rows => self.evaluate_rows(observer),
        })?;
        let (step, seconds) = (self.model.steps(), began.elapsed().as_secs_f64());
        observer.observe(Event::Evaluated {
            step,
            part,
            set: None,
            samples: None,
            averaged: false,
            seconds,
            heads: &heads,
        });
        let auc_achievable = match &set.0 {
            // The achievable AUC is that of the evaluation part.
            Samples::Dataset(dataset) => dataset.auc_achievable().filter(|_| part == Part::Eval),
            Samples::Rows => None,
        };
        let mut summary = EvalSummary::new(EvalMetrics::from(heads.as_slice()), seconds);
        summary.auc_achievable = auc_achievable;
        summary.ids_out_of_range = ids_out_of_range;
        summary.rows = rows;
        Ok(summary)
    }

    /// Measures how much the predictions depend on each column: the values of a column are permuted among samples of
    /// the set, and the model is evaluated again. A bag moves whole, and with a number the categories that are computed
    /// from it. Takes as long as scoring the samples once more for each column, and the memory of the samples: 4 bytes
    /// per label, number and categorical column, and 8 per id. The observer receives [`Event::Evaluating`].
    ///
    /// # Errors
    /// As [`Evaluations::evaluate`]; [`SourceError`] for raw files, which are not a dataset.
    pub fn importance(
        &mut self,
        set: &EvaluationSet,
        options: ImportanceOptions,
        observer: &mut dyn Observer,
    ) -> Result<Importance, EvaluateError> {
        let Samples::Dataset(dataset) = &set.0 else {
            let what = "importance is measured on datasets: convert the files with --like";
            return Err(rankine_base::Error::setting("importance", what).into());
        };
        let (pool, _) = training::thread_pool(&self.job)?;
        let batch_size = self.job.eval.batch_size_on_cpu();
        let batches = EvaluationOptions { batch_size, io: self.job.reader.io_options() };
        let EvaluateOptions { part, stop, .. } = self.options;
        let heads = self.judged(dataset.schema());
        let model = weights(&mut self.weights, &self.model, &self.job)?;
        let mut permutations = Permutations { model, heads, dataset, batches, stop, observer };
        Ok(pool.install(|| permutations.importance(part, options))?)
    }

    /// Returns the heads, as they are judged on samples of these columns.
    fn judged(&self, evaluated_on: &Schema) -> Vec<JudgedHead> {
        let heads = &self.model.spec().heads;
        match self.options.corrected {
            true => JudgedHead::of_heads(heads, &self.model.columns().schema, evaluated_on),
            false => JudgedHead::of_heads_uncorrected(heads),
        }
    }

    fn evaluate_dataset(
        &mut self,
        dataset: &Dataset,
        observer: &mut dyn Observer,
    ) -> Result<Evaluated, EvaluateError> {
        let batch_size = self.job.eval.batch_size_on_cpu();
        let batches = EvaluationOptions { batch_size, io: self.job.reader.io_options() };
        let EvaluateOptions { part, stop, .. } = self.options;
        let judged = self.judged(dataset.schema());
        let weights = weights(&mut self.weights, &self.model, &self.job)?;
        let (heads, ids) = training::evaluate(weights, &judged, dataset, part, &batches, stop, observer)?;
        Ok((heads, ids, None))
    }

    fn evaluate_rows(&mut self, observer: &mut dyn Observer) -> Result<Evaluated, EvaluateError> {
        let EvaluateOptions { raw, bad_limit, stop, .. } = self.options;
        let columns = self.model.columns();
        let (schema, Some(format)) = (&columns.schema, &columns.format) else {
            return Err(SourceError::NoRawRows.into());
        };
        let encoder = &self.model.encoder()?;
        let ids = &self.model.ids()?;
        let threads = rankine_job::thread_count(self.job.device.threads);
        let reader = RawReader { format, schema, encoder, ids, labelled: true, keep: &[], threads };
        let batch_size = self.job.eval.batch_size_on_cpu();
        let options = RowOptions { batch_size, threads, bad_limit };
        let judged = self.judged(schema);
        let weights = weights(&mut self.weights, &self.model, &self.job)?;
        let bytes = BytesRead::default();
        let evaluation = Evaluation::new(&judged);
        let (logits, ids) = (Vec::new(), IdCounts::new());
        let mut judged =
            JudgedRows { weights, schema, evaluation, logits, ids, bytes: &bytes, stop, observer };
        let rows = read_rows(&reader, raw, &options, &bytes, &mut judged).map_err(evaluate_error)?;
        let JudgedRows { evaluation, ids, .. } = judged;
        Ok((evaluation.metrics(), ids, Some(row_counts(schema, rows))))
    }
}

type Evaluated = (Vec<HeadMetrics>, IdCounts, Option<RowCounts>);

/// Returns the weights of a model, which are read when they are first needed.
fn weights<'w>(
    weights: &'w mut Option<CpuModel>,
    model: &OpenModel,
    job: &Job,
) -> Result<&'w mut CpuModel, EvaluateError> {
    match weights {
        Some(weights) => Ok(weights),
        none => {
            training::check_scoring_memory(job, model.spec()).map_err(TrainError::from)?;
            Ok(none.insert(model.load()?))
        }
    }
}

fn row_counts(schema: &Schema, rows: RowsRead) -> RowCounts {
    let columns = schema.categorical.iter().zip(rows.unknown);
    let exact = columns.filter(|(column, _)| matches!(column.vocabulary, VocabularyKind::Exact { .. }));
    let unknown = exact.map(|(column, count)| (column.name.clone(), count)).collect();
    RowCounts::new(rows.read, rows.bad, unknown)
}

/// Bytes of raw files that were read.
#[derive(Debug, Default)]
struct BytesRead {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress for BytesRead {
    fn advance(&self, _: &'static str, bytes_done: u64, bytes_total: u64) {
        self.done.store(bytes_done, Ordering::Relaxed);
        self.total.store(bytes_total, Ordering::Relaxed);
    }
}

impl BytesRead {
    /// Estimates how many samples there are in all, given how many there are in the bytes read so far; 0 if that is
    /// unknown.
    fn estimate(&self, samples: u64) -> u64 {
        let (done, total) = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        if total == 0 {
            return 0;
        }
        let share = total as f64 / done.max(1) as f64;
        ((samples as f64 * share) as u64).max(samples)
    }
}

/// Raw rows that a model is evaluated on.
struct JudgedRows<'e> {
    weights: &'e mut CpuModel,
    schema: &'e Schema,
    evaluation: Evaluation,
    logits: Vec<f32>,
    ids: IdCounts,
    bytes: &'e BytesRead,
    stop: Option<&'e Stop>,
    observer: &'e mut dyn Observer,
}

impl RowSink for JudgedRows<'_> {
    type Error = TrainError;

    fn batch(&mut self, batch: RowBatch<'_>) -> Result<(), TrainError> {
        let RowBatch { samples, numbers, out_of_range, .. } = batch;
        ids::add(&mut self.ids, self.schema, out_of_range);
        self.logits.clear();
        self.weights.logits(samples, &mut self.logits);
        let heads = self.weights.spec().heads.len();
        if let Some(at) = self.logits.iter().position(|logit| logit.is_nan()) {
            let row = numbers[at / heads];
            return Err(TrainError::NotFinite(format!("the model's prediction of row {row} is not finite")));
        }
        self.evaluation.add(samples, &self.logits);
        let samples = self.evaluation.samples();
        let bytes_read = self.bytes.done.load(Ordering::Relaxed);
        let total = self.bytes.estimate(samples);
        self.observer.observe(Event::Evaluating { samples, total, bytes_read });
        match self.stop.and_then(Stop::asked) {
            Some(cause) => Err(TrainError::EvaluationStopped(cause)),
            None => Ok(()),
        }
    }
}

fn evaluate_error(error: RowsError<TrainError>) -> EvaluateError {
    match error {
        RowsError::BadRow(name) => SourceError::BadRow(name).into(),
        RowsError::Data(error) => error.into(),
        RowsError::Sink(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_samples_is_estimated_from_the_bytes() {
        let bytes = BytesRead::default();
        assert_eq!(bytes.estimate(0), 0);
        bytes.advance("reading", 100, 400);
        assert_eq!(bytes.estimate(30), 120);
        bytes.advance("reading", 400, 400);
        assert_eq!(bytes.estimate(90), 90);
        // The length of a pipe is unknown.
        bytes.advance("reading", 400, 0);
        assert_eq!(bytes.estimate(50), 0);
    }
}
