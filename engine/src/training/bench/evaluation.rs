//! How long evaluating a job's model takes: reading the evaluation part, and with that on the GPUs already.

use std::time::Instant;

use rankine_reader::Part;
use serde::Serialize;

use super::super::data::open_together;
use super::super::evaluate::{EvaluationOptions, evaluate};
use super::super::fit::thread_pool;
use super::super::learner::Choice;
use super::super::recorded::Recorded;
use super::super::seats::Seats;
use super::super::translate::translate;
use super::super::{DeviceMemory, Observer, Stop, TrainError};
use crate::evaluation::EvalMetrics;
use crate::job::Job;
use crate::launch::{Phase, ProcessGroup};

/// How to time evaluations.
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

/// How long evaluating a model took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalBench {
    /// The job's name.
    pub name: String,
    /// What computed.
    pub device: String,
    /// Samples of the evaluation part.
    pub samples: u64,
    /// Samples that are scored at a time, at most.
    pub batch_size: u64,
    /// Seconds of the first evaluation, which reads.
    pub first_seconds: f64,
    /// Seconds of each of those after it. Where the part fits on the GPUs it stays there, and they read nothing.
    pub seconds: Vec<f64>,
    /// The median of these.
    pub seconds_median: f64,
    /// Samples over that.
    pub samples_per_second: f64,
    /// What evaluating came to, for a model that has learnt nothing.
    pub metrics: EvalMetrics,
    /// What the job takes of the device's memory, where that is not the host's.
    pub memory: Option<DeviceMemory>,
}

/// Times evaluations of a job's model as training begins with it, which several processes may do together: then all of
/// them call this. Makes the job's dataset where it is not there and the job says how.
///
/// # Errors
/// As [`super::super::train`]; [`TrainError::Device`] where there is nothing to evaluate on, or no pass is wanted.
pub fn bench_eval(
    job: &Job,
    options: &EvalBenchOptions,
    processes: &ProcessGroup,
    observer: &mut dyn Observer,
) -> Result<EvalBench, TrainError> {
    let (job, seats) = Seats::of(job, processes)?;
    let job = &job;
    let dataset = open_together(job, processes, &Stop::default(), observer)?;
    let (spec, rules) = translate(job, dataset.schema()).map_err(TrainError::Conflicts)?;
    let samples = dataset.samples(Part::Eval);
    if samples == 0 {
        return Err(TrainError::Device(
            "the dataset has no evaluation part: convert with --split, or set data.generate.eval_samples"
                .into(),
        ));
    }
    if options.passes == 0 {
        return Err(TrainError::Device("a measurement needs at least one pass".into()));
    }
    let choice = Choice::of(job, &seats, &dataset, (&spec, &rules), &Recorded::default())?;
    let (pool, threads) = thread_pool(job)?;
    pool.install(|| {
        let (mut learner, device) =
            choice.initialize(job, &dataset, (&spec, &rules), threads, &Recorded::default())?;
        // GPUs have room for a batch of training.
        let most = if learner.is_on_gpu() { job.train.batch_size.get() } else { u32::MAX };
        let batch_size = job.eval.batch_size.get();
        let how = EvaluationOptions { batch_size: batch_size as usize, io: job.reader.io_options() };
        let mut pass = || {
            let began = Instant::now();
            let (heads, _) = evaluate(&mut learner, &dataset, Part::Eval, &how, observer)?;
            Ok::<_, TrainError>((began.elapsed().as_secs_f64(), heads))
        };
        processes.does(Phase::Measuring, 0);
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
            batch_size: u64::from(batch_size.min(most)),
            first_seconds,
            seconds,
            seconds_median,
            samples_per_second: samples as f64 / seconds_median,
            metrics: heads.as_slice().into(),
            memory: learner.memory()?,
        })
    })
}
