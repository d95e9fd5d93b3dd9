//! Which ranks store which rows of the tables: rows with one owner each, and rows that every rank stores.

use std::ops::Range;

use rankine_topology::{Rank, Topology};

use crate::cuda::error::{Error, Result};
use crate::optimizer::Optimizer;
use crate::placement::{EmbeddingPlan, Exchange, FrequentRows, Owner, Shard};
use crate::table::TableSpec;

/// Some columns of rows of a table, and who stores them.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) table: usize,
    pub(crate) columns: Range<usize>,
    pub(crate) holder: Holder,
}

/// Who stores rows.
#[derive(Debug, Clone)]
pub(crate) enum Holder {
    /// All infrequent rows of a table: each has one owner.
    Owned(Owner),
    /// Every rank stores each of these.
    Everywhere(FrequentRows),
}

impl Part {
    /// The parts of tables whose rows all take turns among the ranks.
    pub(crate) fn in_turns(tables: &[TableSpec]) -> Vec<Self> {
        let whole = |(table, spec): (usize, &TableSpec)| Self {
            table,
            columns: 0..spec.dim,
            holder: Holder::Owned(Owner::EveryRank),
        };
        tables.iter().enumerate().map(whole).collect()
    }

    /// The parts that a plan divides tables into. First those whose rows are exchanged: those with owners in the
    /// order of tables; then listed rows of tables; then tables that every rank stores completely. After them, those
    /// whose owners pool.
    pub(crate) fn of_plan(
        plan: &EmbeddingPlan,
        tables: &[TableSpec],
        optimizers: &[Optimizer],
    ) -> Result<(Vec<Self>, Vec<Self>)> {
        let (mut owned, mut listed, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        let mut pooled = Vec::new();
        for (table, (planned, spec)) in plan.tables.iter().zip(tables).enumerate() {
            let everywhere =
                |frequent| Self { table, columns: 0..spec.dim, holder: Holder::Everywhere(frequent) };
            if planned.frequent.len() == spec.rows {
                whole.push(everywhere(FrequentRows::all(spec.rows)));
                continue;
            }
            let pools = planned.exchange == Exchange::Pooled;
            if pools && !planned.frequent.is_empty() {
                return Err(Error::NotExchanged("pooled bags of tables with frequent rows"));
            }
            let one_of_many = |shard: &Shard| matches!(shard.owner, Owner::Rank(_));
            let by_columns = planned.shards.len() > 1;
            let rowwise = optimizers[table].rule.is_rowwise();
            if by_columns && !planned.frequent.is_empty() {
                return Err(Error::NotExchanged("frequent rows of column-wise tables"));
            }
            if by_columns && rowwise && !planned.shards.iter().all(one_of_many) {
                return Err(Error::NotExchanged(
                    "column-wise tables with rowwise-adagrad, rows assigned in turn",
                ));
            }
            if by_columns && rowwise && pools {
                return Err(Error::NotExchanged("pooled bags of column-wise tables with rowwise-adagrad"));
            }
            let to = if pools { &mut pooled } else { &mut owned };
            to.extend(planned.shards.iter().map(|Shard { columns, owner }| Self {
                table,
                columns: columns.clone(),
                holder: Holder::Owned(*owner),
            }));
            if !planned.frequent.is_empty() {
                listed.push(everywhere(planned.frequent.clone()));
            }
        }
        Ok(([owned, listed, whole].concat(), pooled))
    }

    /// The frequent rows, if they are not the whole table of `rows` rows.
    pub(crate) fn listed(&self, rows: u64) -> Option<&FrequentRows> {
        match &self.holder {
            Holder::Everywhere(frequent) if frequent.len() < rows => Some(frequent),
            _ => None,
        }
    }

    pub(crate) fn is_everywhere(&self) -> bool {
        matches!(self.holder, Holder::Everywhere(_))
    }

    /// Rows that a rank stores of it if the table has `rows`.
    pub(crate) fn rows_at(&self, rank: Rank, rows: u64, topology: Topology) -> u64 {
        match &self.holder {
            Holder::Owned(owner) => owner.rows_at(rank, rows, topology),
            Holder::Everywhere(frequent) => frequent.len(),
        }
    }

    /// The most rows that a rank stores of it.
    pub(crate) fn room(&self, rows: u64, topology: Topology) -> u64 {
        match &self.holder {
            Holder::Owned(Owner::Rank(owner)) => self.rows_at(*owner, rows, topology),
            _ => self.rows_at(Rank(0), rows, topology),
        }
    }
}
