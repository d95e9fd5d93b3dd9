//! The lines of `metrics.jsonl`.

use rankine_base::sealed::Checksum;
use rankine_model::evaluation::EvalMetrics;
use rankine_reader::Part;
use serde::{Deserialize, Serialize};

use super::state::Tally;
use crate::training::event::{Progress, StepTimes};
use crate::training::ids::IdCounts;

/// A report, of the kind `train`.
#[derive(Serialize)]
pub(super) struct TrainRecord<'a> {
    #[serde(flatten)]
    pub(super) progress: Progress,
    /// Since the last report.
    pub(super) phase_seconds: RunPhaseSeconds,
    /// So far, by column.
    #[serde(skip_serializing_if = "IdCounts::is_empty")]
    pub(super) ids_out_of_range: &'a IdCounts,
}

/// Where the time between two reports went, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunPhaseSeconds {
    /// Waiting for the reader.
    pub reading: f64,
    /// Computing, or enqueueing on GPUs.
    pub computing: f64,
    /// Waiting for the outcomes of steps.
    pub awaiting: f64,
    /// Waiting for the copy of the state.
    pub checkpoint: f64,
}

impl From<&Tally> for RunPhaseSeconds {
    fn from(tally: &Tally) -> Self {
        let StepTimes { reading, computing, awaiting } = tally.times;
        Self {
            reading: reading.as_secs_f64(),
            computing: computing.as_secs_f64(),
            awaiting: awaiting.as_secs_f64(),
            checkpoint: tally.time.saturating_sub(tally.times.total()).as_secs_f64(),
        }
    }
}

fn is_eval(part: &Part) -> bool {
    *part == Part::Eval
}

/// An evaluation, of the kind `eval`.
#[derive(Serialize)]
pub(super) struct EvalRecord<'a> {
    pub(super) step: u64,
    /// Absent for the evaluation part.
    #[serde(skip_serializing_if = "is_eval")]
    pub(super) part: Part,
    /// The `[[eval.set]]`; absent for the dataset that is trained on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) set: Option<&'a str>,
    /// Identifies the samples.
    #[serde(rename = "samples_checksum")]
    pub(super) samples: Option<Checksum>,
    /// Whether the weights are those of `train.average`; absent if they are not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) averaged: bool,
    pub(super) seconds: f64,
    #[serde(flatten)]
    pub(super) metrics: &'a EvalMetrics,
    /// Of its samples, by column.
    #[serde(skip_serializing_if = "IdCounts::is_empty")]
    pub(super) ids_out_of_range: &'a IdCounts,
}
