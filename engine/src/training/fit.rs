//! The loop: batches in, steps, reports, evaluations, and the run's files.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rankine_embedding::Topology;
use rankine_reader::io::IoOptions;
use rankine_reader::stream::{Order, Position, StreamOptions};
use rankine_reader::{Dataset, Part};
use serde::Serialize;

use super::alive::alive;
use super::assignment::RankAssignment;
use super::backend::{Backend, Batches, Choice};
use super::checkpoints::Checkpoints;
use super::contents::Identity;
use super::data::open_together;
use super::evaluate::{EvaluationOptions, evaluate};
use super::guard::Guard;
use super::identity::Wanted;
use super::ids;
use super::losses::Losses;
use super::recorded::Recorded;
use super::resume::{self, Begin, Folder};
use super::summary::{
    DataSummary, DeviceSummary, ExchangeSummary, ModelSummary, Stopped, Summary, TrainSummary,
};
use super::translate::translate;
use super::{Event, IdCounts, Observer, Progress, RunDir, Stop, StopCause, TrainError};
use crate::checkpoint::{Disk, Files, TrainState};
use crate::cpu::RankTraffic;
use crate::cuda;
use crate::evaluation::{EvalMetrics, EvalSummary};
use crate::job::{DeviceKind, Job};
use crate::launch::{Phase, ProcessGroup, Stage};
use crate::saved::{self, Columns, ModelMetadata};
use crate::system;

/// Unpacked batches that wait while a step computes: enough to hide a slow read, few enough to stay small.
const PREFETCH_BATCHES: usize = 4;

/// Where a run goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrainOptions<'a> {
    /// The run's folder; by default a fresh one below `runs`.
    pub run_dir: Option<&'a Path>,
    /// The processes that train together, all of which call [`train`]; by default only this one.
    pub processes: Option<&'a ProcessGroup>,
    /// Where to start in that folder.
    pub start: Start,
    /// A request to stop the training.
    pub stop: Option<&'a Stop>,
    /// The file system that checkpoints are written with; by default the machine's own.
    pub files: Option<&'a Arc<dyn Files>>,
}

/// Where a training starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Start {
    /// At step 0, in a new folder.
    #[default]
    New,
    /// In an existing or new run folder, from its latest good checkpoint, or at step 0 if there is none. If the run
    /// is finished and is what the job asks for, its summary is returned and nothing is done.
    Resume,
    /// In an existing or new run folder, at step 0. Its contents are moved to a folder `before-restart` in it.
    Restart,
}

