//! Planning: on which ranks the rows of tables should be stored, from how often they are looked up, before anything
//! runs.
//!
//! [`plan`] takes the tables with their frequencies, the ranks and a [`Machine`], and chooses for every table the
//! placement with which the predicted iteration is the shortest and every rank has enough memory. `cost` predicts the
//! cost of a placement for each rank, `search` chooses among placements, `report` gives the reasons. `hottest` says
//! how many look-ups the hottest rows serve, and `tier` which rows a device stores whose memory does not hold all. The
//! formulas are in `docs/guide/planning.md`. Nothing here depends on datasets or models, draws random numbers or
//! measures time: the same input gives the same plan on every machine.

mod choice;
mod cost;
mod error;
mod hottest;
mod input;
mod machine;
mod report;
mod search;
#[cfg(test)]
mod tests;
mod tier;

pub use error::{MemoryShortage, PlanError};
pub use hottest::{HottestInput, HottestRows, RowBudget, hottest};
pub use input::{NonTableLoad, NonTableMemory, PlanInput, TableInput};
pub use machine::{FrequentSums, LinkSpeed, Machine};
pub use report::{
    Alternative, Limit, MemoryReport, PlanOutcome, PlanReport, RankReport, ReductionReport, TableReport,
    TimeParts,
};

pub use tier::{
    BudgetTooSmall, DividedTable, LANDING_REGIONS, MOVABLE_ROW_BYTES, STAGING_REGIONS, TableTierReport,
    TierInput, TierReport, TierRequest, divide, row_bytes,
};

/// Plans the placement of tables. With one rank everything is stored there.
///
/// # Errors
/// [`PlanError::Memory`] if no plan was found that fits.
pub fn plan(input: &PlanInput<'_>) -> Result<PlanOutcome, PlanError> {
    let search = search::Search::new(input);
    let (choices, totals) = search.run();
    if totals.excess(&search.context) > 0.0 {
        return Err(PlanError::Memory(Box::new(search::shortage(input, &search, &totals))));
    }
    Ok(report::planned(input, &search, &choices))
}
