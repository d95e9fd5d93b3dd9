//! The choice of a placement for every table.
//!
//! A greedy pass takes tables in turn, largest first, and gives each the choice that adds the least cost; then tables
//! are moved one by one as long as that makes the slowest rank faster. This is done for each placement separately,
//! with either exchange and with both, and then for all placements together, starting from the best of these: so a
//! plan is never slower than any that places all tables the same way. The number of steps is bounded, ties go to the
//! first candidate, and nothing is random.

use std::cmp::Ordering;

use rankine_topology::{Rank, Topology};

use super::choice::Choice;
use super::cost::{Context, Load, Parts, TableCosts};
use super::error::MemoryShortage;
use super::input::{NonTableLoad, PlanInput};
use crate::optimizer::UpdateRule;
use crate::placement::{Exchange, Placement, TablePlan};

/// The most passes over all tables, in each of which every table may be moved.
const PASSES_MAX: usize = 4;
/// Owners that are tried for a table: the least busy ranks, and those with the most free memory.
const BUSY_OWNERS_TRIED: usize = 6;
const FULL_OWNERS_TRIED: usize = 2;
/// Besides the best split, smaller sets of frequent rows are tried, each this many times smaller than the one before.
const SPLIT_STEP: u64 = 8;
const SPLITS_TRIED: usize = 3;
/// Relative differences below this count as equal.
const TOLERANCE: f64 = 1e-9;

/// The allowed placements, where the job does not fix them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Restriction {
    pub(super) placement: Option<Placement>,
    pub(super) exchange: Option<Exchange>,
}

/// The quality of a plan: less is better, compared in order of the fields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Score {
    /// Bytes of missing memory.
    excess: f64,
    /// Seconds of the slowest rank.
    pub(super) slowest: f64,
    /// Mean seconds over all ranks.
    mean: f64,
}

/// The basis of all choices.
#[derive(Debug)]
pub(super) struct Search<'a> {
    pub(super) context: Context<'a>,
    pub(super) tables: Vec<TableCosts<'a>>,
    /// The splits to try for each table and exchange, in the order of [`Exchange::ALL`].
    splits: Vec<[Vec<usize>; 2]>,
    /// Tables in the order in which the greedy pass takes them.
    order: Vec<usize>,
}

/// Choices, one per table.
type Choices = Vec<Choice>;

impl<'a> Search<'a> {
    pub(super) fn new(input: &'a PlanInput<'a>) -> Self {
        let context = Context::new(input.topology, input.machine, input.rest, input.batch_size);
        let tables: Vec<_> = input.tables.iter().map(|table| TableCosts::new(table, context)).collect();
        let splits =
            tables.iter().map(|costs| Exchange::ALL.map(|exchange| splits(costs, exchange))).collect();
        let mut order: Vec<_> = (0..tables.len()).collect();
        let bytes = |&table: &usize| {
            let costs = &tables[table];
            costs.bytes(costs.input.spec.rows, costs.input.spec.dim, costs.input.rule)
        };
        order.sort_by(|a, b| bytes(b).total_cmp(&bytes(a)).then(a.cmp(b)));
        Self { context, tables, splits, order }
    }

    /// The best choices found, and their cost.
    pub(super) fn run(&self) -> (Choices, Load) {
        let choices = if self.context.topology.ranks() == 1 {
            vec![Choice::replicated(); self.tables.len()]
        } else {
            self.solve(Restriction::default())
        };
        let load = self.load(&choices);
        (choices, load)
    }

    /// The best choices under a restriction.
    fn solve(&self, restriction: Restriction) -> Choices {
        let narrower: Vec<_> = match restriction {
            Restriction { placement: None, .. } => {
                let of = |placement| Restriction { placement: Some(placement), ..restriction };
                Placement::ALL.map(of).to_vec()
            }
            // A replicated table is not exchanged.
            Restriction { placement: Some(Placement::Replicated), .. } => Vec::new(),
            Restriction { exchange: None, .. } => {
                Exchange::ALL.map(|exchange| Restriction { exchange: Some(exchange), ..restriction }).to_vec()
            }
            Restriction { exchange: Some(_), .. } => Vec::new(),
        };
        let starts = narrower.into_iter().map(|restriction| self.solve(restriction));
        let starts = starts.chain([self.greedy(restriction)]).map(|choices| {
            let score = self.score(&self.load(&choices));
            (choices, score)
        });
        let mut best: Option<(Choices, Score)> = None;
        for (choices, score) in starts {
            if best.as_ref().is_none_or(|(_, least)| score.is_less(least)) {
                best = Some((choices, score));
            }
        }
        let (mut choices, score) = best.expect("the greedy pass makes choices");
        let start = choices.clone();
        self.improve(restriction, &mut choices);
        // Sums that were subtracted and added again may differ in the last bits.
        if score.is_less(&self.score(&self.load(&choices))) { start } else { choices }
    }

