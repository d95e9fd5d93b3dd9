//! The training loop: batches in, steps, reports, evaluations and checkpoints.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rankine_backend::{Backend, Batch, Batches, CopiedBytes};
use rankine_base::StopCause;
use rankine_base::sealed::Checksum;
use rankine_checkpoint::{Checkpoint, StateSource, TrainState};
use rankine_embedding::plan::TierReport;
use rankine_job::Precision;
use rankine_launch::{ProcessGroup, RunStage, StepStage};
use rankine_reader::Part;
use rankine_reader::io::IoOptions;
use rankine_reader::stream::StreamOptions;

use super::agreement::StepAgreement;
use super::beside::EvaluationBeside;
use super::early_stopping::{DecidingMetrics, EarlyStopping, forget_lost_best};
use super::guard::NonFiniteGuard;
use super::losses::Losses;
use super::records::{RunPhaseSeconds, TrainRecord};
use super::start_clock::StartClock;
use super::state::{RunState, Tally};
use crate::training::backend::{DeviceChoice, InitializedDevice, Measurements};
use crate::training::checkpoints::Checkpoints;
use crate::training::context::{RunContext, SampleSource};
use crate::training::data::train_options;
use crate::training::devices::{DevicesInUse, RunDevices};
use crate::training::error::TrainError;
use crate::training::event::{Event, Observer, Progress};
use crate::training::event::{Report, RunStart, StepDetails, StepTimes};
use crate::training::identity::RunIdentity;
use crate::training::ids;
use crate::training::initial_model::InitialModel;
use crate::training::power::{PowerSampler, PowerUse};
use crate::training::processes::with_heartbeat;
use crate::training::resume::TrainingStart;
use crate::training::run_dir::{RunDir, RunFolder};
use crate::training::run_logs::{LogStart, RunLogs};
use crate::training::summary::EndReason;

/// A run in progress.
pub(super) struct TrainingLoop<'a> {
    pub(super) context: RunContext<'a>,
    pub(super) observer: &'a mut dyn Observer,
    /// The evaluation whose metrics are computed beside the steps. Dropped before the model, whose memory it uses.
    pub(super) beside: Option<EvaluationBeside>,
    pub(super) backend: Box<dyn Backend>,
    /// Dropped before `run`, which unlocks the folder that they are written to.
    pub(super) checkpoints: Checkpoints,
    /// The run's folder; only of the first process.
    pub(super) run: Option<RunDir>,
    /// The logs in it for other tools.
    pub(super) logs: RunLogs,
    /// That folder, as each process sees it.
    pub(super) folder: RunFolder,
    /// How samples are read.
    pub(super) io: IoOptions,
    pub(super) state: RunState,
    /// Reads the power of the GPUs; `None` on the CPU, and once the steps are done.
    power: Option<PowerSampler>,
    /// Their power in this attempt, once the steps are done.
    pub(super) power_use: Option<PowerUse>,
    /// How rows are divided between a GPU and host memory; `None` if the device stores all rows.
    pub(super) tier: Option<TierReport>,
    /// The checksums of the samples that were evaluated, by `[[eval.set]]` and part.
    pub(super) evaluated: BTreeMap<(Option<String>, Part), Checksum>,
}

