//! A run from beginning to end: [`train`] prepares it, the [`TrainingLoop`] takes its steps, and `finish.rs` saves the
//! model and the summary. With `train.early_stopping.refit` a run is two trainings (`refit.rs`).

mod agreement;
mod average;
mod beside;
mod deciding;
mod early_stopping;
mod evaluation;
mod failure;
mod finish;
mod guard;
mod losses;
mod records;
mod refit;
mod requests;
mod start_clock;
mod state;
mod training_loop;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rankine_backend::Batches;
use rankine_base::Stop;
use rankine_checkpoint::{Disk, Files};
use rankine_job::Job;
use rankine_launch::ProcessGroup;
use rankine_model::translate;
use rankine_reader::Dataset;

use super::backend::{DeviceChoice, Measurements, check_build, thread_pool};
use super::context::{RunContext, SampleSource};
use super::data::open_together;
use super::error::TrainError;
use super::eval_sets;
use super::event::{Observer, RefitStage};
use super::features::schema_of_run;
use super::initial_model::InitialModel;
use super::power::MeteredGpus;
use super::processes::RankAssignment;
use super::resume::{self, StartingPoint, TrainingStart};
use super::run_dir::RunDir;
use super::start::Start;
use super::summary::Summary;
use start_clock::StartClock;
use training_loop::TrainingLoop;

pub use records::RunPhaseSeconds;
pub(crate) use refit::{TrainingPart, refit};
pub(crate) use requests::{Ready, Request, Requests};

/// Where a run goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrainOptions<'a> {
    /// The run's folder; by default a fresh one below `runs`.
    pub run_dir: Option<&'a Path>,
    /// The processes that train together, all of which call [`train`]; by default only this one.
    #[doc(hidden)]
    pub processes: Option<&'a ProcessGroup>,
    /// Where to start in that folder.
    pub start: Start,
    /// A request to stop the training.
    pub stop: Option<&'a Stop>,
    /// The file system that checkpoints are written with; by default the machine's own.
    #[doc(hidden)]
    pub files: Option<&'a Arc<dyn Files>>,
    /// The GPUs whose power is measured; by default those that train, by NVML.
    #[doc(hidden)]
    pub gpus: Option<&'a MeteredGpus>,
    /// Whether the dataset's evaluation part is left alone, as by the trials of a search, which must not know it.
    #[doc(hidden)]
    pub hides_eval: bool,
    /// The GPU of rank 0; the others follow. Trainings that run side by side take different ones.
    #[doc(hidden)]
    pub first_gpu: usize,
}

/// Trains a job from beginning to end: opens or generates the dataset, trains, evaluates, saves the model and the
/// summary. Returns the summary and the path of the run folder. Only the first of several processes writes, and has a
/// path.
///
/// # Errors
/// See [`TrainError`]. Whatever goes wrong, no model is left that was not completely trained and written. Unless
/// training diverged, an error leaves a checkpoint of the last completed step if it can: see [`TrainError::Ended`].
pub fn train(
    job: &Job,
    options: TrainOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<(Summary, Option<PathBuf>), TrainError> {
    if job.train.early_stopping.is_some_and(|stopping| stopping.refit) {
        return refit::train(job, options, observer);
    }
    train_once(job, options, None, observer)
}

/// Trains a job once; `refit` says which of the two trainings of a refit it is.
fn train_once(
    job: &Job,
    options: TrainOptions<'_>,
    refit: Option<RefitStage<'_>>,
    observer: &mut dyn Observer,
) -> Result<(Summary, Option<PathBuf>), TrainError> {
    let mut prepared = Prepared::of(job, options)?;
    let resumed = options.run_dir.filter(|_| options.start == Start::Resume);
    let known = resumed.and_then(|run| schema_of_run(&prepared.job, run));
    let dataset =
        open_together(&prepared.job, prepared.processes(), &prepared.stop, known.as_ref(), observer)?;
    let dataset = if options.hides_eval { dataset.without_eval() } else { dataset };
    prepared.clock.add_to(|start| &mut start.data_seconds);
    let samples = RunSamples { dataset: &dataset, source: SampleSource::Dataset, refit };
    prepared.run(samples, options, observer, |training, batches| {
        batches.map_or(Ok(()), |batches| training.run(batches))
    })
}

/// The same for samples that a program pushes, which have the columns of a dataset. `processes` is not among the
/// options: there is one.
///
/// # Errors
/// As [`train`].
pub(crate) fn train_pushed(
    job: &Job,
    dataset: &Dataset,
    options: TrainOptions<'_>,
    requests: &Requests,
    observer: &mut dyn Observer,
) -> Result<(Summary, Option<PathBuf>), TrainError> {
    let prepared = Prepared::of(job, options)?;
    let samples = RunSamples { dataset, source: SampleSource::Program, refit: None };
    prepared.run(samples, options, observer, |training, _| training.serve(requests))
}

/// What a run is trained on.
#[derive(Clone, Copy)]
struct RunSamples<'a> {
    dataset: &'a Dataset,
    source: SampleSource,
    /// Which of the two trainings of a refit it is.
    refit: Option<RefitStage<'a>>,
}

