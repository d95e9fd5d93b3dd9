//! Scores rows with a trained model, in the process of the caller.
//!
//! A [`Ranker`] loads a run, a checkpoint or an export. Any number of threads score with it at the same time, each its
//! own rows, and [`Ranker::swap`] and [`Ranker::apply`] replace the model while they do. Scores have the bits of
//! `rankine predict`.
//!
//! ```no_run
//! use rankine_engine::ranker::{Features, Ids, Ranker};
//!
//! let ranker = Ranker::load("runs/base")?;
//! // Two rows of a model with three dense columns and two categorical ones.
//! let features = Features {
//!     rows: 2,
//!     dense: &[0.5, 1.0, 0.0, 0.25, 0.0, 2.0],
//!     categorical: &[Ids::Fixed(&[17, 4]), Ids::Bags { offsets: &[0, 2, 3], ids: &[8, 1, 8] }],
//! };
//! let mut scores = [0.0; 2];
//! ranker.score(&features, &mut scores)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod delta;
mod error;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

#[cfg(feature = "arrow")]
use arrow_array::RecordBatch;
use rankine_base::sealed::Checksum;
use rankine_checkpoint::ModelIdentity;
use rankine_model::logit::Correction;
use rankine_reader::convert::{RawLabels, RawRows};
use rankine_reader::{IdRules, Samples, Schema};
use rayon::{ThreadPool, ThreadPoolBuilder};

#[cfg(feature = "arrow")]
use crate::features::MappedRows;
use rankine_engine_cpu::{ScoringBuffers, ScoringModel};

use crate::delta::columns_of;
use crate::features::RawEncoder;
use crate::source::{Artifact, ModelSource, SourceError};

#[cfg(feature = "arrow")]
pub use crate::features::{ArrowColumn, ArrowRows};
pub use crate::features::{FeatureError, Features, Ids, RawColumn, RawColumnError, RawColumnValues};
pub use error::{ApplyError, ScoreError, SwapError};

/// Rows that can be scored at a time.
pub const ROWS_MAX: usize = 65536;

/// A model that scores rows, shared by threads.
#[derive(Debug)]
pub struct Ranker {
    model: RwLock<Arc<LoadedModel>>,
    /// Held while a model is replaced, so that none is based on one that is being replaced.
    replacing: Mutex<()>,
    /// Threads that help the calling one.
    helpers: Option<ThreadPool>,
}

/// A model, and all that scoring with it needs.
#[derive(Debug)]
struct LoadedModel {
    weights: ScoringModel,
    /// One per head.
    corrections: Vec<Correction>,
    schema: Schema,
    /// What to do with ids that are not rows of their tables, by the job.
    ids: IdRules,
    raw: Arc<RawEncoder>,
    identity: ModelIdentity,
    /// What identifies the columns.
    columns: Checksum,
    /// Those that no thread is using.
    buffers: Arc<Mutex<Vec<Buffers>>>,
}

/// The memory of a thread that scores.
#[derive(Debug)]
struct Buffers {
    raw: RawRows,
    samples: Samples,
    /// Ids out of range, one number per categorical column.
    out_of_range: Vec<u64>,
    logits: Vec<f32>,
    scoring: ScoringBuffers,
}

