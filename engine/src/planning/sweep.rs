//! Plans one model for several numbers of nodes, for comparison.

use rankine_embedding::Traffic;
use rankine_embedding::plan::{Limit, Machine, PlanError, TimeParts};
use rankine_topology::{Topology, TopologyError};
use serde::Serialize;

use super::Planning;

/// Plans for several numbers of nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sweep {
    /// Ranks of each node.
    pub ranks_per_node: usize,
    /// Whether the batch over all ranks is the same at every point. Otherwise the batch per rank is.
    pub fixed_batch: bool,
    /// One per number of nodes.
    pub points: Vec<SweepPoint>,
}

/// The plan for one number of nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepPoint {
    /// Nodes.
    pub nodes: usize,
    /// Ranks in all.
    pub ranks: usize,
    /// Samples per step, over all ranks.
    pub batch_size: u64,
    /// The expected time of a step by part; absent if the model does not fit.
    pub iteration: Option<TimeParts>,
    /// Samples per second, over all ranks.
    pub samples_per_second: Option<f64>,
    /// Samples per second and rank, divided by those of the first number of nodes that fits.
    pub efficiency: Option<f64>,
    /// What limits the step time.
    pub limit: Limit,
    /// What ranks exchange for embedding rows per step.
    pub traffic: Option<Traffic>,
    /// Bytes that the rank with the largest share needs.
    pub needed_bytes: u64,
    /// The number of tables with each placement, in the order of [`rankine_embedding::Placement::ALL`].
    pub placements: Option<[usize; 5]>,
}

/// Plans for each number of nodes in `nodes`, with `ranks_per_node` ranks per node.
///
/// # Errors
/// [`TopologyError`] if a number of nodes is 0.
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

/// The batch size that stays the same for all numbers of nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SweepBatch {
    /// Samples per step over all ranks.
    All(u64),
    /// Samples per step and rank.
    PerRank(f64),
}
