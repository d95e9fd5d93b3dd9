//! Planning: on which ranks the rows of tables should be stored, from how often they are looked up, before anything
//! runs.
//!
//! [`plan`] takes the tables with their frequencies, the ranks and a [`Machine`], and chooses for every table the
//! placement with which the predicted iteration is the shortest and every rank has enough memory. `cost` predicts the
//! cost of a placement for each rank, `search` chooses among placements, `report` gives the reasons. The formulas are
//! in `docs/guide/planning.md`. Nothing here depends on datasets or models, draws random numbers or measures time:
//! the same input gives the same plan on every machine.

mod cost;
#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod counted;
mod machine;
mod report;
mod search;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::frequency::{BagLengths, FrequencyProfile};
use crate::optimizer::UpdateRule;
use crate::placement::{EmbeddingPlan, Exchange, Placement};
use crate::table::TableSpec;
use crate::topology::Topology;

pub use machine::{FrequentSums, LinkSpeed, Machine};
pub use report::{
    Alternative, Limit, MemoryReport, PlanReport, RankReport, ReductionReport, TableReport, TimeParts,
};

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
    pub rest: Rest,
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
    /// How often its rows are looked up.
    pub profile: &'a FrequencyProfile,
    /// Its required placement; if `None`, the planner chooses.
    pub placement: Option<Placement>,
    /// Its required exchange; if `None`, the planner chooses.
    pub exchange: Option<Exchange>,
    /// The number of frequent rows if it is hybrid: this many of the most frequent known rows, or fewer if some that
    /// follow are about equally frequent. If `None`, the planner chooses.
    pub frequent_rows: Option<u64>,
}

/// What a rank stores and does per iteration in addition to the tables.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rest {
    /// Memory.
    pub memory: RestMemory,
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
pub struct RestMemory {
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
}

impl RestMemory {
    /// The sum of all parts.
    pub fn bytes(&self) -> u64 {
        let Self { parameter_bytes, gradient_bytes, state_bytes, activation_bytes, batch_bytes } = self;
        parameter_bytes + gradient_bytes + state_bytes + activation_bytes + batch_bytes
    }
}

/// A plan, and its predicted performance.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The placement of each table.
    pub plan: EmbeddingPlan,
    /// The predictions, and the reasons for each placement.
    pub report: PlanReport,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// There is not enough memory.
    #[error("{0}")]
    Memory(Box<MemoryShortage>),
}

/// How much memory is missing, and what would help.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryShortage {
    /// Number of ranks.
    pub ranks: usize,
    /// Bytes that the fullest rank would need in the plan that needs the least.
    pub needed_bytes: u64,
    /// Bytes that it has.
    pub memory_bytes: u64,
    /// How much of the need is not for tables.
    pub rest_bytes: u64,
    /// The fewest ranks, with as many per node as now, on which the tables fit, if any.
    pub ranks_that_fit: Option<usize>,
    /// Bytes that the fullest rank would need with one number of state per row, if that is less.
    pub rowwise_state_bytes: Option<u64>,
    /// Whether all ranks share one memory.
    pub memory_is_shared: bool,
    /// Tables whose required placement needs more memory than spreading their rows, largest first.
    pub forced: Vec<(String, Placement)>,
}

impl std::fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        write!(
            f,
            "the model does not fit: a rank of {} would need {:.2} GiB, {:.2} GiB of it for everything but the tables, \
             and has {:.2} GiB",
            self.ranks,
            gib(self.needed_bytes),
            gib(self.rest_bytes),
            gib(self.memory_bytes)
        )?;
        if !self.forced.is_empty() {
            let names: Vec<_> =
                self.forced.iter().map(|(name, how)| format!("{name} ({})", how.name())).collect();
            write!(
                f,
                ". Spreading their rows would take less for {}: leave their placement to \"auto\"",
                list(&names)
            )?;
        }
        match self.ranks_that_fit {
            Some(ranks) => write!(f, ". {ranks} ranks would suffice")?,
            None if self.memory_is_shared => {
                f.write_str(". More ranks would not help: they share one memory")?
            }
            None => f.write_str(". More ranks would not help: what every rank needs is already too much")?,
        }
        if let Some(bytes) = self.rowwise_state_bytes {
            let fits = if bytes <= self.memory_bytes { "which fits" } else { "still too much" };
            write!(
                f,
                ". With optimizer.sparse.kind = \"rowwise-adagrad\", one number of state per row, it would be \
                 {:.2} GiB, {fits}",
                gib(bytes)
            )?;
        }
        Ok(())
    }
}

fn list(names: &[String]) -> String {
    const NAMED: usize = 5;
    let mut text = names[..names.len().min(NAMED)].join(", ");
    if names.len() > NAMED {
        text += &format!(" and {} more", names.len() - NAMED);
    }
    text
}

/// Plans the placement of tables. With one rank everything is stored there.
///
/// # Errors
/// [`PlanError::Memory`] if no plan was found that fits.
pub fn plan(input: &PlanInput<'_>) -> Result<Planned, PlanError> {
    let search = search::Search::new(input);
    let (choices, totals) = search.run();
    if totals.excess(&search.context) > 0.0 {
        return Err(PlanError::Memory(Box::new(search::shortage(input, &search, &totals))));
    }
    Ok(report::planned(input, &search, &choices))
}