    fn greedy(&self, restriction: Restriction) -> Choices {
        let mut choices = vec![Choice::replicated(); self.tables.len()];
        let mut totals = Load::none(&self.context);
        for &table in &self.order {
            let mut best: Option<(Choice, Load, Score)> = None;
            for choice in self.candidates(table, restriction, &totals) {
                let load = self.tables[table].load(&choice);
                let mut score = self.score_with(&totals, &load);
                // As long as few ranks are busy, the slowest one says little.
                score.slowest += score.mean;
                if best.as_ref().is_none_or(|(.., least)| score.is_less(least)) {
                    best = Some((choice, load, score));
                }
            }
            let (choice, load, _) = best.expect("every table can be placed somehow");
            totals += &load;
            choices[table] = choice;
        }
        choices
    }

    /// Moves tables one by one while that helps.
    fn improve(&self, restriction: Restriction, choices: &mut Choices) {
        let mut totals = self.load(choices);
        let mut score = self.score(&totals);
        for _ in 0..PASSES_MAX {
            let mut moved = false;
            for &table in &self.order {
                let own = self.tables[table].load(&choices[table]);
                let mut without = totals.clone();
                without -= &own;
                let mut best: Option<(Choice, Load)> = None;
                for choice in self.candidates(table, restriction, &without) {
                    if choice == choices[table] {
                        continue;
                    }
                    let load = self.tables[table].load(&choice);
                    let with = self.score_with(&without, &load);
                    if with.is_less(&score) {
                        (best, score) = (Some((choice, load)), with);
                    }
                }
                if let Some((choice, load)) = best {
                    choices[table] = choice;
                    without += &load;
                    (totals, moved) = (without, true);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// The candidates for a table, given the cost of the others.
    fn candidates(&self, table: usize, restriction: Restriction, others: &Load) -> Choices {
        let input = self.tables[table].input;
        let placement = input.placement.or(restriction.placement);
        let exchange = input.exchange.or(restriction.exchange);
        self.every_candidate(table, Restriction { placement, exchange }, others)
    }

    /// The candidates for a table, whether the job allows them or not.
    pub(super) fn every_candidate(&self, table: usize, restriction: Restriction, others: &Load) -> Choices {
        let Restriction { placement, exchange } = restriction;
        let input = self.tables[table].input;
        let exchanges: Vec<_> =
            Exchange::ALL.into_iter().filter(|&one| exchange.is_none_or(|only| only == one)).collect();
        // If a job demands something that the machine cannot do, training reports the error.
        let pools_all = self.context.machine.pools_all || input.exchange == Some(Exchange::Pooled);
        let pools = pools_all || self.context.topology.nodes() == 1;
        let rowwise = input.rule.is_rowwise();
        let possible = |pooled: bool| {
            let kept = |exchange: &Exchange| pools_all || pools && pooled || *exchange == Exchange::Rows;
            let kept: Vec<_> = exchanges.iter().copied().filter(kept).collect();
            if kept.is_empty() { vec![Exchange::Rows] } else { kept }
        };
        let mut found = Vec::new();
        for one in Placement::ALL.into_iter().filter(|&one| placement.is_none_or(|only| only == one)) {
            match one {
                Placement::Replicated => found.push(Choice::replicated()),
                Placement::RowWise => found.extend(possible(true).into_iter().map(Choice::row_wise)),
                Placement::Hybrid => {
                    for exchange in possible(false) {
                        let splits = &self.splits[table][exchange as usize];
                        // Without frequent rows it is row-wise, unless the job demands hybrid.
                        let demanded = input.placement == Some(Placement::Hybrid);
                        let none = |split| split == 0 && !demanded;
                        found.extend(splits.iter().map(|&split| match none(split) {
                            true => Choice::row_wise(exchange),
                            false => Choice::hybrid(exchange, split),
                        }));
                    }
                }
                Placement::TableWise => {
                    let owners = self.owners(others);
                    for exchange in possible(true) {
                        found.extend(owners.iter().map(|&owner| Choice::table_wise(exchange, owner)));
                    }
                }
                Placement::ColumnWise => {
                    for owners in self.column_owners(input.spec.dim, others) {
                        let exchanges = possible(!rowwise).into_iter();
                        found.extend(exchanges.map(|e| Choice::column_wise(e, owners.clone())));
                    }
                }
            }
        }
        found
    }

    /// Ranks that could own a table.
    fn owners(&self, others: &Load) -> Vec<Rank> {
        let (by_time, by_memory) = self.idle(others);
        let mut owners: Vec<_> = by_time.into_iter().take(BUSY_OWNERS_TRIED).collect();
        for rank in by_memory.into_iter().take(FULL_OWNERS_TRIED) {
            if !owners.contains(&rank) {
                owners.push(rank);
            }
        }
        owners
    }

    /// Groups of ranks that could own columns of a table.
    fn column_owners(&self, dim: usize, others: &Load) -> Vec<Vec<Rank>> {
        let ranks = self.context.topology.ranks();
        let most = ranks.min(dim.div_ceil(TablePlan::COLUMNS));
        let (by_time, by_memory) = self.idle(others);
        let mut found = Vec::new();
        let mut count = 2;
        while count <= most {
            for ranks in [&by_time, &by_memory] {
                let mut owners = ranks[..count].to_vec();
                owners.sort_unstable();
                if !found.contains(&owners) {
                    found.push(owners);
                }
            }
            count = if count < most { (count * 2).min(most) } else { most + 1 };
        }
        if found.is_empty() {
            found.push(vec![by_time[0]]);
        }
        found
    }

    /// All ranks, ordered by least busy; and all ranks, ordered by most free memory.
    fn idle(&self, others: &Load) -> (Vec<Rank>, Vec<Rank>) {
        let common = others.common(&self.context);
        let machine = self.context.machine;
        let sorted = |key: &dyn Fn(Rank) -> f64| {
            let mut ranks: Vec<_> = self.context.topology.all_ranks().map(|rank| (key(rank), rank)).collect();
            ranks.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            ranks.into_iter().map(|(_, rank)| rank).collect()
        };
        let by_time = sorted(&|rank| others.parts(rank, &common, machine).total(machine));
        let by_memory = sorted(&|rank| others.memory_of(rank, &self.context));
        (by_time, by_memory)
    }

    /// The total cost of choices.
    pub(super) fn load(&self, choices: &[Choice]) -> Load {
        let mut totals = Load::none(&self.context);
        for (table, choice) in self.tables.iter().zip(choices) {
            totals += &table.load(choice);
        }
        totals
    }

    fn score_with(&self, others: &Load, load: &Load) -> Score {
        let mut totals = others.clone();
        totals += load;
        self.score(&totals)
    }

    pub(super) fn score(&self, load: &Load) -> Score {
        let common = load.common(&self.context);
        let machine = self.context.machine;
        let times =
            Rank::first(load.ranks.len()).map(|rank| load.parts(rank, &common, machine).total(machine));
        let (mut slowest, mut sum) = (0.0, 0.0);
        for time in times {
            slowest = f64::max(slowest, time);
            sum += time;
        }
        Score { excess: load.excess(&self.context), slowest, mean: sum / load.ranks.len() as f64 }
    }

    /// The slowest rank, and the parts of its time.
    pub(super) fn slowest(&self, load: &Load) -> (Rank, Parts) {
        let common = load.common(&self.context);
        let machine = self.context.machine;
        let parts = Rank::first(load.ranks.len()).map(|rank| (rank, load.parts(rank, &common, machine)));
        parts
            .reduce(
                |slowest, other| {
                    if other.1.total(machine) > slowest.1.total(machine) { other } else { slowest }
                },
            )
            .expect("there is at least one rank")
    }
}

/// The splits that are worth trying for a table.
fn splits(costs: &TableCosts<'_>, exchange: Exchange) -> Vec<usize> {
    let profile = costs.input.profile;
    let of_rows =
        |rows| profile.splits().rev().find(|&split| profile.rows_before(split) <= rows).unwrap_or(0);
    if let Some(rows) = costs.input.frequent_rows {
        return vec![of_rows(rows)];
    }
    let best = costs.best_split(exchange);
    let mut found = vec![best];
    let mut rows = profile.rows_before(best);
    while found.len() < SPLITS_TRIED && rows >= SPLIT_STEP {
        rows /= SPLIT_STEP;
        let split = of_rows(rows);
        if !found.contains(&split) {
            found.push(split);
        }
    }
    found
}

impl Score {
    /// Returns whether there is enough memory.
    pub(super) fn fits(&self) -> bool {
        self.excess == 0.0
    }

    /// Returns whether it is better than another one, by more than rounding.
    pub(super) fn is_less(&self, other: &Self) -> bool {
        let compare = |a: f64, b: f64, least: f64| {
            if (a - b).abs() <= (TOLERANCE * a.abs().max(b.abs())).max(least) {
                Ordering::Equal
            } else {
                a.total_cmp(&b)
            }
        };
        let excess = compare(self.excess, other.excess, 1.0);
        let slowest = compare(self.slowest, other.slowest, 0.0);
        excess.then(slowest).then(compare(self.mean, other.mean, 0.0)) == Ordering::Less
    }
}

/// How much memory is missing, and what would help.
pub(super) fn shortage(input: &PlanInput<'_>, search: &Search<'_>, totals: &Load) -> MemoryShortage {
    let needed = |load: &Load, context: &Context<'_>| {
        Rank::first(load.ranks.len()).map(|rank| load.memory_of(rank, context)).fold(0.0, f64::max)
    };
    // Rows in equal parts wherever the job allows it: no plan needs less.
    let spread = |topology: Topology, rule: Option<UpdateRule>, rest: NonTableLoad| -> f64 {
        let context = Context::new(topology, input.machine, rest, input.batch_size);
        let mut load = rest.memory.bytes() as f64;
        for table in &search.tables {
            let input = table.input;
            let (rows, dim) = (input.spec.rows, input.spec.dim);
            let of = |rows| table.bytes(rows, dim, rule.unwrap_or(input.rule));
            load += match input.placement {
                Some(Placement::Replicated | Placement::TableWise) => of(rows),
                _ => of(rows.div_ceil(context.topology.ranks() as u64)),
            };
        }
        load
    };
    let memory = input.machine.memory_bytes as f64;
    let (ranks, per_node) = (input.topology.ranks(), input.topology.ranks_per_node());
    let fits = |nodes: usize| {
        let topology = Topology::new(nodes * per_node, nodes).ok()?;
        (spread(topology, None, input.rest) <= memory).then_some(nodes * per_node)
    };
    const NODES_MAX: usize = 4096;
    let mut more_nodes = input.topology.nodes() + 1..=NODES_MAX;
    let ranks_that_fit = if input.machine.memory_is_shared { None } else { more_nodes.find_map(fits) };
    let rowwise = UpdateRule::RowwiseAdagrad { initial_accumulator: 0.0, epsilon: 1e-8 };
    let least = spread(input.topology, None, input.rest);
    let with_rowwise = spread(input.topology, Some(rowwise), input.rest);
    let mut forced: Vec<_> = input
        .tables
        .iter()
        .zip(&search.tables)
        .filter_map(|(table, costs)| {
            let placement =
                table.placement.filter(|one| matches!(one, Placement::Replicated | Placement::TableWise))?;
            Some((
                costs.bytes(table.spec.rows, table.spec.dim, table.rule),
                table.spec.name.clone(),
                placement,
            ))
        })
        .filter(|_| ranks > 1)
        .collect();
    forced.sort_by(|a, b| b.0.total_cmp(&a.0));
    MemoryShortage {
        ranks,
        needed_bytes: needed(totals, &search.context) as u64,
        memory_bytes: input.machine.memory_bytes,
        memory_is_shared: input.machine.memory_is_shared,
        rest_bytes: input.rest.memory.bytes(),
        ranks_that_fit,
        rowwise_state_bytes: (with_rowwise < least).then_some(with_rowwise as u64),
        forced: forced.into_iter().map(|(_, name, placement)| (name, placement)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_before_the_slowest_rank_and_that_before_the_mean() {
        let score = |excess, slowest, mean| Score { excess, slowest, mean };
        let worse_and_worse = [
            score(0.0, 1.0, 1.0),
            score(0.0, 1.0, 2.0),
            score(0.0, 2.0, 1.0),
            score(2.0, 1.0, 1.0),
            score(4.0, 0.5, 0.5),
        ];
        for (at, one) in worse_and_worse.iter().enumerate() {
            for (other_at, other) in worse_and_worse.iter().enumerate() {
                assert_eq!(one.is_less(other), at < other_at, "{one:?} and {other:?}");
            }
        }
        // A byte of memory and a relative difference within the tolerance count as rounding: the next field decides.
        let rounded = 1.0 + TOLERANCE / 2.0;
        assert!(score(1.0, 1.0, 1.0).is_less(&score(0.0, 2.0, 1.0)));
        assert!(score(0.0, rounded, 1.0).is_less(&score(0.0, 1.0, 2.0)));
        assert!(!score(0.0, 1.0, 1.0).is_less(&score(0.0, 1.0, rounded)));
        assert!(score(0.0, 1.0, 1.0).fits() && !score(1.0, 1.0, 1.0).fits());
    }
}
