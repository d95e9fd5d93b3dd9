//! The time that evaluating a job's model takes: reading the evaluation part, and with it resident on the GPUs.

use std::time::Instant;

use rankine_backend::DeviceMemory;
use rankine_base::Stop;
use rankine_job::Job;
use rankine_launch::{ProcessGroup, RunStage};
use rankine_model::evaluation::{EvalMetrics, JudgedHead};
use rankine_model::translate;
use rankine_reader::Part;
use serde::Serialize;

use crate::training::backend::{DeviceChoice, InitializedDevice, Measurements, thread_pool};
use crate::training::data::open_together;
use crate::training::error::{BenchError, TrainError};
use crate::training::evaluate::{EvaluationOptions, evaluate};
use crate::training::event::Observer;
use crate::training::processes::RankAssignment;

/// Options for timing evaluations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvalBenchOptions {
    /// Evaluations after the first one; the median counts.
    pub passes: usize,
}

impl Default for EvalBenchOptions {
    fn default() -> Self {
        Self { passes: 5 }
    }
}

/// The time that evaluating a model took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalBench {
    /// The job's name.
    pub name: String,
    /// The device.
    pub device: String,
    /// Samples of the evaluation part.
    pub samples: u64,
    /// Largest number of samples that are scored at once.
    pub batch_size: u64,
    /// Seconds of the first evaluation, which reads the data.
    pub first_seconds: f64,
    /// Seconds of each later evaluation. If the part fits on the GPUs it stays there, and these read nothing.
    pub seconds: Vec<f64>,
    /// The median of these.
    pub seconds_median: f64,
    /// Samples per second, by the median.
    pub samples_per_second: f64,
    /// The result of the evaluation, for an untrained model.
    pub metrics: EvalMetrics,
    /// The device memory that the job uses, if the device has its own.
    pub memory: Option<DeviceMemory>,
}

/// Times evaluations of a job's model with its initial weights. Several processes may do it together: then all of
/// them call this. Generates the job's dataset if it is missing and the job says how.
///
/// # Errors
/// As [`crate::training::train`]; [`TrainError::Bench`] if there is no evaluation part, or `passes` is 0.
pub fn bench_eval(
    job: &Job,
    options: &EvalBenchOptions,
    processes: &ProcessGroup,
    observer: &mut dyn Observer,
) -> Result<EvalBench, TrainError> {
    let (job, assignment) = RankAssignment::of(job, processes, 0)?;
    let job = &job;
    let dataset = open_together(job, processes, &Stop::default(), None, observer)?;
    let model = translate(job, dataset.schema()).map_err(TrainError::Conflicts)?;
    let samples = dataset.samples(Part::Eval);
    if samples == 0 {
        return Err(BenchError::NoEvaluationPart.into());
    }
    if options.passes == 0 {
        return Err(BenchError::NoPasses.into());
    }
    let choice = DeviceChoice::of(job, &assignment, &dataset, &model, &Measurements::default())?;
    let (pool, threads) = thread_pool(job)?;
    pool.install(|| {
        let InitializedDevice { mut backend, name: device, .. } =
            choice.initialize(job, &dataset, &model, threads, &Measurements::default())?;
        let batch_size = backend.scored_at_a_time(job);
        let judged = JudgedHead::of_heads(&backend.spec().heads, dataset.schema(), dataset.schema());
        let how = EvaluationOptions { batch_size, io: job.reader.io_options() };
        let mut pass = || {
            let began = Instant::now();
            let (heads, _) = evaluate(&mut *backend, &judged, &dataset, Part::Eval, &how, None, observer)?;
            Ok::<_, TrainError>((began.elapsed().as_secs_f64(), heads))
        };
        processes.does(RunStage::Measuring, 0);
        let (first_seconds, heads) = pass()?;
        let seconds = (0..options.passes).map(|_| Ok(pass()?.0)).collect::<Result<Vec<_>, TrainError>>()?;
        processes.wait("the end of the measurement")?;
        let mut sorted = seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let seconds_median = sorted[sorted.len() / 2];
        Ok(EvalBench {
            name: job.name.to_string(),
            device,
            samples,
            batch_size: batch_size as u64,
            first_seconds,
            seconds,
            seconds_median,
            samples_per_second: samples as f64 / seconds_median,
            metrics: heads.as_slice().into(),
            memory: DeviceMemory::fullest(backend.memory()?),
        })
    })
}
