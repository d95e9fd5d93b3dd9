//! Plans of one model for several numbers of nodes, side by side.

use rankine_embedding::plan::{Limit, Machine, PlanError, TimeParts};
use rankine_embedding::{Topology, TopologyError, Traffic};
use serde::Serialize;

use super::Planning;

/// Plans for several numbers of nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sweep {
    /// Ranks of each node.
    pub ranks_per_node: usize,
    /// Whether the batch of all ranks is the same everywhere; else that of each rank is.
    pub fixed_batch: bool,
    /// One a number of nodes.
    pub points: Vec<SweepPoint>,
}

/// What is expected of a number of nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepPoint {
    /// Nodes.
    pub nodes: usize,
    /// Ranks in all.
    pub ranks: usize,
    /// Samples of an iteration, over all ranks.
    pub batch_size: u64,
    /// The parts of an iteration; absent where the model does not fit.
    pub iteration: Option<TimeParts>,
    /// Samples that all ranks train on in a second.
    pub samples_per_second: Option<f64>,
    /// Samples a second and rank over those of the first number of nodes that fits.
    pub efficiency: Option<f64>,
    /// What limits the iteration.
    pub limit: Limit,
    /// What crosses between ranks to exchange rows in an iteration.
    pub traffic: Option<Traffic>,
    /// Bytes that the fullest rank needs.
    pub needed_bytes: u64,
    /// How many tables are placed in each way, in the order of [`rankine_embedding::Placement::ALL`].
    pub placements: Option<[usize; 5]>,
}

/// Plans for each of some numbers of nodes with `ranks_per_node` ranks each.
///
/// # Errors
/// [`TopologyError`] where a number of nodes is 0.
pub fn sweep(
    planning: &Planning,
    machine: &Machine,
    ranks_per_node: usize,
    nodes: &[usize],
    batch: SweepBatch,
) -> Result<Sweep, TopologyError> {
    let mut points: Vec<SweepPoint> = Vec::new();
    for &nodes in nodes {
        let topology = Topology::new(nodes * ranks_per_node, nodes)?;
        let ranks = topology.ranks();
        let batch_size = match batch {
            SweepBatch::All(samples) => samples,
            SweepBatch::PerRank(samples) => (samples * ranks as f64).round() as u64,
        };
        let mut point = SweepPoint {
            nodes,
            ranks,
            batch_size,
            iteration: None,
            samples_per_second: None,
            efficiency: None,
            limit: Limit::MemoryCapacity,
            traffic: None,
            needed_bytes: 0,
            placements: None,
        };
        match planning.plan(topology, machine, batch_size) {
            Err(PlanError::Memory(shortage)) => point.needed_bytes = shortage.needed_bytes,
            Ok(planned) => {
                let report = planned.report;
                let first = points.iter().find_map(|point| Some((point.samples_per_second?, point.ranks)));
                let (first, of_ranks) = first.unwrap_or((report.samples_per_second, ranks));
                let per_rank = report.samples_per_second / ranks as f64;
                let of =
                    |placement| report.tables.iter().filter(|table| table.placement == placement).count();
                point = SweepPoint {
                    iteration: Some(report.iteration),
                    samples_per_second: Some(report.samples_per_second),
                    efficiency: Some(per_rank / (first / of_ranks as f64)),
                    limit: report.limit,
                    traffic: Some(report.traffic),
                    needed_bytes: report.memory.needed_bytes,
                    placements: Some(rankine_embedding::Placement::ALL.map(of)),
                    ..point
                };
            }
        }
        points.push(point);
    }
    Ok(Sweep { ranks_per_node, fixed_batch: matches!(batch, SweepBatch::All(_)), points })
}

/// What stays the same over numbers of nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SweepBatch {
    /// Samples of an iteration, over all ranks.
    All(u64),
    /// Samples of each rank.
    PerRank(f64),
}