/// Trains a job from beginning to end: opens or generates the dataset, trains, evaluates, saves the model and the
/// summary. Returns the summary and the path of the run folder. Only the first of several processes writes, and has a
/// path.
///
/// # Errors
/// See [`TrainError`]. Whatever goes wrong, no model is left that was not completely trained and written.
pub fn train(
    job: &Job,
    options: TrainOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<(Summary, Option<PathBuf>), TrainError> {
    check_build(job)?;
    let alone = ProcessGroup::alone();
    let processes = options.processes.unwrap_or(&alone);
    let resumed = options.run_dir.filter(|_| options.start != Start::New);
    if let (Some(path), true) = (options.run_dir, processes.is_first()) {
        RunDir::refuse_locked(path)?;
    }
    let (job, assignment) = RankAssignment::of(job, processes)?;
    let (job, topology) = (&job, assignment.topology);
    let stop = options.stop.cloned().unwrap_or_default();
    let dataset = open_together(job, processes, &stop, observer)?;
    let model = translate(job, dataset.schema()).map_err(TrainError::Conflicts)?;
    let files = options.files.cloned().unwrap_or_else(|| Arc::new(Disk));
    let (pool, threads) = thread_pool(job)?;
    let io = job.reader.io_options();
    let wanted = Wanted { job, dataset: &dataset, model: &model };
    let (mut run, mut from, mut identity) = (None, None, None);
    if let Some(path) = resumed {
        let folder = Folder {
            path,
            restart: options.start == Start::Restart,
            files: &files,
            processes,
            threads,
            stop: &stop,
        };
        match pool.install(|| resume::begin(folder, wanted, observer))? {
            Begin::Finished(summary) => {
                return Ok((*summary, processes.is_first().then(|| path.to_owned())));
            }
            Begin::Train { run: opened, from: found, identity: known } => {
                (run, from, identity) = (opened, found, known);
            }
        }
    }
    let recorded =
        from.as_ref().map_or(Ok(Recorded::default()), |checkpoint| Recorded::of(checkpoint, topology))?;
    let choice = Choice::of(job, &assignment, &dataset, &model, &recorded)?;
    if run.is_none() && processes.is_first() {
        run = Some(RunDir::create(options.run_dir, job)?);
    }
    let machine = choice.machine().map(ToOwned::to_owned);
    if let (Some(run), Some(machine)) = (&run, &machine) {
        run.write_machine(machine)?;
    }
    // Built and used inside the pool: rayon runs work on the threads of the pool that called it.
    pool.install(|| {
        let (mut learner, device) = choice.initialize(job, &dataset, &model, threads, &recorded)?;
        let tuning = learner.tuning()?;
        if let (Some(run), Some(record)) = (&run, &tuning) {
            run.write_tuning(record)?;
        }
        let from = from.map(|checkpoint| {
            alive(processes, checkpoint.manifest().train.step, || learner.restore(&checkpoint))?;
            Ok::<_, TrainError>(checkpoint.manifest().train.clone())
        });
        let train = from.transpose()?.unwrap_or_default();
        let stream = StreamOptions { start: train.position, ..train_options(job, io) };
        let batches = learner.open(dataset.part(Part::Train)?, &stream)?;
        // All processes write to the folder of the first.
        let path = run.as_ref().map_or_else(Vec::new, |run| run.path().as_os_str().as_bytes().to_vec());
        let path = PathBuf::from(OsString::from_vec(processes.of_first("the run's folder", &path)?));
        let mut identity = identity.map_or_else(|| Identity::of(wanted), |known| Ok(*known))?;
        // The first process writes for all.
        if processes.is_first() {
            identity.read();
        }
        let mut checkpoints = Checkpoints::new(
            (job, &dataset, topology),
            identity,
            Recorded { tuning, machine },
            (files, RunDir::checkpoints_path(&path)),
            processes,
            train.step,
        )?;
        checkpoints.prepare(&*learner)?;
        let dataset = &dataset;
        let fit = Fit {
            job,
            dataset,
            processes,
            learner,
            device,
            run,
            path,
            checkpoints,
            stop,
            observer,
            threads,
            topology,
            io,
        };
        fit.run(batches, train)
    })
}

/// Checks that this build has the device that a job asks for.
///
/// # Errors
/// [`TrainError::Device`].
pub(super) fn check_build(job: &Job) -> Result<(), TrainError> {
    if job.device.kind == DeviceKind::Cuda && !cuda::IN_BUILD {
        return Err(TrainError::Device(
            "device.kind is \"cuda\", but this build of Rankine trains only on the CPU: set it to \"auto\" or \"cpu\""
                .into(),
        ));
    }
    Ok(())
}

/// The batches that a job trains on.
pub(super) fn train_options(job: &Job, io: IoOptions) -> StreamOptions {
    let train = &job.train;
    let order = if train.shuffle {
        Order::Shuffled { seed: job.seed, window_blocks: train.shuffle_window_blocks.get() }
    } else {
        Order::File
    };
    StreamOptions {
        batch_size: train.batch_size.get() as usize,
        epochs: Some(train.epochs.get()),
        order,
        start: Position::default(),
        io,
        prefetch: PREFETCH_BATCHES,
    }
}

/// The thread pool of a job, and its size.
///
/// # Errors
/// [`TrainError::Device`] if the operating system refuses to start the threads.
pub fn thread_pool(job: &Job) -> Result<(rayon::ThreadPool, usize), TrainError> {
    let threads = system::thread_count(job.device.threads).get();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|number| format!("rankine-{number}"));
    let pool = pool
        .build()
        .map_err(|error| TrainError::Device(format!("cannot start {threads} threads: {error}")))?;
    Ok((pool, threads))
}

/// A run in progress.
struct Fit<'a> {
    job: &'a Job,
    dataset: &'a Dataset,
    processes: &'a ProcessGroup,
    learner: Box<dyn Backend>,
    /// The device, in words.
    device: String,
    /// Of the first process.
    run: Option<RunDir>,
    /// Its folder.
    path: PathBuf,
    checkpoints: Checkpoints,
    stop: Stop,
    observer: &'a mut dyn Observer,
    threads: usize,
    topology: Topology,
    io: IoOptions,
}

/// Work done so far and its time, evaluations excluded.
#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    samples: u64,
    /// Ids outside their tables.
    ids: IdCounts,
    time: Duration,
    waited: Duration,
}

