//! The loop: batches in, steps, reports, evaluations, and the run's files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rankine_embedding::Topology;
use rankine_reader::io::IoOptions;
use rankine_reader::stream::{Order, Position, StreamOptions};
use rankine_reader::{Dataset, Part};
use serde::Serialize;

use super::batches::Batches;
use super::checkpoints::{Checkpoints, Recorded};
use super::data::open_or_generate;
use super::evaluate::{EvaluationOptions, Scorer, evaluate};
use super::learner::{Choice, Learner, Losses};
use super::summary::{
    DataSummary, DeviceSummary, EvalSummary, ExchangeSummary, ModelSummary, Stopped, Summary, TrainSummary,
};
use super::translate::translate;
use super::{Event, Observer, Progress, RunDir, Stop, StopCause, TrainError, identity};
use crate::checkpoint::{self, Checkpoint, Disk, Files, TrainState};
use crate::cpu::RankTraffic;
use crate::evaluation::EvalMetrics;
use crate::job::{DeviceKind, Job};
use crate::saved;
use crate::system;

/// Batches that wait, decoded, while a step computes: enough to hide a slow read, few enough to stay small.
const PREFETCH_BATCHES: usize = 4;

/// Where a run goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrainOptions<'a> {
    /// The run's folder; by default a fresh one below `runs`.
    pub run_dir: Option<&'a Path>,
    /// Whether to go on in that folder, from the latest good checkpoint. Of a run that has come to its end, the summary
    /// is returned and nothing is done.
    pub resume: bool,
    /// What asks the training to stop.
    pub stop: Option<&'a Stop>,
    /// What checkpoints are written with, where that is not the machine's own file system.
    pub files: Option<&'a Arc<dyn Files>>,
}