/// A run whose ranks are counted.
struct Prepared {
    began: SystemTime,
    clock: StartClock,
    job: Job,
    assignment: RankAssignment,
    stop: Stop,
}

impl Prepared {
    fn of(job: &Job, options: TrainOptions<'_>) -> Result<Self, TrainError> {
        let (began, clock) = (SystemTime::now(), StartClock::new());
        check_build(job)?;
        let alone = ProcessGroup::alone();
        let processes = options.processes.unwrap_or(&alone);
        if let (Some(path), true) = (options.run_dir, processes.is_first()) {
            RunDir::refuse_locked(path)?;
        }
        let (job, assignment) = RankAssignment::of(job, processes, options.first_gpu)?;
        Ok(Self { began, clock, job, assignment, stop: options.stop.cloned().unwrap_or_default() })
    }

    fn processes(&self) -> &ProcessGroup {
        &self.assignment.processes
    }

    /// Trains with the steps that `steps` takes.
    fn run(
        self,
        RunSamples { dataset, source, refit }: RunSamples<'_>,
        options: TrainOptions<'_>,
        observer: &mut dyn Observer,
        steps: impl FnOnce(&mut TrainingLoop<'_>, Option<Batches>) -> Result<(), TrainError> + Send,
    ) -> Result<(Summary, Option<PathBuf>), TrainError> {
        let Self { began, mut clock, job, assignment, stop } = self;
        let (job, stop) = (&job, &stop);
        let (topology, processes) = (assignment.topology, &assignment.processes);
        let model = &translate(job, dataset.schema()).map_err(TrainError::Conflicts)?;
        let eval_sets = &eval_sets::open(job, dataset)?;
        let files = &options.files.cloned().unwrap_or_else(|| Arc::new(Disk));
        let (pool, threads) = thread_pool(job)?;
        let context = RunContext {
            job,
            dataset,
            eval_sets,
            source,
            model,
            processes,
            topology,
            files,
            gpus: options.gpus,
            threads,
            stop,
            start: options.start,
            refit,
            began,
        };

        let initial = || InitialModel::of(job, dataset, model);
        // A resumed run needs the model that it started from only if it has no checkpoint.
        let opened = if options.start == Start::Resume { None } else { initial()? };
        let mut start = TrainingStart::default();
        if let Some(path) = options.run_dir.filter(|_| options.start != Start::New) {
            match pool.install(|| resume::begin(&context, path, observer))? {
                StartingPoint::Finished(summary) => {
                    return Ok((*summary, processes.is_first().then(|| path.to_owned())));
                }
                StartingPoint::Train(found) => start = found,
            }
        }
        if start.from.is_none() {
            start.initial = if options.start == Start::Resume { initial()? } else { opened };
        }
        let measured = match &start.from {
            Some(checkpoint) => Measurements::of(checkpoint, topology)?,
            None => Measurements::default(),
        };
        clock.add_to(|start| &mut start.data_seconds);
        let choice = DeviceChoice::of(job, &assignment, dataset, model, &measured)?;
        if start.run.is_none() && processes.is_first() {
            start.run = Some(RunDir::create(options.run_dir, job)?);
        }
        // The model is built and used inside the pool: rayon runs work on the threads of the pool that called it.
        pool.install(|| {
            clock.add_to(|start| &mut start.device_seconds);
            let begun = TrainingLoop::begin(context, choice, &measured, start, clock, observer);
            let (mut training, batches) = begun?;
            let finished = steps(&mut training, batches).and_then(|()| training.finish());
            let path = processes.is_first().then(|| training.folder.path().to_owned());
            finished.map(|summary| (summary, path)).map_err(|error| training.fail(error))
        })
    }
}