/// Number of steps after which several processes agree again on whether to stop or to save.
const STEPS_TO_AGREE: u64 = 16;

/// What to do after a step.
#[derive(Debug, Clone, Copy, Default)]
struct Agreed {
    /// Why to stop, if a stop was requested.
    stop: Option<StopCause>,
    /// Whether a checkpoint is due by time.
    saves: bool,
    /// Whether the checkpoint in progress is written.
    written: bool,
}

impl Agreed {
    fn to_bytes(self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&StopCause::to_number(self.stop).to_le_bytes());
        (bytes[8], bytes[9]) = (self.saves.into(), self.written.into());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let split = bytes.split_first_chunk();
        let (stop, rest) = split.map_or((0, bytes), |(stop, rest)| (u64::from_le_bytes(*stop), rest));
        let is_set = |at: usize| rest.get(at) == Some(&1);
        Self { stop: StopCause::of_number(stop), saves: is_set(0), written: is_set(1) }
    }
}

/// One line of `metrics.jsonl` for a report.
#[derive(Serialize)]
struct TrainRecord<'a> {
    #[serde(flatten)]
    progress: Progress,
    /// So far, by column.
    #[serde(skip_serializing_if = "IdCounts::is_empty")]
    ids_out_of_range: &'a IdCounts,
}

/// One line of `metrics.jsonl` for an evaluation.
#[derive(Serialize)]
struct EvalRecord<'a> {
    step: u64,
    seconds: f64,
    #[serde(flatten)]
    metrics: &'a EvalMetrics,
    /// Of its samples, by column.
    #[serde(skip_serializing_if = "IdCounts::is_empty")]
    ids_out_of_range: &'a IdCounts,
}