impl<'a> TrainingLoop<'a> {
    /// Creates the model on its device, restores a checkpoint, and starts to read batches unless a program pushes them.
    ///
    /// # Errors
    /// As [`super::train`].
    pub(super) fn begin(
        context: RunContext<'a>,
        choice: DeviceChoice,
        measured: &Measurements,
        start: TrainingStart,
        mut clock: StartClock,
        observer: &'a mut dyn Observer,
    ) -> Result<(Self, Option<Batches>), TrainError> {
        let RunContext { job, dataset, source, model, processes, topology, threads, .. } = context;
        let TrainingStart { run, from, initial, identity } = start;
        let machine = choice.machine().map(ToOwned::to_owned);
        if let (Some(run), Some(machine)) = (&run, &machine) {
            run.write_machine(machine)?;
        }
        let InitializedDevice { mut backend, name, placements, tier } =
            choice.initialize(job, dataset, model, threads, measured)?;
        let tuning = backend.tuning()?;
        run.as_ref().zip(tuning.as_ref()).map_or(Ok(()), |(run, record)| run.write_tuning(record))?;
        clock.add_to(|start| &mut start.model_seconds);
        let mut from = restore(&mut *backend, processes, (from, initial), &mut clock)?;
        let mut io = job.reader.io_options();
        let stream = StreamOptions { start: from.position, ..train_options(job, io) };
        // For MLPerf, the time to train starts before the first sample is read.
        let logs = begin_logs(&context, &*backend, run.as_ref(), &from)?;
        let batches = match source {
            SampleSource::Dataset => Some(backend.open(dataset.part(Part::Train)?, &stream)?),
            SampleSource::Program => None,
        };
        let folder = RunFolder::of(processes, run.as_ref())?;
        let identity = identity_to_write(&context, identity.map(|known| *known))?;
        let measured = Measurements { tuning, machine };
        let mut checkpoints = Checkpoints::new(&context, identity, measured, folder.clone(), from.step)?;
        checkpoints.prepare(&*backend)?;
        checkpoints.check_snapshots(from.step, observer)?;
        let stopping = job.train.early_stopping;
        let is_lost = forget_lost_best(&mut from, stopping, &checkpoints, (processes, observer))?;
        // The reading mode that worked is not probed, and reported, again for each evaluation.
        let rung = batches.as_ref().map(|batches| batches.rung());
        io.mode = rung.map_or(io.mode, Into::into);
        let in_use = DevicesInUse { name, topology, memory: backend.memory()?, placements, tier: &tier };
        // The live page of the first process shows the tables, and its folder has them.
        let devices = RunDevices::new(backend.spec(), processes.is_first().then_some(dataset), in_use);
        if let Some(run) = &run {
            run.write_devices(&devices)?;
        }
        observer.observe(Event::Started(RunStart {
            job,
            run: folder.path(),
            spec: backend.spec(),
            dataset,
            kind: backend.kind(),
            precision: backend.precision(job),
            devices: &devices,
            rung,
            samples: context.samples(),
            samples_done: from.samples,
            step: from.step,
            ids_out_of_range: &from.ids_out_of_range,
            refit: context.refit,
        }));
        clock.add_to(|start| &mut start.reader_seconds);
        let state = resume_state(&context, from, is_lost, clock);
        let training = Self {
            power: PowerSampler::of(context.gpus, &devices.memory),
            context,
            observer,
            backend,
            checkpoints,
            run,
            logs,
            folder,
            io,
            state,
            power_use: None,
            tier,
            beside: None,
            evaluated: BTreeMap::new(),
        };
        Ok((training, batches))
    }

    /// Trains until the job's end is reached or a stop is requested.
    ///
    /// # Errors
    /// As [`super::train`]; [`TrainError::Interrupted`] after a request to stop.
    pub(super) fn run(&mut self, mut batches: Batches) -> Result<(), TrainError> {
        self.evaluate_start()?;
        while self.state.end.is_none() {
            if self.is_at_max_steps() {
                self.state.end = Some(EndReason::MaxSteps);
                break;
            }
            let began = Instant::now();
            self.context.processes.is_at(RunStage::Training, self.state.step(), StepStage::Reading);
            let Some(batch) = batches.next().transpose()? else { break };
            let source = ReaderState {
                waited: began.elapsed(),
                bytes_read: batches.bytes_read(),
                bytes_copied: batches.bytes_copied(),
                batches_ready: batches.ready(),
            };
            self.step(batch, source)?;
        }
        self.await_steps()?;
        drop(batches);
        self.evaluate_end()
    }

    /// Trains on a batch, and does what is due after that step.
    pub(super) fn step(&mut self, batch: Batch, source: ReaderState) -> Result<(), TrainError> {
        let progress = self.train_step(&batch, source)?;
        self.report(progress, &batch)?;
        drop(batch);
        self.evaluate_step()?;
        let agreed = self.agree()?;
        self.save_step(agreed)?;
        match agreed.stop.filter(|_| self.state.end.is_none()) {
            Some(cause) => Err(self.interrupt(cause)),
            None => Ok(()),
        }
    }

    pub(super) fn is_at_max_steps(&self) -> bool {
        self.context.job.train.max_steps.is_some_and(|most| self.state.step() >= most.get())
    }

    fn reports_at(&self, step: u64) -> bool {
        step.is_multiple_of(self.context.job.train.log_every_steps.get())
    }

