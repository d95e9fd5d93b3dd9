//! What a benchmark of training tells.

use serde::Serialize;

use super::super::DeviceMemory;
use super::super::phases::{Ceilings, Phase};

/// How long the steps of a job took, and where the time goes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainBench {
    /// The job's name.
    pub name: String,
    /// What computed.
    pub device: String,
    /// Samples of a step.
    pub batch_size: u64,
    /// What was not done at the same time, by name.
    pub without: Vec<String>,
    /// Parameters of the tables.
    pub embedding_parameters: u64,
    /// Parameters of the MLPs.
    pub dense_parameters: u64,
    /// Where batches came from.
    pub input: Input,
    /// Steps that were timed.
    pub steps: usize,
    /// An iteration, by the host's clock: from one step's beginning to the next one's. By the GPU's where batches lie
    /// ready there.
    #[serde(flatten)]
    pub iteration: Times,
    /// An iteration by the GPU's clock: from one's end to the next one's.
    pub on_device: Option<Times>,
    /// Over all steps.
    pub samples_per_second: f64,
    /// Wall-clock time of all steps that were timed.
    pub seconds: f64,
    /// The mean loss of the first steps; absent where batches lie ready.
    pub loss_at_begin: Option<f64>,
    /// That of the last ones.
    pub loss_at_end: Option<f64>,
    /// What the job takes of the device's memory, where that is not the host's.
    pub memory: Option<DeviceMemory>,
    /// What the GPU reaches at most, measured here and now.
    pub ceilings: Option<Ceilings>,
    /// The parts of an iteration, each alone on the GPU, in their order. In an iteration some run side by side.
    pub phases: Vec<Phase>,
    /// What a trace showed.
    pub trace: Option<TraceSummary>,
}

/// Where batches came from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// They lay ready.
    Resident {
        /// How many took turns.
        batches: usize,
    },
    /// They were read.
    Read(Reading),
}

/// How batches were read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reading {
    /// The rung of the reader's ladder.
    pub rung: String,
    /// Samples of the training part: after so many they come again.
    pub samples: u64,
    /// The share of the time in which the host waited for a batch.
    pub reader_wait_share: f64,
}

/// How long something took each time, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    /// The median.
    pub ms_per_iteration: f64,
    /// A tenth of the times were below.
    pub ms_p10: f64,
    /// One of a hundred was above.
    pub ms_p99: f64,
    /// The mean: what all of them took together says more than the median where steps wait for the reader in turns.
    pub ms_mean: f64,
}

impl Times {
    /// Of one or more.
    pub(super) fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let quantile = |share: f64| times[(share * (times.len() - 1) as f64).round() as usize];
        let ms_mean = times.iter().sum::<f64>() / times.len() as f64;
        Self { ms_per_iteration: quantile(0.5), ms_p10: quantile(0.1), ms_p99: quantile(0.99), ms_mean }
    }
}

/// What a trace of a few iterations showed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceSummary {
    /// The file.
    pub path: String,
    /// Iterations in it.
    pub iterations: usize,
    /// Kernels of an iteration.
    pub kernels_per_iteration: f64,
    /// The share of the time in which no kernel ran on any lane, copies and fills not counted.
    pub kernel_free_share: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_by_their_quantiles() {
        let times = Times::of((0..=100).rev().map(f64::from).collect());
        assert_eq!(times, Times { ms_per_iteration: 50.0, ms_p10: 10.0, ms_p99: 99.0, ms_mean: 50.0 });
        let one = Times::of(vec![2.5]);
        assert_eq!(one, Times { ms_per_iteration: 2.5, ms_p10: 2.5, ms_p99: 2.5, ms_mean: 2.5 });
    }
}
