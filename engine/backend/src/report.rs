//! What a report of the loss says besides the progress, for monitoring.

use rankine_embedding::membership::DynamicTableState;
use rankine_embedding::{LinkTraffic, RankTraffic};
use serde::{Deserialize, Serialize};

/// Details of a report.
#[derive(Debug, Clone, Default)]
pub struct ReportDetails {
    /// The loss scale; `None` unless the precision is fp16.
    pub loss_scale: Option<f64>,
    /// Bytes that ranks sent each other since this process started; zero with one rank.
    pub exchanged: ExchangedBytes,
    /// The look-ups of a recent batch, table by table. On GPUs each rank's share of the batch counts by itself.
    pub look_ups: Vec<LookUpCount>,
    /// How the phases of a recent iteration ran on the first GPU of this process; empty on the CPU.
    pub phases: Vec<PhaseRun>,
    /// How full dynamic tables are.
    pub dynamic_tables: Vec<DynamicTableState>,
}

impl LookUpCount {
    /// The distinct rows per look-up; `None` without look-ups.
    pub fn distinct_ratio(&self) -> Option<f64> {
        (self.look_ups > 0).then(|| self.distinct_rows as f64 / self.look_ups as f64)
    }
}

/// Bytes that all ranks sent each other in training: requests, vectors, gradients, padding and all-reduces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExchangedBytes {
    /// Between ranks of one node.
    pub within_nodes: u64,
    /// Between ranks of different nodes.
    pub between_nodes: u64,
}

impl From<RankTraffic> for ExchangedBytes {
    fn from(RankTraffic { exchange, reduction }: RankTraffic) -> Self {
        let bytes = |link: LinkTraffic| link.bytes + link.padding_bytes;
        Self {
            within_nodes: bytes(exchange.within_nodes) + bytes(reduction.within_nodes),
            between_nodes: bytes(exchange.between_nodes) + bytes(reduction.between_nodes),
        }
    }
}

/// A part of an iteration on a GPU, among the others: parts overlap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseRun {
    /// Its name.
    pub name: String,
    /// When it began, after the start of the iteration.
    pub begin_ms: f64,
    /// How long it took.
    pub ms: f64,
    /// The least time that the GPU's peak rates, by its data sheet, allow for its bytes and its operations; `None` if
    /// these rates are unknown.
    pub roofline_ms: Option<f64>,
}

/// The look-ups of a table in a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookUpCount {
    /// The table's name.
    pub table: String,
    /// Look-ups; 0 for tables whose owners pool, which GPUs do not count.
    pub look_ups: u64,
    /// Distinct rows among them.
    pub distinct_rows: u64,
}