/// Trains a job from beginning to end: opens or makes the dataset, trains, evaluates, saves the model and the summary.
/// Returns the summary and the path of the run's folder.
///
/// # Errors
/// See [`TrainError`]. Whatever went wrong, no model is there that was not completely trained and written.
pub fn train(
    job: &Job,
    options: TrainOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<(Summary, PathBuf), TrainError> {
    if job.device.kind == DeviceKind::Cuda && !cfg!(feature = "cuda") {
        return Err(TrainError::Device(
            "device.kind is \"cuda\", and this build of Rankine trains on the CPU alone: set it to \"auto\" or \"cpu\""
                .into(),
        ));
    }
    if let Some(path) = options.run_dir.filter(|_| options.resume)
        && let Some(summary) = RunDir::finished(path)?
    {
        return Ok((summary, path.to_owned()));
    }
    let dataset = open_or_generate(job, observer)?;
    let (spec, rules) = translate(job, dataset.schema()).map_err(TrainError::Conflicts)?;
    let topology = job.topology().map_err(|error| TrainError::Device(error.to_string()))?;
    let files = options.files.cloned().unwrap_or_else(|| Arc::new(Disk));
    let (pool, threads) = thread_pool(job)?;
    let io = job.reader.io_options();
    let (mut resumed, mut from) = (None, None);
    if let Some(path) = options.run_dir.filter(|_| options.resume) {
        let mut run = RunDir::resume(path, job)?;
        from = pool.install(|| latest(&files, path, observer))?;
        if let Some(checkpoint) = &from {
            identity::check(checkpoint, (job, &dataset), (&spec, &rules))?;
        }
        run.go_on(from.as_ref().map_or(0, |checkpoint| checkpoint.manifest().train.step), job)?;
        resumed = Some(run);
    }
    let recorded =
        from.as_ref().map_or(Ok(Recorded::default()), |checkpoint| Recorded::of(checkpoint, topology))?;
    let choice = Choice::of(job, &dataset, (&spec, &rules), &recorded)?;
    let run = resumed.map_or_else(|| RunDir::create(options.run_dir, job), Ok)?;
    let machine = choice.machine().map(ToOwned::to_owned);
    machine.iter().try_for_each(|machine| run.write_machine(machine))?;
    // Built and used inside of the pool: rayon's work runs on the threads of whoever calls.
    pool.install(|| {
        let (mut learner, device) = choice.initialize(job, &dataset, (&spec, &rules), threads, &recorded)?;
        let tuning = learner.tuning()?;
        tuning.iter().try_for_each(|record| run.write_tuning(record))?;
        let from = from.map(|checkpoint| {
            learner.restore(&checkpoint)?;
            Ok::<_, TrainError>(checkpoint.manifest().train.clone())
        });
        let train = from.transpose()?.unwrap_or_default();
        let stream = StreamOptions { start: train.position, ..train_options(job, io) };
        let batches = learner.open(dataset.part(Part::Train)?, &stream)?;
        let checkpoints = Checkpoints::new(
            (job, &dataset, topology),
            (&spec, &rules),
            Recorded { tuning, machine },
            (files, RunDir::checkpoints_path(run.path())),
            train.step,
        )?;
        let stop = options.stop.cloned().unwrap_or_default();
        let fit = Fit {
            job,
            dataset: &dataset,
            learner,
            device,
            run,
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

/// The checkpoint to go on from. Those that are damaged are told of, and set aside.
fn latest(
    files: &Arc<dyn Files>,
    run: &Path,
    observer: &mut dyn Observer,
) -> Result<Option<Arc<Checkpoint>>, TrainError> {
    let dir = RunDir::checkpoints_path(run);
    let (found, skipped) = checkpoint::latest(files, &dir)?;
    for skipped in &skipped {
        checkpoint::set_aside(&**files, &dir, skipped.step)?;
        observer.observe(Event::Skipped(skipped));
    }
    match &found {
        Some(checkpoint) => {
            let step = checkpoint.manifest().train.step;
            observer.observe(Event::Resumed { step, path: checkpoint.path() });
        }
        None => observer.observe(Event::NothingToResume),
    }
    Ok(found.map(Arc::new))
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

/// The threads of a job, and their number.
///
/// # Errors
/// [`TrainError::Device`] where the operating system refuses them.
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
    learner: Learner,
    /// What trains, in words.
    device: String,
    run: RunDir,
    checkpoints: Checkpoints,
    stop: Stop,
    observer: &'a mut dyn Observer,
    threads: usize,
    topology: Topology,
    io: IoOptions,
}

/// What has been done and how long it took, evaluations not counted.
#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    samples: u64,
    time: Duration,
    waited: Duration,
}

/// One line of `metrics.jsonl` for an evaluation.
#[derive(Serialize)]
struct EvalRecord<'a> {
    step: u64,
    seconds: f64,
    #[serde(flatten)]
    metrics: &'a EvalMetrics,
}

impl Fit<'_> {
    /// Trains on from where a checkpoint was, or from the beginning.
    fn run(mut self, mut batches: Batches, from: TrainState) -> Result<(Summary, PathBuf), TrainError> {
        let train = &self.job.train;
        // What was found to work is not tried, and told, again for each evaluation.
        self.io.mode = batches.rung().into();
        let samples = self.samples_ahead();
        let memory = self.learner.memory()?;
        let (spec, device, topology, rung) =
            (self.learner.spec(), &*self.device, self.topology, batches.rung());
        let memory = memory.as_ref();
        self.observer.observe(Event::Started { spec, device, memory, topology, rung, samples });

        let (mut total, mut since_report) = (Tally::from(&from), Tally::default());
        let (mut losses, mut last_loss) = (Losses::resumed(from.step, from.losses), from.loss);
        let (mut position, mut last_eval) = (from.position, from.eval.clone());
        // An evaluation of the step that was saved may have been the last one.
        let mut stopped = self.reaches_target(last_eval.as_ref()).then_some(Stopped::TargetAuc);
        while stopped.is_none() {
            let step = total.steps;
            if train.max_steps.is_some_and(|most| step >= most.get()) {
                stopped = Some(Stopped::MaxSteps);
                break;
            }
            if let Some(cause) = self.stop.asked() {
                return Err(self.interrupted(cause, &total, (&losses, last_loss), position, last_eval));
            }
            let began = Instant::now();
            let Some(batch) = batches.next().transpose()? else { break };
            let waited = began.elapsed();
            let step = step + 1;
            let optimizer = &self.job.optimizer;
            let rate_factor = optimizer.schedule.factor(step);
            let reports = step.is_multiple_of(train.log_every_steps.get());
            let evaluates = self.job.eval.every_steps.is_some_and(|every| step.is_multiple_of(every.get()));
            self.learner.train_step(&batch, rate_factor)?;
            losses.began(batch.len());
            // Where losses come later, reports wait for them, and so does who has none to show.
            let waits = reports || evaluates || losses.is_empty();
            self.learner.take_losses(waits, |loss| losses.known(loss))?;
            losses.check()?;
            let (samples, time) = (batch.len() as u64, began.elapsed());
            for tally in [&mut total, &mut since_report] {
                tally.add(samples, time, waited);
            }
            let progress = Progress {
                step,
                epoch: batch.start().epoch,
                samples: total.samples,
                loss: losses.mean(),
                dense_learning_rate: optimizer.dense.learning_rate() * rate_factor,
                sparse_learning_rate: optimizer.sparse.learning_rate() * rate_factor,
                samples_per_second: since_report.samples_per_second(),
            };
            (last_loss, position) = (progress.loss, batch.end());
            drop(batch);
            self.observer.observe(Event::Step(progress));
            if reports {
                self.run.append("train", &progress)?;
                self.observer.observe(Event::Report(progress));
                since_report = Tally::default();
                losses.begin_anew();
            }
            last_eval = None;
            if evaluates {
                last_eval = self.evaluate(step)?;
                stopped = self.reaches_target(last_eval.as_ref()).then_some(Stopped::TargetAuc);
            }
            self.checkpoints.poll(self.observer)?;
            if self.checkpoints.is_due(step) {
                let began = Instant::now();
                self.learner.take_losses(true, |loss| losses.known(loss))?;
                losses.check()?;
                let state = train_state(&total, (&losses, last_loss), position, last_eval.clone());
                self.checkpoints.begin(&mut self.learner, state, self.run.metrics()?, self.observer)?;
                total.time += began.elapsed();
            }
        }
        let began = Instant::now();
        self.learner.take_losses(true, |loss| losses.known(loss))?;
        losses.check()?;
        total.time += began.elapsed();
        drop(batches);
        if !losses.is_empty() {
            last_loss = losses.mean();
        }
        let diverged = self.learner.diverged_ranks()?;
        if !diverged.is_empty() {
            return Err(TrainError::ReplicasDiffer(diverged));
        }
        self.checkpoints.finish(self.observer)?;
        let eval = match last_eval {
            Some(eval) => Some(eval),
            None => self.evaluate(total.steps)?,
        };
        saved::save(&RunDir::model_path(self.run.path()), &self.learner, total.steps, self.dataset)?;
        let traffic = self.learner.traffic().map(|traffic| (traffic, total.steps - from.step));
        let mut summary = self.summary(&total, last_loss, stopped.unwrap_or(Stopped::Epochs), eval, traffic);
        summary.train.skipped_steps = self.learner.skipped_steps()?;
        self.run.finish(&summary)?;
        Ok((summary, self.run.path().to_owned()))
    }

    /// Saves a checkpoint of where training is, unless there is one, and says that it can go on from there.
    fn interrupted(
        &mut self,
        cause: StopCause,
        total: &Tally,
        (losses, last_loss): (&Losses, f64),
        position: Position,
        last_eval: Option<EvalSummary>,
    ) -> TrainError {
        let (mut losses, step, run) = (losses.clone(), total.steps, self.run.path().to_owned());
        let save = || -> Result<(), TrainError> {
            self.checkpoints.finish(self.observer)?;
            if self.checkpoints.last_step() != step {
                self.learner.take_losses(true, |loss| losses.known(loss))?;
                losses.check()?;
                let state = train_state(total, (&losses, last_loss), position, last_eval);
                self.checkpoints.begin(&mut self.learner, state, self.run.metrics()?, self.observer)?;
                self.checkpoints.finish(self.observer)?;
            }
            Ok(())
        };
        save().err().unwrap_or(TrainError::Interrupted { cause, step, run })
    }

    /// Whether an evaluation is the one that training was to come to.
    fn reaches_target(&self, eval: Option<&EvalSummary>) -> bool {
        let auc = eval.and_then(|eval| eval.metrics.first?.auc);
        self.job.eval.target_auc.zip(auc).is_some_and(|(target, auc)| auc >= target.get())
    }

    /// Samples that the run will see, if no target stops it.
    fn samples_ahead(&self) -> u64 {
        let train = &self.job.train;
        let (epoch, batch) = (self.dataset.samples(Part::Train), u64::from(train.batch_size.get()));
        let all = epoch.saturating_mul(train.epochs.get());
        let Some(steps) = train.max_steps else { return all };
        let steps_an_epoch = epoch.div_ceil(batch);
        let (epochs, steps) = (steps.get() / steps_an_epoch, steps.get() % steps_an_epoch);
        all.min(epochs.saturating_mul(epoch).saturating_add(epoch.min(steps * batch)))
    }

    /// Judges the model on the evaluation part, where there is one.
    fn evaluate(&mut self, step: u64) -> Result<Option<EvalSummary>, TrainError> {
        if self.dataset.samples(Part::Eval) == 0 {
            return Ok(None);
        }
        let began = Instant::now();
        let options = EvaluationOptions { batch_size: self.job.eval.batch_size.get() as usize, io: self.io };
        let heads = evaluate(&mut self.learner, self.dataset, Part::Eval, &options, self.observer)?;
        let metrics = EvalMetrics::from(heads.as_slice());
        let seconds = began.elapsed().as_secs_f64();
        self.run.append("eval", &EvalRecord { step, seconds, metrics: &metrics })?;
        self.observer.observe(Event::Evaluated { step, heads: &heads });
        let auc_achievable = self.dataset.auc_achievable();
        Ok(Some(EvalSummary { metrics, auc_achievable, seconds }))
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
                kind: self.learner.kind().into(),
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
                reader_wait_share: total.waited.as_secs_f64() / seconds,
            },
            eval,
        }
    }
}

/// Where training is, for a checkpoint.
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
        eval,
    }
}

/// What had been done when a checkpoint was taken.
impl From<&TrainState> for Tally {
    fn from(state: &TrainState) -> Self {
        let time = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Self {
            steps: state.step,
            samples: state.samples,
            time: time(state.seconds),
            waited: time(state.waited_seconds),
        }
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
