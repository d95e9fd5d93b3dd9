//! The time that the steps of a job take, and how it is spent.
//!
//! Steps read their batches as training does, or take turns with a few resident batches, so that reading does not
//! matter. The trained weights are discarded. `time_to_auc.rs` measures a whole run instead.

mod evaluation;
mod report;
mod time_to_auc;
mod trace;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rankine_backend::{Backend, DeviceMemory, Profile};
use rankine_base::Stop;
use rankine_job::Job;
use rankine_launch::{ProcessGroup, RunStage};
use rankine_model::overlap::Overlap;
use rankine_model::translate;
use rankine_reader::stream::BatchStream;
use rankine_reader::{Dataset, Part, Samples};

use super::backend::{DeviceChoice, InitializedDevice, Measurements, thread_pool};
use super::data::{open_together, train_options};
use super::error::{BenchError, TrainError};
use super::event::Observer;
use super::power::{MeteredGpus, PowerSampler, PowerUse};
use super::processes::RankAssignment;

pub use evaluation::{EvalBench, EvalBenchOptions, bench_eval};
pub use report::{Input, Reading, Times, TraceSummary, TrainBench};
pub use time_to_auc::{TimeToAuc, TimeToAucOptions, TimedEvaluation, bench_time_to_auc};

/// Most batches that are resident.
const RESIDENT_BATCHES: usize = 3;
/// Most steps that the first loss, and the last one, is the mean of.
const LOSS_STEPS: usize = 50;
/// Steps that are traced.
const TRACED_STEPS: usize = 5;

/// Options for timing the steps of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainBenchOptions {
    /// Steps before those that count.
    pub warm_up: usize,
    /// Steps that count.
    pub steps: usize,
    /// Whether batches are resident on the device instead of being read.
    pub resident: bool,
    /// Where to write a trace of a few steps, as Chrome and Perfetto show it. GPUs only.
    pub trace: Option<PathBuf>,
    /// Overlaps to disable, to see what they gain. GPUs only.
    pub without: Vec<Overlap>,
}

impl Default for TrainBenchOptions {
    fn default() -> Self {
        Self { warm_up: 50, steps: 1000, resident: false, trace: None, without: Vec::new() }
    }
}

/// Times the steps of a job. Several processes may train together: then all of them call this. Generates the job's
/// dataset if it is missing and the job says how.
///
/// # Errors
/// As [`super::train`]; [`TrainError::Bench`] if the training part does not fill a batch, or a trace cannot be
/// taken.
pub fn bench_train(
    job: &Job,
    options: &TrainBenchOptions,
    processes: &ProcessGroup,
    observer: &mut dyn Observer,
) -> Result<TrainBench, TrainError> {
    if options.trace.is_some() && processes.size() > 1 {
        return Err(BenchError::SeveralProcesses.into());
    }
    // What stands in the way is found out before the steps.
    options.trace.as_deref().map_or(Ok(()), |path| trace::TRACE.check(path))?;
    let (job, assignment) = RankAssignment::of(job, processes, 0)?;
    let job = &job;
    let dataset = open_together(job, processes, &Stop::default(), None, observer)?;
    let model = translate(job, dataset.schema()).map_err(TrainError::Conflicts)?;
    let (samples, batch_size) = (dataset.samples(Part::Train), u64::from(job.train.batch_size.get()));
    if samples < batch_size {
        return Err(BenchError::TooFewSamples { samples, batch_size }.into());
    }
    let choice = DeviceChoice::of(job, &assignment, &dataset, &model, &Measurements::default())?
        .without(&options.without);
    let (pool, threads) = thread_pool(job)?;
    pool.install(|| {
        let InitializedDevice { mut backend, name: device, .. } =
            choice.initialize(job, &dataset, &model, threads, &Measurements::default())?;
        if options.trace.is_some() && backend.profile().is_none() {
            return Err(BenchError::NoTrace { device }.into());
        }
        if !options.without.is_empty() && backend.profile().is_none() {
            return Err(BenchError::NoOverlap { device }.into());
        }
        processes.does(RunStage::Measuring, 0);
        let memory = backend.memory()?;
        let gpus = MeteredGpus::of(&memory);
        let measured = if options.resident {
            resident(job, &dataset, options, (&mut *backend, gpus))?
        } else {
            reading(job, &dataset, options, (&mut *backend, gpus))?
        };
        let Measurement { input, samples, host_ms, device_ms, losses, seconds, power, trace } = measured;
        let power = PowerUse::of_all(power, processes)?.summary(samples);
        let tier = backend.tier_traffic()?;
        let times = backend.profile().map(Profile::time_phases).transpose()?;
        let (phases, ceilings) =
            times.map_or((Vec::new(), None), |(phases, ceilings)| (phases, Some(ceilings)));
        processes.wait("the end of the measurement")?;
        let most = (losses.len() / 10).clamp(1, LOSS_STEPS);
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let loss =
            (losses.len() >= most).then(|| [mean(&losses[..most]), mean(&losses[losses.len() - most..])]);
        Ok(TrainBench {
            name: job.name.to_string(),
            device,
            batch_size,
            without: options.without.iter().map(|overlap| overlap.name().into()).collect(),
            embedding_parameters: backend.spec().embedding_parameters(),
            dense_parameters: backend.spec().dense_parameters() as u64,
            input,
            steps: host_ms.len(),
            iteration: Times::of(host_ms),
            on_device: device_ms.map(Times::of),
            samples_per_second: samples as f64 / seconds,
            seconds,
            loss_at_begin: loss.map(|[begin, _]| begin),
            loss_at_end: loss.map(|[_, end]| end),
            memory: DeviceMemory::fullest(memory),
            tier,
            power,
            ceilings,
            phases,
            trace,
        })
    })
}

