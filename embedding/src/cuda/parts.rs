//! Who has which rows of the tables: what has an owner each, and what every rank has.

use std::ops::Range;

use super::error::{Error, Result};
use crate::optimizer::{Optimizer, UpdateRule};
use crate::placement::{EmbeddingPlan, Exchange, FrequentRows, Owner, Shard};
use crate::table::TableSpec;
use crate::topology::Topology;

/// Some columns of rows of a table, and who has them.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) table: usize,
    pub(super) columns: Range<usize>,
    pub(super) held: Held,
}

/// Who has rows.
#[derive(Debug, Clone)]
pub(super) enum Held {
    /// All of a table's rows that are not frequent: each has one owner.
    Owned(Owner),
    /// Every rank has each of these.
    Everywhere(FrequentRows),
}

impl Part {
    /// The parts of tables whose rows all take turns among the ranks.
    pub(super) fn in_turns(tables: &[TableSpec]) -> Vec<Self> {
        let whole = |(table, spec): (usize, &TableSpec)| Self {
            table,
            columns: 0..spec.dim,
            held: Held::Owned(Owner::EveryRank),
        };
        tables.iter().enumerate().map(whole).collect()
    }

    /// The parts that a plan makes of tables: those with owners in the order of tables; then what is listed of tables;
    /// then tables that every rank has as a whole.
    pub(super) fn of_plan(
        plan: &EmbeddingPlan,
        tables: &[TableSpec],
        optimizers: &[Optimizer],
    ) -> Result<Vec<Self>> {
        let (mut owned, mut listed, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for (table, (planned, spec)) in plan.tables.iter().zip(tables).enumerate() {
            let everywhere =
                |frequent| Self { table, columns: 0..spec.dim, held: Held::Everywhere(frequent) };
            if planned.frequent.len() == spec.rows {
                whole.push(everywhere(FrequentRows::all(spec.rows)));
                continue;
            }
            if planned.exchange != Exchange::Rows {
                return Err(Error::NotExchanged("bags that owners have pooled"));
            }
            let one_of_many = |shard: &Shard| matches!(shard.owner, Owner::Rank(_));
            let by_columns = planned.shards.len() > 1;
            let rowwise = matches!(optimizers[table].rule, UpdateRule::RowwiseAdagrad { .. });
            if by_columns && !planned.frequent.is_empty() {
                return Err(Error::NotExchanged("frequent rows of tables whose columns several ranks have"));
            }
            if by_columns && rowwise && !planned.shards.iter().all(one_of_many) {
                return Err(Error::NotExchanged("squares of rows whose columns take turns"));
            }
            owned.extend(planned.shards.iter().map(|Shard { columns, owner }| Self {
                table,
                columns: columns.clone(),
                held: Held::Owned(*owner),
            }));
            if !planned.frequent.is_empty() {
                listed.push(everywhere(planned.frequent.clone()));
            }
        }
        Ok([owned, listed, whole].concat())
    }

    /// What is frequent, where that is not the whole table of so many rows.
    pub(super) fn listed(&self, rows: u64) -> Option<&FrequentRows> {
        match &self.held {
            Held::Everywhere(frequent) if frequent.len() < rows => Some(frequent),
            _ => None,
        }
    }

    pub(super) fn is_everywhere(&self) -> bool {
        matches!(self.held, Held::Everywhere(_))
    }

    /// Rows that a rank has of it, where the table has `rows`.
    pub(super) fn rows_at(&self, rank: usize, rows: u64, topology: Topology) -> u64 {
        match &self.held {
            Held::Owned(owner) => owner.rows_at(rank, rows, topology),
            Held::Everywhere(frequent) => frequent.len(),
        }
    }

    /// The most rows that a rank has of it.
    pub(super) fn room(&self, rows: u64, topology: Topology) -> u64 {
        match &self.held {
            Held::Owned(Owner::Rank(owner)) => self.rows_at(*owner, rows, topology),
            _ => self.rows_at(0, rows, topology),
        }
    }

    /// The row of the table that has a number at a rank.
    pub(super) fn row(&self, number: u64, rank: usize, topology: Topology) -> u64 {
        match &self.held {
            Held::Owned(owner) => owner.global(number, rank, topology),
            Held::Everywhere(frequent) => frequent.row(number),
        }
    }

    /// The numbers at a rank, of `count` there, of rows that lie within a range of the table's.
    pub(super) fn numbers_within(
        &self,
        rows: &Range<u64>,
        (rank, count): (usize, u64),
        topology: Topology,
    ) -> Range<u64> {
        let first = |wanted: u64| {
            let (mut first, mut end) = (0, count);
            while first < end {
                let middle = first.midpoint(end);
                if self.row(middle, rank, topology) < wanted {
                    first = middle + 1;
                } else {
                    end = middle;
                }
            }
            first
        };
        first(rows.start)..first(rows.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::placement::TablePlan;

    fn spec(rows: u64) -> TableSpec {
        TableSpec { name: "t".into(), rows, dim: 8, dtype: Dtype::Fp32 }
    }

    #[test]
    fn rows_within_a_range_are_found_at_every_rank() {
        let topology = Topology::new(3, 1).unwrap();
        let tables = [spec(20), spec(20), spec(20)];
        let frequent = FrequentRows::listed(vec![0, 7, 8, 19]);
        let plans = vec![
            TablePlan::hybrid(&tables[0], Exchange::Rows, frequent),
            TablePlan::table_wise(&tables[1], Exchange::Rows, 1),
            TablePlan::replicated(&tables[2]),
        ];
        let plan = EmbeddingPlan { topology, tables: plans };
        let parts = Part::of_plan(&plan, &tables, &[Optimizer::sgd(0.1); 3]).unwrap();
        let everywhere: Vec<_> = parts.iter().map(|part| (part.table, part.is_everywhere())).collect();
        assert_eq!(everywhere, [(0, false), (1, false), (0, true), (2, true)]);
        for part in parts {
            for rank in 0..3 {
                let count = part.rows_at(rank, 20, topology);
                let all: Vec<_> = (0..count).map(|number| part.row(number, rank, topology)).collect();
                for (from, to) in [(0, 20), (3, 8), (8, 8), (19, 20)] {
                    let within = part.numbers_within(&(from..to), (rank, count), topology);
                    let found: Vec<_> = within.map(|number| part.row(number, rank, topology)).collect();
                    let expected = all.iter().copied().filter(|row| (from..to).contains(row));
                    assert_eq!(found, expected.collect::<Vec<_>>());
                }
            }
        }
    }
}