impl Fit<'_> {
    /// Trains from a checkpoint's position, or from the beginning.
    fn run(
        mut self,
        mut batches: Batches,
        from: TrainState,
    ) -> Result<(Summary, Option<PathBuf>), TrainError> {
        let train = &self.job.train;
        // The reading mode that worked is not probed, and reported, again for each evaluation.
        self.io.mode = batches.rung().into();
        let samples = self.samples_ahead();
        let memory = self.learner.memory()?;
        let (spec, device, topology, rung) =
            (self.learner.spec(), &*self.device, self.topology, batches.rung());
        let memory = memory.as_ref();
        self.observer.observe(Event::Started { spec, device, memory, topology, rung, samples });

        let (mut total, mut since_report) = (Tally::from(&from), Tally::default());
        let (mut losses, mut last_loss) = (self.losses(&from), from.loss);
        let mut last_eval = from.eval.clone();
        // The evaluation at the checkpoint's step may have reached the target.
        let mut stopped = self.reaches_target(last_eval.as_ref())?.then_some(Stopped::TargetAuc);
        while stopped.is_none() {
            let step = total.steps;
            if train.max_steps.is_some_and(|most| step >= most.get()) {
                stopped = Some(Stopped::MaxSteps);
                break;
            }
            let began = Instant::now();
            self.processes.is_at(Phase::Training, step, Stage::Reading);
            let Some(batch) = batches.next().transpose()? else { break };
            let waited = began.elapsed();
            let step = step + 1;
            self.processes.is_at(Phase::Training, step, Stage::Computing);
            let optimizer = &self.job.optimizer;
            let rate_factor = optimizer.schedule.factor(step);
            let reports = step.is_multiple_of(train.log_every_steps.get());
            let evaluates = self.job.eval.every_steps.is_some_and(|every| step.is_multiple_of(every.get()));
            let here = |error: TrainError| error.at_step(step);
            self.learner.train_step(&batch, rate_factor).map_err(here)?;
            losses.began(batch.len());
            // If losses arrive later, reports wait for them; so does a progress display that has none to show yet.
            let waits = reports || evaluates || losses.are_unknown();
            if waits {
                self.processes.is_at(Phase::Training, step, Stage::Awaiting);
            }
            self.learner.take_outcomes(waits, &mut |outcome| losses.known(&outcome)).map_err(here)?;
            losses.check()?;
            let (samples, time) = (batch.len() as u64, began.elapsed());
            for tally in [&mut total, &mut since_report] {
                tally.add(samples, time, waited);
            }
            self.count_ids(&mut total.ids, batch.out_of_range());
            let progress = Progress {
                step,
                epoch: batch.start().epoch,
                samples: total.samples,
                loss: losses.mean(),
                non_finite_steps: losses.guard().skipped_steps,
                dense_learning_rate: optimizer.dense.learning_rate() * rate_factor,
                sparse_learning_rate: optimizer.sparse.learning_rate() * rate_factor,
                seconds: total.time.as_secs_f64(),
                samples_per_second: since_report.samples_per_second(),
            };
            let position = batch.end();
            last_loss = losses.last_mean(last_loss);
            drop(batch);
            self.observer.observe(Event::Step(progress));
            if reports {
                self.append("train", &TrainRecord { progress, ids_out_of_range: &total.ids })?;
                self.observer.observe(Event::Report(progress, &total.ids));
                since_report = Tally::default();
                losses.begin_anew();
            }
            last_eval = None;
            if evaluates {
                last_eval = self.evaluate(step)?;
                stopped = self.reaches_target(last_eval.as_ref())?.then_some(Stopped::TargetAuc);
            }
            let agreed = self.agree(step)?;
            if agreed.written {
                self.checkpoints.finish(self.observer)?;
            }
            if agreed.saves || self.checkpoints.is_due_by_steps(step) {
                let began = Instant::now();
                self.learner.take_outcomes(true, &mut |outcome| losses.known(&outcome)).map_err(here)?;
                losses.check()?;
                self.save(train_state(&total, (&losses, last_loss), position, last_eval.clone()))?;
                let waited = began.elapsed();
                total.time += waited;
                since_report.time += waited;
            }
            if let Some(cause) = agreed.stop.filter(|_| stopped.is_none()) {
                return Err(self.interrupted(cause, &total, (&losses, last_loss), position, last_eval));
            }
        }
        let began = Instant::now();
        let here = |error: TrainError| error.at_step(total.steps);
        self.processes.is_at(Phase::Training, total.steps, Stage::Awaiting);
        self.learner.take_outcomes(true, &mut |outcome| losses.known(&outcome)).map_err(here)?;
        losses.check_end()?;
        total.time += began.elapsed();
        drop(batches);
        last_loss = losses.last_mean(last_loss);
        let diverged = self.learner.diverged_ranks()?;
        if !diverged.is_empty() {
            return Err(TrainError::ReplicasDiffer(diverged));
        }
        self.checkpoints.finish(self.observer)?;
        let eval = match last_eval {
            Some(eval) => Some(eval),
            None => self.evaluate(total.steps)?,
        };
        self.processes.does(Phase::Saving, total.steps);
        match &mut self.run {
            Some(run) => {
                let dir = run.begin_model()?;
                let (steps, job, dataset) = (total.steps, self.job.to_toml(), self.dataset);
                let save = || {
                    let columns = &Columns::of(dataset);
                    let vocabulary = &|name: &str| dataset.checked_file(name);
                    let metadata = ModelMetadata { steps, job: &job, columns, vocabulary };
                    saved::save_into(dir, &*self.learner, &metadata)
                };
                // With several processes, each one reports its own progress.
                if self.processes.size() == 1 {
                    alive(self.processes, total.steps, save)?
                } else {
                    save()?
                };
            }
            // The rows of this process go to the first one.
            None => saved::Weights::try_for_each_run(&*self.learner, &mut |_| Ok(()))?,
        }
        let traffic = self.learner.traffic().map(|traffic| (traffic, total.steps - from.step));
        let mut summary = self.summary(&total, last_loss, stopped.unwrap_or(Stopped::Epochs), eval, traffic);
        summary.train.skipped_steps = self.learner.skipped_steps()?;
        summary.train.non_finite_steps = losses.guard().skipped_steps;
        if let Some(run) = &self.run {
            run.finish(&summary, self.checkpoints.trained())?;
        }
        self.processes.wait("the end of the run")?;
        Ok((summary, self.run.map(|run| run.path().to_owned())))
    }

    /// Counts a batch's ids outside their tables, and warns at the first ones of each column.
    fn count_ids(&self, counts: &mut IdCounts, of_batch: &[u64]) {
        let schema = self.dataset.schema();
        for number in ids::add(counts, schema, of_batch) {
            if self.processes.is_first() {
                let (column, fate) =
                    (&schema.categorical[number].name, ids::fate(self.dataset.ids().of(number)));
                tracing::warn!(
                    "column {column}: {} ids of a batch are outside its table; {fate}, and all are counted",
                    counts[column]
                );
            }
        }
    }

    /// The losses up to a checkpoint.
    fn losses(&self, from: &TrainState) -> Losses {
        let guard = Guard::resumed(&self.job.guard, from.guard, self.processes.is_first());
        Losses::resumed(from.step, from.losses, guard)
    }

    /// The first process's result of an evaluation; the others have none.
    fn of_first_process(&self, auc: Option<f64>) -> Result<Option<f64>, TrainError> {
        let auc = auc.map_or(Vec::new(), |auc| auc.to_le_bytes().to_vec());
        let auc = self.processes.of_first("the verdict on the evaluation", &auc)?;
        Ok(auc.try_into().ok().map(f64::from_le_bytes))
    }

    /// Appends to the metrics of the run, if this process writes them.
    fn append(&mut self, kind: &'static str, record: &impl Serialize) -> Result<(), TrainError> {
        self.run.as_mut().map_or(Ok(()), |run| run.append(kind, record))
    }

    /// Saves a checkpoint of the current state, unless there is one, and returns the error that says how to resume.
    fn interrupted(
        &mut self,
        cause: StopCause,
        total: &Tally,
        (losses, last_loss): (&Losses, f64),
        position: Position,
        last_eval: Option<EvalSummary>,
    ) -> TrainError {
        let (mut losses, step, run) = (losses.clone(), total.steps, self.path.clone());
        let save = || -> Result<(), TrainError> {
            self.checkpoints.finish(self.observer)?;
            if self.checkpoints.last_step() != step {
                self.learner.take_outcomes(true, &mut |outcome| losses.known(&outcome))?;
                losses.check()?;
                self.save(train_state(total, (&losses, last_loss), position, last_eval))?;
                self.checkpoints.finish(self.observer)?;
            }
            Ok(())
        };
        save().err().unwrap_or(TrainError::Interrupted { cause, step, run })
    }

    /// Takes a checkpoint, and starts to write it.
    fn save(&mut self, state: TrainState) -> Result<(), TrainError> {
        let metrics = self.run.as_ref().map(RunDir::metrics).transpose()?;
        self.checkpoints.begin(&mut *self.learner, state, metrics, self.observer)
    }

    /// What all processes are to do after a step. Several processes exchange it only every [`STEPS_TO_AGREE`] steps.
    fn agree(&self, step: u64) -> Result<Agreed, TrainError> {
        let own = Agreed {
            stop: self.stop.asked(),
            saves: self.checkpoints.is_due_by_time(),
            written: self.checkpoints.is_written(),
        };
        if self.processes.size() == 1 {
            return Ok(own);
        }
        if !step.is_multiple_of(STEPS_TO_AGREE) {
            return Ok(Agreed::default());
        }
        let all = self.processes.gather("what to do next", &own.to_bytes())?;
        let all: Vec<_> = all.iter().map(|bytes| Agreed::from_bytes(bytes)).collect();
        Ok(Agreed {
            // A request to stop any process stops all; the first process decides when a checkpoint is due by time.
            stop: all.iter().find_map(|each| each.stop),
            saves: all.first().is_some_and(|first| first.saves),
            written: all.iter().all(|each| each.written),
        })
    }

    /// Whether an evaluation reached the job's target.
    fn reaches_target(&self, eval: Option<&EvalSummary>) -> Result<bool, TrainError> {
        let auc = self.of_first_process(eval.and_then(|eval| eval.metrics.first?.auc))?;
        Ok(self.job.eval.target_auc.zip(auc).is_some_and(|(target, auc)| auc >= target.get()))
    }

    /// Samples that the run will train on, unless a target stops it.
    fn samples_ahead(&self) -> u64 {
        let train = &self.job.train;
        let (epoch, batch) = (self.dataset.samples(Part::Train), u64::from(train.batch_size.get()));
        let all = epoch.saturating_mul(train.epochs.get());
        let Some(steps) = train.max_steps else { return all };
        let steps_an_epoch = epoch.div_ceil(batch);
        let (epochs, steps) = (steps.get() / steps_an_epoch, steps.get() % steps_an_epoch);
        all.min(epochs.saturating_mul(epoch).saturating_add(epoch.min(steps * batch)))
    }

    /// Evaluates the model on the evaluation part, if there is one.
    fn evaluate(&mut self, step: u64) -> Result<Option<EvalSummary>, TrainError> {
        if self.dataset.samples(Part::Eval) == 0 {
            return Ok(None);
        }
        let began = Instant::now();
        // The first batch may take long.
        self.processes.does(Phase::Evaluating, step);
        let options = EvaluationOptions { batch_size: self.job.eval.batch_size.get() as usize, io: self.io };
        let mut watched = Watched { step, processes: self.processes, observer: &mut *self.observer };
        let (heads, ids_out_of_range) =
            evaluate(&mut *self.learner, self.dataset, Part::Eval, &options, &mut watched)?;
        let metrics = EvalMetrics::from(heads.as_slice());
        let seconds = began.elapsed().as_secs_f64();
        let record = EvalRecord { step, seconds, metrics: &metrics, ids_out_of_range: &ids_out_of_range };
        self.append("eval", &record)?;
        self.observer.observe(Event::Evaluated { step, heads: &heads });
        let auc_achievable = self.dataset.auc_achievable();
        Ok(Some(EvalSummary { metrics, auc_achievable, seconds, ids_out_of_range }))
    }

    fn summary(
        &self,
        total: &Tally,
        loss: f64,
        stopped: Stopped,
        eval: Option<EvalSummary>,
        traffic: Option<(RankTraffic, u64)>,
    ) -> Summary {
        let seconds = total.time.as_secs_f64();
        let raw_files = self.job.data.raw.iter().flat_map(|raw| raw.train.iter().chain(&raw.eval));
        Summary {
            name: self.job.name.to_string(),
            seed: self.job.seed,
            version: env!("CARGO_PKG_VERSION").into(),
            data: DataSummary {
                dir: self.job.data.folder().map(|dir| dir.display().to_string()),
                raw: raw_files.map(|path| path.display().to_string()).collect(),
                train_samples: self.dataset.samples(Part::Train),
                eval_samples: self.dataset.samples(Part::Eval),
                reader: self.io.mode.to_string(),
            },
            model: ModelSummary {
                kind: self.job.model.kind().into(),
                dense_parameters: self.learner.spec().dense_parameters() as u64,
                embedding_parameters: self.learner.spec().embedding_parameters(),
            },
            device: DeviceSummary {
                kind: self.learner.kind().name().into(),
                precision: self.learner.is_on_gpu().then(|| self.job.device.precision.name().into()),
                threads: self.threads,
                ranks: self.topology.ranks(),
                nodes: self.topology.nodes(),
            },
            exchange: traffic
                .filter(|&(_, steps)| self.topology.ranks() > 1 && steps > 0)
                .map(|(traffic, steps)| ExchangeSummary::new(traffic, steps)),
            train: TrainSummary {
                stopped,
                steps: total.steps,
                samples: total.samples,
                loss,
                seconds,
                samples_per_second: total.samples_per_second(),
                ms_per_iteration: seconds * 1e3 / total.steps as f64,
                skipped_steps: None,
                non_finite_steps: 0,
                ids_out_of_range: total.ids.clone(),
                reader_wait_share: total.waited.as_secs_f64() / seconds,
            },
            eval,
        }
    }
}

