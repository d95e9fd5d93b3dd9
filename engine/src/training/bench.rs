//! How long the steps of a job take where the data are no matter: its first batches, over and over.

use std::time::Instant;

use rankine_reader::stream::{BatchStream, Order, StreamOptions};
use rankine_reader::{Part, Samples};
use serde::Serialize;

use super::data::open_or_generate;
use super::evaluate::Scorer;
use super::fit::thread_pool;
use super::learner::Choice;
use super::translate::translate;
use super::{Observer, TrainError};
use crate::job::Job;

/// Batches that steps take turns with.
const BATCHES: usize = 3;

/// How to time the steps of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainBenchOptions {
    /// Steps before those that count.
    pub warm_up: usize,
    /// Steps that count.
    pub steps: usize,
}

impl Default for TrainBenchOptions {
    fn default() -> Self {
        Self { warm_up: 20, steps: 200 }
    }
}

/// How long the steps of a job took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainBench {
    /// The job's name.
    pub name: String,
    /// What computed.
    pub device: String,
    /// Samples of a step.
    pub batch_size: u64,
    /// Parameters of the tables.
    pub embedding_parameters: u64,
    /// Parameters of the MLPs.
    pub dense_parameters: u64,
    /// Batches that steps took turns with.
    pub batches: usize,
    /// Steps that were timed.
    pub steps: usize,
    /// The median, in milliseconds.
    pub ms_per_iteration: f64,
    /// The time that a tenth of the steps did not take.
    pub ms_p10: f64,
    /// The time that one step of a hundred took, or more.
    pub ms_p99: f64,
    /// Samples of a step over the median.
    pub samples_per_second: f64,
    /// Wall-clock time of all steps that were timed.
    pub seconds: f64,
}

/// Times the steps of a job on full batches that lie ready on the device: reading, copying and evaluating are not in
/// it. Makes the job's dataset where it is not there and the job says how.
///
/// # Errors
/// As [`super::train`]; [`TrainError::Device`] where the training part does not fill a batch.
pub fn bench_train(
    job: &Job,
    options: &TrainBenchOptions,
    observer: &mut dyn Observer,
) -> Result<TrainBench, TrainError> {
    let dataset = open_or_generate(job, observer)?;
    let (spec, rules) = translate(job, dataset.schema()).map_err(TrainError::Conflicts)?;
    let batch_size = u64::from(job.train.batch_size.get());
    let stream = StreamOptions {
        order: Order::File,
        io: job.reader.io_options(),
        ..StreamOptions::one_epoch(batch_size as usize)
    };
    let mut batches: Vec<Samples> = Vec::new();
    for batch in BatchStream::open(dataset.part(Part::Train)?, &stream)?.take(BATCHES) {
        batches.push(batch?.samples.clone());
    }
    batches.retain(|batch| batch.len as u64 == batch_size);
    if batches.is_empty() {
        let samples = dataset.samples(Part::Train);
        return Err(TrainError::Device(format!(
            "the training part has {samples} samples, and not one batch of {batch_size}: choose a smaller \
             train.batch_size"
        )));
    }
    let choice = Choice::of(job, &dataset, &spec, &rules)?;
    let (pool, threads) = thread_pool(job)?;
    pool.install(|| {
        let (mut learner, device) = choice.initialize(job, &dataset, spec, &rules, threads)?;
        let rate_factor = job.optimizer.schedule.factor(1);
        learner.time_steps(&batches, rate_factor, options.warm_up)?;
        let began = Instant::now();
        let mut times = learner.time_steps(&batches, rate_factor, options.steps.max(1))?;
        let seconds = began.elapsed().as_secs_f64();
        times.sort_by(f64::total_cmp);
        let quantile = |share: f64| times[(share * (times.len() - 1) as f64).round() as usize];
        let median = quantile(0.5);
        Ok(TrainBench {
            name: job.name.to_string(),
            device,
            batch_size,
            embedding_parameters: learner.spec().embedding_parameters(),
            dense_parameters: learner.spec().dense_parameters() as u64,
            batches: batches.len(),
            steps: times.len(),
            ms_per_iteration: median,
            ms_p10: quantile(0.1),
            ms_p99: quantile(0.99),
            samples_per_second: batch_size as f64 / median * 1e3,
            seconds,
        })
    })
}