    fn train_step(&mut self, batch: &Batch, source: ReaderState) -> Result<Progress, TrainError> {
        let RunContext { job, processes, .. } = self.context;
        let began = Instant::now();
        let step = self.state.step() + 1;
        processes.is_at(RunStage::Training, step, StepStage::Computing);
        self.state.is_complete = false;
        let optimizer = &job.optimizer;
        let rate_factor = optimizer.schedule.factor(step);
        self.backend.train_step(batch, rate_factor).map_err(|error| TrainError::from(error).at_step(step))?;
        let computed = began.elapsed();
        self.state.losses.start_step(batch.samples());
        // If losses arrive later, reports wait for them; so does a progress display that has none to show yet.
        let waits = self.reports_at(step) || self.evaluates_at(step) || self.state.losses.are_unknown();
        if waits {
            processes.is_at(RunStage::Training, step, StepStage::Awaiting);
        }
        self.take_outcomes(waits).map_err(|error| error.at_step(step))?;
        let elapsed = began.elapsed();
        let ReaderState { waited, bytes_read, bytes_copied, batches_ready } = source;
        let times =
            StepTimes { reading: waited, computing: computed, awaiting: elapsed.saturating_sub(computed) };
        self.state.add_step(batch.samples() as u64, &times);
        self.count_ids(batch.out_of_range());
        let state = &mut self.state;
        state.is_complete = true;
        let progress = Progress {
            step,
            epoch: batch.start().epoch,
            samples: state.total.samples,
            loss: state.losses.mean(),
            non_finite_steps: state.losses.guard().non_finite_steps,
            dense_learning_rate: optimizer.dense.learning_rate() * rate_factor,
            sparse_learning_rate: optimizer.sparse.learning_rate() * rate_factor,
            seconds: state.total.time.as_secs_f64(),
            samples_per_second: state.since_report.samples_per_second(),
        };
        state.position = batch.end();
        state.last_loss = state.losses.last_mean(state.last_loss);
        state.bytes_read = bytes_read;
        state.bytes_copied = bytes_copied.unwrap_or_default();
        if state.total.steps == state.first_step + 1 {
            state.start.add_to(|start| &mut start.first_step_seconds);
        }
        let details = StepDetails {
            samples: batch.samples() as u64,
            times,
            bytes_read,
            batches_ready,
            skipped: state.losses.skipped(),
        };
        self.power.iter().for_each(PowerSampler::count_step);
        self.observer.observe(Event::Step(progress, details));
        Ok(progress)
    }

    /// Takes the outcomes of steps: of all that were started, or of those that are complete.
    pub(super) fn take_outcomes(&mut self, all: bool) -> Result<(), TrainError> {
        let losses = &mut self.state.losses;
        self.backend.take_outcomes(all, &mut |outcome| losses.record(&outcome))?;
        losses.check()
    }

    /// Counts a batch's ids outside their tables, and warns at the first ones of each column.
    fn count_ids(&mut self, of_batch: &[u64]) {
        let RunContext { dataset, processes, .. } = self.context;
        let (counts, schema) = (&mut self.state.ids_out_of_range, dataset.schema());
        for number in ids::add(counts, schema, of_batch) {
            if processes.is_first() {
                let (column, fate) = (&schema.categorical[number].name, ids::fate(dataset.ids().of(number)));
                let count = counts[column];
                let ids = if count == 1 { "id" } else { "ids" };
                tracing::warn!(
                    "column {column}: a batch has {count} {ids} out of range; {fate}, and all such ids are counted"
                );
            }
        }
    }

    /// Reports the loss, if a report is due after this batch.
    fn report(&mut self, progress: Progress, batch: &Batch) -> Result<(), TrainError> {
        if !self.reports_at(progress.step) {
            return Ok(());
        }
        let details = self.backend.report_details(batch)?;
        let ids_out_of_range = &self.state.ids_out_of_range;
        if let Some(run) = &mut self.run {
            let phase_seconds = RunPhaseSeconds::from(&self.state.since_report);
            run.append("train", &TrainRecord { progress, phase_seconds, ids_out_of_range })?;
        }
        self.logs.report(&progress)?;
        let power =
            self.power.as_ref().and_then(|power| power.so_far().summary(self.state.attempt_samples()));
        let tier = self.backend.tier_traffic()?;
        let report = Report { progress, ids_out_of_range, details: &details, power, tier };
        self.observer.observe(Event::Report(report));
        self.state.last_details = Some(details);
        self.state.since_report = Tally::default();
        self.state.losses.reset();
        Ok(())
    }

    /// What all processes are to do after a step.
    fn agree(&self) -> Result<StepAgreement, TrainError> {
        let own = StepAgreement {
            stop: self.context.stop.asked(),
            saves: self.checkpoints.is_due_by_time(),
            written: self.checkpoints.is_written(),
        };
        own.among(self.context.processes, self.state.step())
    }

    /// Publishes the checkpoint that is written, and saves another one if it is due.
    fn save_step(&mut self, agreed: StepAgreement) -> Result<(), TrainError> {
        if agreed.written {
            self.checkpoints.finish(self.observer)?;
        }
        let step = self.state.step();
        let is_best = self.state.best().is_some_and(|best| best.step == step);
        if agreed.saves || is_best || self.checkpoints.is_due_by_steps(step) {
            self.take_metrics()?;
            let began = Instant::now();
            self.take_outcomes(true).map_err(|error| error.at_step(step))?;
            self.save()?;
            self.state.add_time(began.elapsed());
        }
        Ok(())
    }

    /// Takes a checkpoint, and starts to write it.
    fn save(&mut self) -> Result<(), TrainError> {
        let metrics = self.run.as_ref().map(RunDir::metrics).transpose()?;
        self.checkpoints.begin(&mut *self.backend, self.state.to_checkpoint(), metrics, self.observer)
    }