impl Ranker {
    /// Loads the model of a finished run, of a checkpoint, or of an export, and checks its files against their
    /// checksums. Tables in fp32 of a run or an export are mapped into memory: processes that load the same model share
    /// them.
    ///
    /// # Errors
    /// [`SourceError`] if there is no model, it is damaged, or another version of Rankine wrote it.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        let model = RwLock::new(Arc::new(LoadedModel::load(path.as_ref())?));
        Ok(Self { model, replacing: Mutex::default(), helpers: None })
    }

    /// Divides calls with more than 64 rows among this many threads: the calling one and others, which all calls
    /// share. Scores do not change. Without this, a call is scored on the thread that makes it, which is best if there
    /// are as many calls at a time as processors.
    ///
    /// # Errors
    /// If `threads` is 0, or the system refuses to start them.
    pub fn with_threads(self, threads: usize) -> io::Result<Self> {
        let others = threads.checked_sub(1).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a ranker cannot score on 0 threads: use at least 1")
        })?;
        let pool =
            || ThreadPoolBuilder::new().num_threads(others).thread_name(|n| format!("rankine-score-{n}"));
        let helpers = (others > 0).then(|| pool().build()).transpose();
        let helpers = helpers.map_err(|error| {
            io::Error::other(format!("cannot start {threads} threads that score: {error}"))
        })?;
        Ok(Self { helpers, ..self })
    }

    /// Scores mapped features: writes the probability of each label for each row, `[rows, heads]`, to `scores`. Ids out
    /// of range follow the policy of the job that trained the model. Once as many rows were scored on as many threads,
    /// nothing is allocated, except to divide a call among several threads.
    ///
    /// # Errors
    /// [`ScoreError`] if shapes do not match the model, or numbers are not finite; `scores` is then unchanged.
    pub fn score(&self, features: &Features<'_>, scores: &mut [f64]) -> Result<(), ScoreError> {
        self.model().score_mapped(features, self.helpers(), scores)
    }

    /// Scores raw rows, as the files that the model's dataset was converted from have them: applies the transforms and
    /// vocabularies of training. Categories that training did not see share a row, as in `rankine predict`. `scores` is
    /// `[rows, heads]`.
    ///
    /// # Errors
    /// [`ScoreError`] if a column is missing, unknown or of another type, a value is not one of its column, or numbers
    /// are too large; `scores` is then unchanged.
    pub fn score_raw(
        &self,
        rows: usize,
        columns: &[RawColumn<'_>],
        scores: &mut [f64],
    ) -> Result<(), ScoreError> {
        self.model().score_raw((rows, columns), self.helpers(), scores)
    }

    /// Scores raw rows of Arrow, of which there may be any number, in one or several pieces; see [`Ranker::score_raw`].
    /// A record batch becomes rows by [`ArrowRows::try_from`]. One model scores all of them, also during a
    /// [`Ranker::swap`].
    ///
    /// # Errors
    /// [`ScoreError`], as for [`Ranker::score_raw`], with rows that count from the first one of the first piece. The
    /// scores of earlier rows may then be written.
    #[cfg(feature = "arrow")]
    pub fn score_arrow(&self, pieces: &[ArrowRows], scores: &mut [f64]) -> Result<(), ScoreError> {
        let model = self.model();
        let (rows, heads) = (pieces.iter().map(ArrowRows::len).sum(), model.weights.spec().heads.len());
        if scores.len() != rows * heads {
            return Err(ScoreError::ScoresShape { rows, heads, found: scores.len() });
        }
        let mut before = 0;
        let sequences = model.raw.columns_of_sequences();
        for piece in pieces {
            let positions = piece.check_positions(&sequences).map_err(FeatureError::from);
            positions.map_err(|error| ScoreError::from(error).after_rows(before))?;
            // At least once, so that columns are checked.
            for first in (0..piece.len().max(1)).step_by(ROWS_MAX) {
                let range = first..(first + ROWS_MAX).min(piece.len());
                let scores = &mut scores[(before + range.start) * heads..(before + range.end) * heads];
                let scored = piece
                    .slice(range.clone())
                    .with_columns(|columns| model.score_raw((range.len(), columns), self.helpers(), scores));
                scored.map_err(|error| error.after_rows(before + first))?;
            }
            before += piece.len();
        }
        Ok(())
    }

    /// Scores the mapped rows of a record batch, whose columns have the names of the model's: numbers, and ids or lists
    /// of ids; see [`Ranker::score`]. Columns of labels and weights may be there, and are not read.
    ///
    /// # Errors
    /// [`ScoreError`]; `scores` is then unchanged.
    #[cfg(feature = "arrow")]
    pub fn score_mapped_batch(&self, batch: &RecordBatch, scores: &mut [f64]) -> Result<(), ScoreError> {
        let model = self.model();
        let rows = MappedRows::new(batch, &model.schema, RawLabels::Ignored)?;
        rows.with_features(|features| model.score_mapped(features, self.helpers(), scores))
    }

    /// Replaces the model by another one with the same columns and labels. Loads it before anything changes; rows that
    /// are being scored meanwhile are scored with the old model as a whole.
    ///
    /// # Errors
    /// [`SwapError`]; the old model then goes on scoring.
    pub fn swap(&self, path: impl AsRef<Path>) -> Result<(), SwapError> {
        let new = LoadedModel::load(path.as_ref())?;
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let (expected, found) = (self.model().columns(), new.columns());
        if expected != found {
            return Err(SwapError::Columns { expected, found });
        }
        self.replace(new);
        Ok(())
    }

    /// Returns the labels that are predicted, one per head, in the order of scores.
    pub fn labels(&self) -> Vec<String> {
        self.model().weights.spec().heads.iter().map(|head| head.label.clone()).collect()
    }

    /// Returns the columns of the model.
    pub fn schema(&self) -> Schema {
        self.model().schema.clone()
    }

    /// Returns the names of the raw columns that [`Ranker::score_raw`] reads, each once, the dense ones first; `None`
    /// if the model was trained on generated data.
    pub fn raw_columns(&self) -> Option<Vec<String>> {
        self.model().raw.columns()
    }

    /// Returns the number of steps that the model was trained for.
    pub fn steps(&self) -> u64 {
        self.model().identity.steps
    }

    fn helpers(&self) -> Option<&ThreadPool> {
        self.helpers.as_ref()
    }

    fn replace(&self, new: LoadedModel) {
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
    }

    fn model(&self) -> Arc<LoadedModel> {
        Arc::clone(&self.model.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LoadedModel {
    fn load(path: &Path) -> Result<Self, SourceError> {
        let opened = ModelSource::find(path, Artifact::Model)?.open()?;
        let schema = opened.columns().schema.clone();
        let ids = opened.ids()?;
        let format = opened.columns().format.clone();
        let source = format.map(|format| Ok::<_, SourceError>((format, opened.encoder()?))).transpose()?;
        let raw = Arc::new(RawEncoder::new(source, &schema, RawLabels::Ignored));
        let (model, columns) = (opened.load()?, columns_of(&opened));
        let identity = opened.identity(&model)?;
        let weights = ScoringModel::new(model);
        let corrections = Correction::of_heads(&weights.spec().heads, &schema);
        Ok(Self { weights, corrections, schema, ids, raw, identity, columns, buffers: Arc::default() })
    }

    /// Returns the names of labels, dense columns and the categorical columns of rows.
    fn columns(&self) -> Vec<String> {
        let labels = self.weights.spec().heads.iter().map(|head| &head.label);
        let dense = self.schema.dense.iter().map(|column| &column.name);
        let categorical = self.schema.stored_categorical().iter().map(|column| &column.name);
        labels.chain(dense).chain(categorical).cloned().collect()
    }

    fn score_mapped(
        &self,
        features: &Features<'_>,
        helpers: Option<&ThreadPool>,
        scores: &mut [f64],
    ) -> Result<(), ScoreError> {
        self.score_with(features.rows, helpers, scores, |model, Buffers { samples, .. }| {
            features.check(&model.schema, &model.ids, samples)
        })
    }

    fn score_raw(
        &self,
        (rows, columns): (usize, &[RawColumn<'_>]),
        helpers: Option<&ThreadPool>,
        scores: &mut [f64],
    ) -> Result<(), ScoreError> {
        self.score_with(rows, helpers, scores, |model, Buffers { raw, samples, .. }| {
            model.raw.encode(&model.schema, &model.ids, (rows, columns), raw, samples)
        })
    }

    /// Scores the samples that `fill` puts into the buffers.
    fn score_with(
        &self,
        rows: usize,
        helpers: Option<&ThreadPool>,
        scores: &mut [f64],
        fill: impl FnOnce(&Self, &mut Buffers) -> Result<(), FeatureError>,
    ) -> Result<(), ScoreError> {
        if rows > ROWS_MAX {
            return Err(ScoreError::TooManyRows { rows });
        }
        let mut buffers = self.take_buffers();
        let filled = fill(self, &mut buffers).map_err(ScoreError::from);
        let scored = filled.and_then(|()| self.score(&mut buffers, helpers, scores));
        self.put_back(buffers);
        scored
    }

    fn take_buffers(&self) -> Buffers {
        let spare = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Buffers {
            raw: RawRows::new(&self.schema),
            samples: Samples::new(&self.schema),
            out_of_range: Vec::new(),
            logits: Vec::new(),
            scoring: ScoringBuffers::default(),
        })
    }

    fn put_back(&self, buffers: Buffers) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
    }

    /// Scores the samples in the buffers.
    fn score(
        &self,
        buffers: &mut Buffers,
        helpers: Option<&ThreadPool>,
        scores: &mut [f64],
    ) -> Result<(), ScoreError> {
        let Buffers { samples, out_of_range, logits, scoring, .. } = buffers;
        self.ids.apply(samples, out_of_range);
        let (rows, heads) = (samples.len, self.weights.spec().heads.len());
        if scores.len() != rows * heads {
            return Err(ScoreError::ScoresShape { rows, heads, found: scores.len() });
        }
        logits.resize(rows * heads, 0.0);
        self.weights.logits(samples, helpers, scoring, logits);
        if let Some(at) = logits.iter().position(|logit| logit.is_nan()) {
            return Err(ScoreError::NotANumber { row: at / heads });
        }
        for (scores, logits) in scores.chunks_exact_mut(heads).zip(logits.chunks_exact(heads)) {
            for ((score, &logit), correction) in scores.iter_mut().zip(logits).zip(&self.corrections) {
                *score = correction.probability(logit);
            }
        }
        Ok(())
    }
}
