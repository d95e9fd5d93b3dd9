//! Where the rows of tables should lie among ranks: planned from how often they are looked up, before anything runs.
//!
//! [`plan`] takes the tables with their frequencies, the ranks and a [`Machine`], and finds for every table the
//! placement with which the predicted iteration is the shortest and every rank's memory suffices. `cost` predicts
//! what a placement costs each rank, `search` chooses among placements, `report` says why. The formulas are in
//! `docs/guide/planning.md`. Nothing here knows datasets or models, draws random numbers or measures time: the same
//! input gives the same plan on every machine.

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

/// All that a plan is made from.
#[derive(Debug)]
pub struct PlanInput<'a> {
    /// The tables.
    pub tables: Vec<TableInput<'a>>,
    /// Samples of an iteration, over all ranks.
    pub batch_size: u64,
    /// The ranks.
    pub topology: Topology,
    /// What they do in a second.
    pub machine: &'a Machine,
    /// Everything but the tables.
    pub rest: Rest,
}

/// A table to be placed.
#[derive(Debug)]
pub struct TableInput<'a> {
    /// The table.
    pub spec: &'a TableSpec,
    /// The rule by which it learns, which says how much state a row has.
    pub rule: UpdateRule,
    /// The bags of each feature that looks it up.
    pub features: Vec<&'a BagLengths>,
    /// How often its rows are looked up.
    pub profile: &'a FrequencyProfile,
    /// How it must be placed; where there is none, the planner chooses.
    pub placement: Option<Placement>,
    /// What must cross between ranks; where there is none, the planner chooses.
    pub exchange: Option<Exchange>,
    /// How many of its rows every rank has where it is hybrid: as many of the most frequent ones as are known, or fewer
    /// where some that follow are about as frequent. Where there is none, the planner chooses.
    pub frequent_rows: Option<u64>,
}

/// What a rank has and does beside the tables in an iteration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rest {
    /// What it has.
    pub memory: RestMemory,
    /// Operations of matrix products.
    pub flops: f64,
    /// Matrix products.
    pub matmuls: u64,
    /// Bytes that go to and from memory.
    pub memory_traffic_bytes: f64,
    /// Elements of dense gradients, which are summed over all ranks.
    pub reduced_elements: u64,
}

/// Memory of a rank beside the tables, in bytes.
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
    /// All of it.
    pub fn bytes(&self) -> u64 {
        let Self { parameter_bytes, gradient_bytes, state_bytes, activation_bytes, batch_bytes } = self;
        parameter_bytes + gradient_bytes + state_bytes + activation_bytes + batch_bytes
    }
}

/// A plan, and what is predicted of it.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Where each table lies.
    pub plan: EmbeddingPlan,
    /// What is expected of it, and why it is so.
    pub report: PlanReport,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Memory does not suffice.
    #[error("{0}")]
    Memory(Box<MemoryShortage>),
}

/// By how much memory falls short, and what would help.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryShortage {
    /// Ranks in all.
    pub ranks: usize,
    /// Bytes that the fullest rank would need in the plan that needs least.
    pub needed_bytes: u64,
    /// Bytes that it has.
    pub memory_bytes: u64,
    /// How much of the need is not of tables.
    pub rest_bytes: u64,
    /// The fewest ranks, as many a node as now, over which the tables fit; none where no number of them suffices.
    pub ranks_that_fit: Option<usize>,
    /// Bytes that the fullest rank would need with one number of state a row, where that is less.
    pub rowwise_state_bytes: Option<u64>,
    /// Whether memory is one that all ranks share.
    pub memory_is_shared: bool,
    /// Tables that must be placed in a way that needs more than spreading their rows, largest first.
    pub forced: Vec<(String, Placement)>,
}

impl std::fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        write!(
            f,
            "the model does not fit: a rank of {} would need {:.2} GiB, {:.2} GiB of it beside the tables, and has \
             {:.2} GiB",
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
            None => f.write_str(
                ". No number of ranks would suffice, since what every rank needs is too much already",
            )?,
        }
        if let Some(bytes) = self.rowwise_state_bytes {
            let fits = if bytes <= self.memory_bytes { "which fits" } else { "still too much" };
            write!(
                f,
                ". With optimizer.sparse.kind = \"rowwise-adagrad\", one number of state a row, it would be {:.2} GiB, \
                 {fits}",
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

/// Plans where tables lie. With one rank everything lies there.
///
/// # Errors
/// [`PlanError::Memory`] where no plan was found that fits.
pub fn plan(input: &PlanInput<'_>) -> Result<Planned, PlanError> {
    let search = search::Search::new(input);
    let (choices, totals) = search.run();
    if totals.excess(&search.context) > 0.0 {
        return Err(PlanError::Memory(Box::new(search::shortage(input, &search, &totals))));
    }
    Ok(report::planned(input, &search, &choices))
}
