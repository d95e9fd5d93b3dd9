//! Trains on batches that a program pushes, in its own process.
//!
//! A [`Trainer`] trains a job as [`crate::training::train`] does: on the CPU or on GPUs, on one or several ranks, with
//! the job's reports, evaluations and checkpoints, into a run folder. Only the samples come from the program, in its
//! order, and it decides when the training ends. A model that was trained on pushed batches has the bits of one that
//! was trained on the same batches of a dataset.
//!
//! ```no_run
//! use rankine_engine::trainer::{Features, Ids, Trainer, TrainerOptions, TrainingRows};
//! use rankine_job::Job;
//!
//! let job = Job::load("online.toml".as_ref(), &[] as &[&str])?;
//! let mut trainer = Trainer::start(&job, TrainerOptions::default(), ())?;
//! // Two rows of a dataset with one label, three dense columns and two categorical ones.
//! trainer.push(&TrainingRows {
//!     features: Features {
//!         rows: 2,
//!         dense: &[0.5, 1.0, 0.0, 0.25, 0.0, 2.0],
//!         categorical: &[Ids::Fixed(&[17, 4]), Ids::Bags { offsets: &[0, 2, 3], ids: &[8, 1, 8] }],
//!     },
//!     labels: &[&[1.0, 0.0]],
//!     weights: None,
//! })?;
//! let summary = trainer.finish()?;
//! println!("{:?}", summary.eval);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod columns;
mod error;

use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

#[cfg(feature = "arrow")]
use arrow_array::RecordBatch;
use crossbeam_channel::{Receiver, Sender, bounded};
use rankine_base::Stop;
use rankine_model::evaluation::EvalSummary;
use rankine_reader::convert::{Encoder, RawLabels, RawRows};
use rankine_reader::{Dataset, Samples, Schema, Split};

#[cfg(feature = "arrow")]
use crate::features::MappedRows;
use rankine_job::Job;

use crate::features::{RawEncoder, check_bags};
use crate::training::{
    Observer, Ready, Request, Requests, Start, Summary, TrainError, TrainOptions, train_pushed, with_ids,
};

#[cfg(feature = "arrow")]
pub use crate::features::ArrowRows;
pub use crate::features::{
    FeatureError, Features, Ids, RawColumn, RawColumnError, RawColumnValues, TrainingRows,
};
pub use error::TrainerError;

/// Batches that wait while a step computes; a push waits for room.
const QUEUE_BATCHES: usize = 4;

/// Where a trainer's run goes.
#[derive(Debug, Clone, Default)]
pub struct TrainerOptions {
    /// The run's folder; by default a fresh one below `runs`.
    pub run_dir: Option<PathBuf>,
    /// Where to start in that folder.
    pub start: Start,
    /// A request to stop: after the current step a checkpoint is saved, and the next push fails with
    /// [`TrainError::Interrupted`].
    pub stop: Option<Stop>,
}

/// Trains a job on the rows that are pushed to it: each push is a step.
///
/// The steps run on a thread of their own. Pushes return when their rows are checked, copied and queued; with
/// 4 batches queued they wait. A trainer that is dropped without [`Trainer::finish`] saves a checkpoint, from which
/// [`Start::Resume`] continues.
#[derive(Debug)]
pub struct Trainer {
    /// `None` once the training is over.
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<Result<Summary, TrainError>>>,
    /// The memory of samples that were trained on.
    recycled: Receiver<Samples>,
    dataset: Dataset,
    raw: RawEncoder,
    raw_rows: RawRows,
    batch_size: usize,
    max_steps: Option<u64>,
    steps: u64,
    samples: u64,
    run: PathBuf,
}

/// Refuses a job with settings that need a training part, or that end the training.
fn refuse_settings(job: &Job) -> Result<(), TrainerError> {
    const PROGRAM: &str = "the program that pushes rows decides when training ends";
    let train = &job.train;
    let settings = [
        (
            "eval.every",
            job.eval.every.is_some(),
            "rows are pushed, so there are no epochs: set eval.every_steps",
        ),
        ("eval.target_auc", job.eval.target_auc.is_some(), PROGRAM),
        ("train.early_stopping", train.early_stopping.is_some(), PROGRAM),
        (
            "train.validation",
            train.validation != Split::None,
            "rows are pushed, so there is no training part to hold samples out of",
        ),
    ];
    match settings.into_iter().find(|&(_, is_set, _)| is_set) {
        Some((key, _, why)) => Err(TrainerError::Setting { key, why }),
        None => Ok(()),
    }
}

