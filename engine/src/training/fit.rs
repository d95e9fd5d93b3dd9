//! The loop: batches in, steps, reports, evaluations, and the run's files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rankine_embedding::Topology;
use rankine_reader::io::IoOptions;
use rankine_reader::stream::{Order, Position, StreamOptions};
use rankine_reader::{Dataset, Part};
use serde::Serialize;

use super::batches::Batches;
use super::data::open_together;
use super::evaluate::{EvaluationOptions, Scorer, evaluate};
use super::learner::{Choice, Learner, Losses};
use super::seats::Seats;
use super::summary::{
    DataSummary, DeviceSummary, EvalSummary, ExchangeSummary, ModelSummary, Stopped, Summary, TrainSummary,
};
use super::translate::translate;
use super::{Event, Observer, Progress, RunDir, TrainError};
use crate::cpu::RankTraffic;
use crate::evaluation::EvalMetrics;
use crate::job::{DeviceKind, Job};
use crate::launch::{Phase, ProcessGroup};
use crate::saved;
use crate::system;

/// Batches that wait, decoded, while a step computes: enough to hide a slow read, few enough to stay small.
const PREFETCH_BATCHES: usize = 4;

/// Where a run goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrainOptions<'a> {
    /// The run's folder; by default a fresh one below `runs`.
    pub run_dir: Option<&'a Path>,
    /// The processes that train together, all of which call [`train`]; by default this one alone.
    pub processes: Option<&'a ProcessGroup>,
}

