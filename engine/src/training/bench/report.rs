//! The results of a training benchmark.

use serde::Serialize;

use rankine_backend::{Ceilings, DeviceMemory, MeasuredPhase};
use rankine_embedding::TierTraffic;

use crate::training::power::PowerSummary;

/// The time that the steps of a job took, and how it was spent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainBench {
    /// The job's name.
    pub name: String,
    /// The device.
    pub device: String,
    /// Samples per step.
    pub batch_size: u64,
    /// The disabled overlaps, by name.
    pub without: Vec<String>,
    /// Parameters of the tables.
    pub embedding_parameters: u64,
    /// Parameters of the MLPs.
    pub dense_parameters: u64,
    /// Where batches came from.
    pub input: Input,
    /// Steps timed.
    pub steps: usize,
    /// A step by the host's clock: from the start of one step to the start of the next. By the GPU's clock if
    /// batches are resident there.
    #[serde(flatten)]
    pub iteration: Times,
    /// A step by the GPU's clock: from the end of one to the end of the next.
    pub on_device: Option<Times>,
    /// Over all steps.
    pub samples_per_second: f64,
    /// Wall-clock time of all timed steps.
    pub seconds: f64,
    /// The mean loss of the first steps; absent with resident batches.
    pub loss_at_begin: Option<f64>,
    /// That of the last ones.
    pub loss_at_end: Option<f64>,
    /// The device memory that the job uses, if the device has its own.
    pub memory: Option<DeviceMemory>,
    /// What was copied between the GPUs of this process and host memory, warm-up included; absent if the GPUs store all
    /// rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierTraffic>,
    /// The power of the GPUs during these steps; absent on the CPU, and without NVML.
    pub power: Option<PowerSummary>,
    /// The ceilings of the GPU, measured in this run.
    pub ceilings: Option<Ceilings>,
    /// The phases of a step, each by itself on the GPU, in their order. In a step, some overlap.
    pub phases: Vec<MeasuredPhase>,
    /// The results of a trace.
    pub trace: Option<TraceSummary>,
}

impl TrainBench {
    /// Returns the sum of the times of all phases, in milliseconds.
    pub fn phases_ms(&self) -> f64 {
        self.phases.iter().map(|phase| phase.ms).sum()
    }
}

/// Where batches came from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// They were resident.
    Resident {
        /// Number of resident batches.
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
    /// Samples of the training part, after which they repeat.
    pub samples: u64,
    /// The share of the time that the host waited for a batch.
    pub reader_wait_share: f64,
}

/// Times of repeated measurements, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    /// The median.
    pub ms_per_iteration: f64,
    /// The 10th percentile.
    pub ms_p10: f64,
    /// The 99th percentile.
    pub ms_p99: f64,
    /// The mean. It says more than the median if steps alternate between waiting for the reader and not.
    pub ms_mean: f64,
}

impl Times {
    /// Of at least one time.
    pub(super) fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let quantile = |share: f64| times[(share * (times.len() - 1) as f64).round() as usize];
        let ms_mean = times.iter().sum::<f64>() / times.len() as f64;
        Self { ms_per_iteration: quantile(0.5), ms_p10: quantile(0.1), ms_p99: quantile(0.99), ms_mean }
    }
}

/// The results of a trace of a few steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceSummary {
    /// The file.
    pub path: String,
    /// Steps in it.
    pub iterations: usize,
    /// Kernels per step.
    pub kernels_per_iteration: f64,
    /// The share of the time in which no kernel ran on any lane; copies and fills do not count.
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