impl Trainer {
    /// Starts a training. The columns of rows are those of the job's `data.dir`: a dataset, whose evaluation part is
    /// evaluated as the job says and whose training part is read only for quantiles of a `[[feature]]`; a run or an
    /// export, whose columns and vocabularies are used; or, if nothing is there, the columns of `data.shape`.
    /// `train.epochs` and `train.shuffle` have no effect. Returns when the model exists and, on a resume, is restored.
    ///
    /// # Errors
    /// [`TrainerError::Train`] and [`TrainerError::Source`]; [`TrainerError::Setting`].
    pub fn start(
        job: &Job,
        options: TrainerOptions,
        observer: impl Observer + 'static,
    ) -> Result<Self, TrainerError> {
        refuse_settings(job)?;
        let dataset = with_ids(job, columns::dataset_of(job)?)?;
        let encoder = |format| Ok::<_, TrainError>((format, Encoder::open(&dataset)?));
        let raw = RawEncoder::new(
            dataset.row_format().map(encoder).transpose()?,
            dataset.schema(),
            RawLabels::Needed,
        );
        let (requests, receiver) = bounded(QUEUE_BATCHES);
        let (recycle, recycled) = bounded(QUEUE_BATCHES + 2);
        let (ready, is_ready) = bounded(1);
        let thread =
            Training { job: job.clone(), dataset: dataset.clone(), options, observer: Box::new(observer) };
        let thread = thread.spawn(Requests { receiver, recycle, ready }).map_err(TrainerError::Thread)?;
        let mut trainer = Self {
            requests: Some(requests),
            thread: Some(thread),
            recycled,
            raw_rows: RawRows::new(dataset.schema()),
            dataset,
            raw,
            batch_size: job.train.batch_size.get() as usize,
            max_steps: job.train.max_steps.map(|steps| steps.get()),
            steps: 0,
            samples: 0,
            run: PathBuf::new(),
        };
        let Ok(Ready { steps, samples, run }) = is_ready.recv() else { return Err(trainer.failure()) };
        (trainer.steps, trainer.samples, trainer.run) = (steps, samples, run);
        Ok(trainer)
    }

    /// Returns the names of the raw columns that [`Trainer::push_raw`] reads, each once, labels and weight last; `None`
    /// if the dataset was generated.
    pub fn raw_columns(&self) -> Option<Vec<String>> {
        self.raw.columns()
    }

    /// Trains a step on mapped rows. Ids out of range follow the job's `guard.ids_out_of_range`. No rows are no step.
    ///
    /// # Errors
    /// [`TrainerError::Rows`] and [`TrainerError::TooManyRows`], after which nothing has changed;
    /// [`TrainerError::MaxSteps`]; [`TrainerError::Train`] if an earlier step failed.
    pub fn push(&mut self, rows: &TrainingRows<'_>) -> Result<(), TrainerError> {
        self.push_with(rows.features.rows, |trainer, samples| {
            rows.check(trainer.dataset.schema(), trainer.dataset.ids(), samples)
        })
    }

