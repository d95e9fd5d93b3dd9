//! The lines of `metrics.jsonl`.

use serde::Serialize;

use super::super::event::{Progress, StepTimes};
use super::super::ids::IdCounts;
use super::state::Tally;
use crate::evaluation::EvalMetrics;

/// A report, of the kind `train`.
#[derive(Serialize)]
pub(super) struct TrainRecord<'a> {
    #[serde(flatten)]
    pub(super) progress: Progress,
    /// Since the last report.
    pub(super) phase_seconds: PhaseSeconds,
    /// So far, by column.
    #[serde(skip_serializing_if = "IdCounts::is_empty")]
    pub(super) ids_out_of_range: &'a IdCounts,
}

/// Where the time went.
#[derive(Serialize)]
pub(super) struct PhaseSeconds {
    reading: f64,
    computing: f64,
    awaiting: f64,
    checkpoint: f64,
}

impl From<&Tally> for PhaseSeconds {
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

/// An evaluation, of the kind `eval`.
#[derive(Serialize)]
pub(super) struct EvalRecord<'a> {
    pub(super) step: u64,
    pub(super) seconds: f64,
    #[serde(flatten)]
    pub(super) metrics: &'a EvalMetrics,
    /// Of its samples, by column.
    #[serde(skip_serializing_if = "IdCounts::is_empty")]
    pub(super) ids_out_of_range: &'a IdCounts,
}