/// The timed steps.
struct Measurement {
    input: Input,
    samples: u64,
    host_ms: Vec<f64>,
    device_ms: Option<Vec<f64>>,
    losses: Vec<f64>,
    seconds: f64,
    /// Of the GPUs of this process.
    power: Option<PowerUse>,
    /// Of the steps that followed.
    trace: Option<TraceSummary>,
}

/// Steps over resident batches.
fn resident(
    job: &Job,
    dataset: &Dataset,
    options: &TrainBenchOptions,
    (backend, gpus): (&mut dyn Backend, Option<MeteredGpus>),
) -> Result<Measurement, TrainError> {
    let batch_size = job.train.batch_size.get() as usize;
    let mut batches: Vec<Samples> = Vec::new();
    let stream = train_options(job, job.reader.io_options());
    for batch in BatchStream::open(dataset.part(Part::Train)?, &stream)?.take(RESIDENT_BATCHES) {
        batches.push(batch?.samples.clone());
    }
    // The last batch of an epoch may be shorter.
    batches.retain(|batch| batch.len == batch_size);
    let rate_factor = job.optimizer.schedule.factor(1);
    backend.time_steps(&batches, rate_factor, options.warm_up)?;
    let (began, power) = (Instant::now(), gpus.map(PowerSampler::start));
    let times = backend.time_steps(&batches, rate_factor, options.steps.max(1))?;
    let seconds = began.elapsed().as_secs_f64();
    let power = power.map(|power| power.up_to_now());
    let repeat = |backend: &mut dyn Backend| match backend.profile() {
        Some(profile) => Ok(profile.repeat_steps(TRACED_STEPS)?),
        None => Ok(()),
    };
    let trace = options.trace.as_ref().map(|path| trace::take(backend, path, TRACED_STEPS, repeat));
    Ok(Measurement {
        input: Input::Resident { batches: batches.len() },
        samples: (times.len() * batch_size) as u64,
        device_ms: backend.is_on_gpu().then(|| times.clone()),
        host_ms: times,
        losses: Vec::new(),
        seconds,
        power,
        trace: trace.transpose()?,
    })
}

/// Steps over batches that are read, as in training.
fn reading(
    job: &Job,
    dataset: &Dataset,
    options: &TrainBenchOptions,
    (backend, mut gpus): (&mut dyn Backend, Option<MeteredGpus>),
) -> Result<Measurement, TrainError> {
    let steps = options.steps.max(1);
    let mut stream = train_options(job, job.reader.io_options());
    stream.epochs = None;
    let mut batches = backend.open(dataset.part(Part::Train)?, &stream)?;
    let rung = batches.rung();
    let (mut losses, mut samples, mut waited) = (Vec::new(), 0, Duration::ZERO);
    let (mut moments, mut power) = (Vec::with_capacity(steps + 1), None);
    for step in 1..=options.warm_up + steps {
        if step > options.warm_up && moments.is_empty() {
            // Batches in flight belong to the warm-up.
            backend.take_outcomes(true, &mut |_| ())?;
            losses.clear();
            power = gpus.take().map(PowerSampler::start);
            moments.push(Instant::now());
            backend.profile().map(Profile::mark).transpose()?;
        }
        let began = Instant::now();
        let Some(batch) = batches.next().transpose()? else { break };
        let wait = began.elapsed();
        backend.train_step(&batch, job.optimizer.schedule.factor(step as u64))?;
        backend.take_outcomes(false, &mut |outcome| losses.push(outcome.loss))?;
        if !moments.is_empty() {
            moments.push(Instant::now());
            backend.profile().map(Profile::mark).transpose()?;
            waited += wait;
            samples += batch.samples() as u64;
        }
    }
    backend.take_outcomes(true, &mut |outcome| losses.push(outcome.loss))?;
    let seconds = moments[0].elapsed().as_secs_f64();
    let power = power.map(|power| power.up_to_now());
    let more = |backend: &mut dyn Backend| {
        for step in 1..=TRACED_STEPS {
            let Some(batch) = batches.next().transpose()? else { break };
            let number = options.warm_up + steps + step;
            backend.train_step(&batch, job.optimizer.schedule.factor(number as u64))?;
        }
        Ok(backend.take_outcomes(true, &mut |_| ())?)
    };
    let trace = options.trace.as_ref().map(|path| trace::take(backend, path, TRACED_STEPS, more));
    let host_ms = moments.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3);
    let reading = Reading {
        rung: rung.to_string(),
        samples: dataset.samples(Part::Train),
        reader_wait_share: waited.as_secs_f64() / seconds,
    };
    Ok(Measurement {
        input: Input::Read(reading),
        samples,
        host_ms: host_ms.collect(),
        device_ms: backend.profile().map(|profile| profile.ms_between_marks()).transpose()?,
        losses,
        seconds,
        power,
        trace: trace.transpose()?,
    })
}