    /// Saves a checkpoint of the current state, unless there is one, and returns the error that says how to resume.
    pub(super) fn interrupt(&mut self, cause: StopCause) -> TrainError {
        let (step, start, processes) = (self.state.step(), self.context.start, self.context.processes);
        let saved = self.save_now().and_then(|()| with_heartbeat(processes, step, || self.logs.sync()));
        let run = self.folder.path().to_owned();
        saved.err().unwrap_or(TrainError::Interrupted { cause, step, run, start })
    }

    /// Saves a checkpoint of the current state, unless there is one, and waits for it.
    pub(super) fn save_now(&mut self) -> Result<(), TrainError> {
        self.checkpoints.finish(self.observer)?;
        if self.checkpoints.last_step() != self.state.step() {
            self.take_metrics()?;
            self.take_outcomes(true)?;
            self.save()?;
            self.checkpoints.finish(self.observer)?;
        }
        Ok(())
    }

    /// Waits for the outcomes of all steps.
    pub(super) fn await_steps(&mut self) -> Result<(), TrainError> {
        let (began, step) = (Instant::now(), self.state.step());
        self.context.processes.is_at(RunStage::Training, step, StepStage::Awaiting);
        self.take_outcomes(true).map_err(|error| error.at_step(step))?;
        let state = &mut self.state;
        state.losses.check_end()?;
        state.total.time += began.elapsed();
        state.last_loss = state.losses.last_mean(state.last_loss);
        self.power_use = self.power.take().map(|power| power.up_to_now());
        Ok(())
    }
}

/// Where a batch came from, when it was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReaderState {
    /// How long training waited for the batch.
    pub(super) waited: Duration,
    /// Bytes read so far.
    pub(super) bytes_read: u64,
    /// Bytes copied to GPUs so far, if they unpack batches.
    pub(super) bytes_copied: Option<CopiedBytes>,
    /// Batches that wait to be taken.
    pub(super) batches_ready: usize,
}

/// The identity of the run, which the first process reads since it writes for all.
fn identity_to_write(
    context: &RunContext<'_>,
    known: Option<RunIdentity>,
) -> Result<RunIdentity, TrainError> {
    let mut identity = known.map_or_else(|| RunIdentity::of(context), Ok)?;
    if context.processes.is_first() {
        identity.read();
    }
    Ok(identity)
}

/// The state of the run at its start. `is_best_lost` says that the best model cannot be restored, so that the first one
/// that can be is the best so far.
fn resume_state(
    context: &RunContext<'_>,
    from: TrainState,
    is_best_lost: bool,
    clock: StartClock,
) -> RunState {
    let RunContext { job, processes, .. } = context;
    let guard = NonFiniteGuard::resumed(&job.guard, from.guard, processes.is_first());
    let losses = Losses::resumed(from.step, from.losses, guard);
    let mut early_stopping =
        job.train.early_stopping.map(|settings| EarlyStopping::resumed(settings, from.best));
    if let (Some(stopping), Some(eval), true) = (&mut early_stopping, &from.eval, is_best_lost) {
        stopping.judge(from.step, DecidingMetrics::from(&eval.metrics));
    }
    RunState::resumed(from, losses, early_stopping, clock)
}

/// Restores the checkpoint that training resumes from, or the trained model that it starts from. Returns the state of
/// training there.
fn restore(
    backend: &mut dyn Backend,
    processes: &ProcessGroup,
    (from, initial): (Option<Arc<Checkpoint>>, Option<Arc<InitialModel>>),
    clock: &mut StartClock,
) -> Result<TrainState, TrainError> {
    let (source, state): (Arc<dyn StateSource>, _) = match (from, initial) {
        (Some(checkpoint), _) => {
            let state = checkpoint.manifest().train.clone();
            (checkpoint, state)
        }
        (None, Some(initial)) => {
            let init = initial.state().clone();
            if processes.is_first() {
                tracing::info!("training starts from {}", initial.description());
            }
            (initial, TrainState { init: Some(init), ..TrainState::default() })
        }
        (None, None) => return Ok(TrainState::default()),
    };
    with_heartbeat(processes, state.step, || backend.restore(&source))?;
    clock.add_to(|start| &mut start.state_seconds);
    Ok(state)
}

/// Begins or continues the logs for other tools, if this is the first process.
fn begin_logs(
    context: &RunContext<'_>,
    backend: &dyn Backend,
    run: Option<&RunDir>,
    from: &TrainState,
) -> Result<RunLogs, TrainError> {
    let Some(run) = run else { return Ok(RunLogs::default()) };
    let precision = backend.precision(context.job).unwrap_or(Precision::Fp32);
    let start = LogStart { step: from.step, samples: from.samples, precision: precision.name() };
    RunLogs::begin(context, run, start)
}
