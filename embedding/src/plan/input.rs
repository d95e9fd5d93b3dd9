//! The input of a plan: tables with their frequencies, ranks, and what each rank does besides the tables.

use rankine_topology::Topology;
use serde::Serialize;

use super::machine::Machine;
use crate::frequency::{BagLengths, FrequencyProfile};
use crate::optimizer::UpdateRule;
use crate::placement::{Exchange, Placement};
use crate::table::TableSpec;
use crate::traffic::{FACTOR_BYTES, KEY_BYTES};

/// The input of a plan.
#[derive(Debug)]
pub struct PlanInput<'a> {
    /// The tables.
    pub tables: Vec<TableInput<'a>>,
    /// Samples per iteration, over all ranks.
    pub batch_size: u64,
    /// The ranks.
    pub topology: Topology,
    /// Their speed.
    pub machine: &'a Machine,
    /// Everything but the tables.
    pub rest: NonTableLoad,
}

/// A table to be placed.
#[derive(Debug)]
pub struct TableInput<'a> {
    /// The table.
    pub spec: &'a TableSpec,
    /// Its update rule, which determines the state per row.
    pub rule: UpdateRule,
    /// The bags of each feature that looks it up.
    pub features: Vec<&'a BagLengths>,
    /// Whether the ids of some feature have weights: then a factor is sent with each id of a bag.
    pub weighted: bool,
    /// How often its rows are looked up.
    pub profile: &'a FrequencyProfile,
    /// Its required placement; if `None`, the planner chooses.
    pub placement: Option<Placement>,
    /// Its required exchange; if `None`, the planner chooses.
    pub exchange: Option<Exchange>,
    /// The number of frequent rows if it is hybrid: this many of the most frequent known rows, or fewer if some that
    /// follow are about equally frequent. If `None`, the planner chooses.
    pub frequent_rows: Option<u64>,
    /// For how many rows a rank needs memory, if host memory has some of those that it owns.
    pub device_rows: Option<u64>,
}

impl TableInput<'_> {
    /// Bytes of an id of a bag that is sent to owners that pool.
    pub(super) fn id_bytes(&self) -> f64 {
        (KEY_BYTES + if self.weighted { FACTOR_BYTES } else { 0 }) as f64
    }
}

/// What a rank stores and does per iteration in addition to the tables.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NonTableLoad {
    /// Memory.
    pub memory: NonTableMemory,
    /// Operations of matrix products.
    pub flops: f64,
    /// Matrix products.
    pub matmuls: u64,
    /// Bytes read from and written to memory.
    pub memory_traffic_bytes: f64,
    /// Elements of dense gradients, which are all-reduced.
    pub reduced_elements: u64,
}

/// Memory of a rank for everything but the tables, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct NonTableMemory {
    /// Dense parameters.
    pub parameter_bytes: u64,
    /// Their gradients.
    pub gradient_bytes: u64,
    /// Their optimizer state.
    pub state_bytes: u64,
    /// Activations and their gradients.
    pub activation_bytes: u64,
    /// Batches of samples.
    pub batch_bytes: u64,
    /// Which ids have which rows of dynamic tables.
    pub membership_bytes: u64,
}

impl NonTableMemory {
    /// The sum of all parts.
    pub fn bytes(&self) -> u64 {
        let Self {
            parameter_bytes,
            gradient_bytes,
            state_bytes,
            activation_bytes,
            batch_bytes,
            membership_bytes,
        } = self;
        parameter_bytes + gradient_bytes + state_bytes + activation_bytes + batch_bytes + membership_bytes
    }
}