/// Trains a job from beginning to end: opens or makes the dataset, trains, evaluates, saves the model and the summary.
/// Returns the summary and the path of the run's folder. Of several processes the first one alone writes, and has a
/// path.
///
/// # Errors
/// See [`TrainError`]. Whatever went wrong, no model is there that was not completely trained and written.
pub fn train(
    job: &Job,
    options: TrainOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<(Summary, Option<PathBuf>), TrainError> {
    if job.device.kind == DeviceKind::Cuda && !cfg!(feature = "cuda") {
        return Err(TrainError::Device(
            "device.kind is \"cuda\", and this build of Rankine trains on the CPU alone: set it to \"auto\" or \"cpu\""
                .into(),
        ));
    }
    let alone = ProcessGroup::alone();
    let processes = options.processes.unwrap_or(&alone);
    let (job, seats) = Seats::of(job, processes)?;
    let dataset = open_together(&job, processes, observer)?;
    let (spec, rules) = translate(&job, dataset.schema()).map_err(TrainError::Conflicts)?;
    let choice = Choice::of(&job, &seats, &dataset, &spec, &rules)?;
    let run = processes.is_first().then(|| RunDir::create(options.run_dir, &job)).transpose()?;
    if let (Some(run), Some(machine)) = (&run, choice.machine()) {
        run.write_machine(machine)?;
    }
    let (pool, threads) = thread_pool(&job)?;
    let io = job.reader.io_options();
    // Built and used inside of the pool: rayon's work runs on the threads of whoever calls.
    pool.install(|| {
        let (learner, device) = choice.initialize(&job, &dataset, spec, &rules, threads)?;
        let batches = learner.open(dataset.part(Part::Train)?, &train_options(&job, io))?;
        if let (Some(run), Some(record)) = (&run, learner.tuning()?) {
            run.write_tuning(&record)?;
        }
        let topology = seats.topology;
        let (job, dataset) = (&job, &dataset);
        Fit { job, dataset, processes, learner, device, run, observer, threads, topology, io }.run(batches)
    })
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
    processes: &'a ProcessGroup,
    learner: Learner,
    /// What trains, in words.
    device: String,
    /// Of the first process.
    run: Option<RunDir>,
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
    fn run(mut self, mut batches: Batches) -> Result<(Summary, Option<PathBuf>), TrainError> {
        let train = &self.job.train;
        // What was found to work is not tried, and told, again for each evaluation.
        self.io.mode = batches.rung().into();
        let samples = self.samples_ahead();
        let memory = self.learner.memory()?;
        let (spec, device, topology, rung) =
            (self.learner.spec(), &*self.device, self.topology, batches.rung());
        let memory = memory.as_ref();
        self.observer.observe(Event::Started { spec, device, memory, topology, rung, samples });

        let (mut total, mut since_report) = (Tally::default(), Tally::default());
        let (mut losses, mut last_loss) = (Losses::default(), f64::NAN);
        let mut last_eval = None;
        let mut stopped = Stopped::Epochs;
        loop {
            let began = Instant::now();
            let Some(batch) = batches.next().transpose()? else { break };
            let waited = began.elapsed();
            let step = total.steps + 1;
            self.processes.does(Phase::Training, step);
            let optimizer = &self.job.optimizer;
            let rate_factor = optimizer.schedule.factor(step);
            let reports = step.is_multiple_of(train.log_every_steps.get());
            let evaluates = self.job.eval.every_steps.is_some_and(|every| step.is_multiple_of(every.get()));
            let here = |error: TrainError| error.at_step(step);
            self.learner.train_step(&batch, rate_factor).map_err(here)?;
            losses.began(batch.len());
            // Where losses come later, reports wait for them, and so does who has none to show.
            let waits = reports || evaluates || losses.is_empty();
            self.learner.take_losses(waits, |loss| losses.known(loss)).map_err(here)?;
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
            last_loss = progress.loss;
            self.observer.observe(Event::Step(progress));
            if reports {
                self.append("train", &progress)?;
                self.observer.observe(Event::Report(progress));
                since_report = Tally::default();
                losses.begin_anew();
            }
            last_eval = None;
            if evaluates {
                last_eval = self.evaluate(step)?;
                let auc = last_eval.as_ref().and_then(|eval| eval.metrics.first?.auc);
                let auc = self.of_first_process(auc)?;
                if let (Some(target), Some(auc)) = (self.job.eval.target_auc, auc)
                    && auc >= target.get()
                {
                    stopped = Stopped::TargetAuc;
                    break;
                }
            }
            if train.max_steps.is_some_and(|most| step >= most.get()) {
                stopped = Stopped::MaxSteps;
                break;
            }
        }
        let began = Instant::now();
        let here = |error: TrainError| error.at_step(total.steps);
        self.learner.take_losses(true, |loss| losses.known(loss)).map_err(here)?;
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
        let eval = match last_eval {
            Some(eval) => Some(eval),
            None => self.evaluate(total.steps)?,
        };
        self.processes.does(Phase::Saving, total.steps);
        match &self.run {
            Some(run) => {
                saved::save(&RunDir::model_path(run.path()), &self.learner, total.steps, self.dataset)?;
            }
            // What lies here goes to the first process.
            None => saved::Weights::try_for_each_run(&self.learner, &mut |_| Ok(()))?,
        }
        let traffic = self.learner.traffic();
        let mut summary = self.summary(&total, last_loss, stopped, eval, traffic);
        summary.train.skipped_steps = self.learner.skipped_steps()?;
        if let Some(run) = &self.run {
            run.finish(&summary)?;
        }
        self.processes.wait("the end of the run")?;
        Ok((summary, self.run.map(|run| run.path().to_owned())))
    }

    /// What the first process alone knows of an evaluation.
    fn of_first_process(&self, auc: Option<f64>) -> Result<Option<f64>, TrainError> {
        let auc = auc.map_or(Vec::new(), |auc| auc.to_le_bytes().to_vec());
        let auc = self.processes.of_first("the verdict on the evaluation", &auc)?;
        Ok(auc.try_into().ok().map(f64::from_le_bytes))
    }

    /// Appends to the metrics of the run, where this process writes them.
    fn append(&mut self, kind: &'static str, record: &impl Serialize) -> Result<(), TrainError> {
        self.run.as_mut().map_or(Ok(()), |run| run.append(kind, record))
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
        let mut watched = Watched { step, processes: self.processes, observer: &mut *self.observer };
        let heads = evaluate(&mut self.learner, self.dataset, Part::Eval, &options, &mut watched)?;
        let metrics = EvalMetrics::from(heads.as_slice());
        let seconds = began.elapsed().as_secs_f64();
        self.append("eval", &EvalRecord { step, seconds, metrics: &metrics })?;
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
        traffic: Option<RankTraffic>,
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
                .filter(|_| self.topology.ranks() > 1)
                .map(|traffic| ExchangeSummary::new(traffic, total.steps)),
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

/// An evaluation, of which the other processes hear that it goes on.
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
