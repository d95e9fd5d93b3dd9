//! The lines of `metrics.jsonl`.

use serde::Serialize;

use super::super::event::Progress;
use super::super::ids::IdCounts;
use crate::evaluation::EvalMetrics;

/// A report, of the kind `train`.
#[derive(Serialize)]
pub(super) struct TrainRecord<'a> {
    #[serde(flatten)]
    pub(super) progress: Progress,
    /// So far, by column.
    #[serde(skip_serializing_if = "IdCounts::is_empty")]
    pub(super) ids_out_of_range: &'a IdCounts,
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