/// The state of training, for a checkpoint.
fn train_state(
    total: &Tally,
    (losses, loss): (&Losses, f64),
    position: Position,
    eval: Option<EvalSummary>,
) -> TrainState {
    TrainState {
        step: total.steps,
        position,
        samples: total.samples,
        seconds: total.time.as_secs_f64(),
        waited_seconds: total.waited.as_secs_f64(),
        losses: losses.state(),
        loss,
        guard: losses.guard(),
        ids_out_of_range: total.ids.clone(),
        eval,
    }
}

/// Work done when a checkpoint was taken.
impl From<&TrainState> for Tally {
    fn from(state: &TrainState) -> Self {
        let time = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Self {
            steps: state.step,
            samples: state.samples,
            ids: state.ids_out_of_range.clone(),
            time: time(state.seconds),
            waited: time(state.waited_seconds),
        }
    }
}

/// An evaluation that reports to the other processes that it makes progress.
struct Watched<'a> {
    step: u64,
    processes: &'a ProcessGroup,
    observer: &'a mut dyn Observer,
}

impl Observer for Watched<'_> {
    fn observe(&mut self, event: Event<'_>) {
        self.processes.does(Phase::Evaluating, self.step);
        self.observer.observe(event);
    }
}

impl Tally {
    fn add(&mut self, samples: u64, time: Duration, waited: Duration) {
        self.steps += 1;
        self.samples += samples;
        self.time += time;
        self.waited += waited;
    }

    fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.time.as_secs_f64()
    }
}