    /// Trains a step on raw rows, as the files that the dataset was converted from have them, with labels, and weights
    /// if the dataset has them: applies the transforms and vocabularies of the dataset. Categories that it does not
    /// have share a row.
    ///
    /// # Errors
    /// As [`Trainer::push`].
    pub fn push_raw(&mut self, rows: usize, columns: &[RawColumn<'_>]) -> Result<(), TrainerError> {
        self.push_with(rows, |Self { dataset, raw, raw_rows, .. }, samples| {
            raw.encode(dataset.schema(), dataset.ids(), (rows, columns), raw_rows, samples)
        })
    }

    /// Trains a step on raw rows of Arrow, with labels; see [`Trainer::push_raw`]. A record batch becomes rows by
    /// [`ArrowRows::try_from`].
    ///
    /// # Errors
    /// As [`Trainer::push`].
    #[cfg(feature = "arrow")]
    pub fn push_arrow(&mut self, rows: &ArrowRows) -> Result<(), TrainerError> {
        rows.check_positions(&self.raw.columns_of_sequences()).map_err(FeatureError::from)?;
        rows.with_columns(|columns| self.push_raw(rows.len(), columns))
    }

    /// Trains a step on the mapped rows of a record batch, whose columns have the names of the dataset's: labels,
    /// weights, numbers, and ids or lists of ids; see [`Trainer::push`]. A label that is null is missing.
    ///
    /// # Errors
    /// As [`Trainer::push`].
    #[cfg(feature = "arrow")]
    pub fn push_mapped_batch(&mut self, batch: &RecordBatch) -> Result<(), TrainerError> {
        let rows = MappedRows::new(batch, self.dataset.schema(), RawLabels::Needed)?;
        rows.with_training_rows(|rows| self.push(rows))
    }

    /// Trains a step on the samples that `fill` provides.
    fn push_with(
        &mut self,
        rows: usize,
        fill: impl FnOnce(&mut Self, &mut Samples) -> Result<(), FeatureError>,
    ) -> Result<(), TrainerError> {
        if rows > self.batch_size {
            return Err(TrainerError::TooManyRows { rows, batch_size: self.batch_size });
        }
        if self.max_steps.is_some_and(|most| self.steps >= most) {
            return Err(TrainerError::MaxSteps(self.steps));
        }
        let mut samples = self.recycled.try_recv().unwrap_or_else(|_| Samples::new(self.dataset.schema()));
        fill(self, &mut samples)?;
        check_bags(self.dataset.schema(), &samples)?;
        if rows == 0 {
            return Ok(());
        }
        let mut out_of_range = Vec::new();
        self.dataset.ids().apply(&mut samples, &mut out_of_range);
        self.send(Request::Step { samples, out_of_range })?;
        self.steps += 1;
        self.samples += rows as u64;
        Ok(())
    }

    /// Waits for all pushed steps, and evaluates the model on the dataset's evaluation part; `None` if it has none.
    ///
    /// # Errors
    /// [`TrainerError::Train`] if the training failed.
    pub fn evaluate(&mut self) -> Result<Option<EvalSummary>, TrainerError> {
        self.ask(Request::Evaluate)
    }

    /// Waits for all pushed steps, and saves a checkpoint, also if the job saves none. Returns its folder.
    ///
    /// # Errors
    /// [`TrainerError::Train`]; the training goes on if `checkpoint.on_failure` is `continue`.
    pub fn checkpoint(&mut self) -> Result<PathBuf, TrainerError> {
        Ok(self.ask(Request::Checkpoint)??)
    }

    /// Waits for all pushed steps, and saves the model as an export, which [`crate::ranker::Ranker`] loads. The
    /// training goes on. The folder must not exist.
    ///
    /// # Errors
    /// [`TrainerError::Train`]; the training goes on if the folder cannot be written.
    pub fn save(&mut self, dir: impl Into<PathBuf>) -> Result<(), TrainerError> {
        let dir = dir.into();
        Ok(self.ask(|reply| Request::Save(dir, reply))??)
    }

    /// Waits for all pushed steps, evaluates the model unless the last step was evaluated, and saves it in the run
    /// folder, with the summary.
    ///
    /// # Errors
    /// [`TrainerError::Train`]; [`TrainerError::NothingPushed`].
    pub fn finish(mut self) -> Result<Summary, TrainerError> {
        if self.steps == 0 {
            return Err(TrainerError::NothingPushed);
        }
        self.send(Request::Finish)?;
        self.requests = None;
        Ok(self.join().ok_or(TrainerError::Over)??)
    }

    /// Returns the number of steps that were pushed, those before a resume included.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the number of rows in those steps: after a resume, push the rows that follow them.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the run folder.
    pub fn run_dir(&self) -> &Path {
        &self.run
    }

    /// Returns the columns of rows.
    pub fn schema(&self) -> &Schema {
        self.dataset.schema()
    }

    /// Requests something that has a reply, and waits for it.
    fn ask<T>(&mut self, request: impl FnOnce(Sender<T>) -> Request) -> Result<T, TrainerError> {
        let (reply, answer) = bounded(1);
        self.send(request(reply))?;
        answer.recv().map_err(|_| self.failure())
    }

    fn send(&mut self, request: Request) -> Result<(), TrainerError> {
        let requests = self.requests.as_ref().ok_or(TrainerError::Over)?;
        requests.send(request).map_err(|_| self.failure())
    }

    /// Returns why the training ended by itself.
    fn failure(&mut self) -> TrainerError {
        self.requests = None;
        match self.join() {
            Some(Err(error)) => error.into(),
            // Only `finish` ends it otherwise.
            Some(Ok(_)) | None => TrainerError::Over,
        }
    }

    fn join(&mut self) -> Option<Result<Summary, TrainError>> {
        let joined = self.thread.take()?.join();
        Some(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.requests = None;
        // A panic of the training was reported by its thread.
        let joined = self.thread.take().and_then(|thread| thread.join().ok());
        if let Some(Err(error)) = joined.filter(|_| self.steps > 0) {
            tracing::warn!("a trainer was dropped before it had finished: {error}");
        }
    }
}

/// What the thread of a trainer has.
struct Training {
    job: Job,
    dataset: Dataset,
    options: TrainerOptions,
    observer: Box<dyn Observer>,
}

impl Training {
    fn spawn(mut self, requests: Requests) -> std::io::Result<JoinHandle<Result<Summary, TrainError>>> {
        thread::Builder::new().name("rankine-trainer".into()).spawn(move || {
            let TrainerOptions { run_dir, start, stop } = &self.options;
            let options = TrainOptions {
                run_dir: run_dir.as_deref(),
                start: *start,
                stop: stop.as_ref(),
                ..TrainOptions::default()
            };
            let trained = train_pushed(&self.job, &self.dataset, options, &requests, &mut *self.observer);
            trained.map(|(summary, _)| summary)
        })
    }
}
