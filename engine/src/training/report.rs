//! What a report of the loss says besides the progress, for monitoring.

use rankine_embedding::LinkTraffic;

use crate::cpu::RankTraffic;

/// Details of a report.
#[derive(Debug, Clone, Default)]
pub struct ReportDetails {
    /// The loss scale; `None` unless the precision is fp16.
    pub loss_scale: Option<f64>,
    /// Bytes that ranks sent each other since this process started; `None` on GPUs, which do not count them.
    pub exchanged: Option<ExchangedBytes>,
    /// The look-ups of the last batch, by table; on GPUs, which do not separate them, those of all tables together.
    pub look_ups: Vec<LookUpCount>,
}

/// Bytes that ranks sent each other: requests, vectors, gradients, padding and all-reduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Look-ups in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookUpCount {
    /// The table; `None` for all tables together.
    pub table: Option<String>,
    /// Look-ups.
    pub look_ups: u64,
    /// Distinct rows among them.
    pub distinct_rows: u64,
}
