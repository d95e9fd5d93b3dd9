//! Which ranks store the rows of each table, and what they exchange.

use std::ops::Range;

use rankine_topology::{Rank, Topology};
use serde::{Deserialize, Serialize};

use crate::rows::RowSet;
use crate::table::TableSpec;

/// A way to place a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Every rank has the whole table; gradients are all-reduced together with the dense ones.
    Replicated,
    /// Frequent rows are replicated; the others are owned as with [`Placement::RowWise`].
    Hybrid,
    /// Each row has one owner; owners take turns.
    RowWise,
    /// One rank owns the table.
    TableWise,
    /// Several ranks each own some columns of every row.
    ColumnWise,
}

impl Placement {
    /// All placements.
    pub const ALL: [Self; 5] =
        [Self::Replicated, Self::Hybrid, Self::RowWise, Self::TableWise, Self::ColumnWise];

    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replicated => "replicated",
            Self::Hybrid => "hybrid",
            Self::RowWise => "row-wise",
            Self::TableWise => "table-wise",
            Self::ColumnWise => "column-wise",
        }
    }
}

/// What ranks exchange for rows that are owned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// The distinct rows that a rank's samples name; their summed gradients go back.
    Rows,
    /// Bags pooled by the owners of their rows; the gradients of the bags go back.
    Pooled,
}

impl Exchange {
    /// Both exchanges.
    pub const ALL: [Self; 2] = [Self::Rows, Self::Pooled];

    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Pooled => "pooled",
        }
    }
}

/// The placement of all tables of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingPlan {
    /// The ranks.
    pub topology: Topology,
    /// One per table.
    pub tables: Vec<TablePlan>,
}

/// What one round carries per shard from a rank to a rank of its rail in another node: messages between nodes have
/// fixed sizes, and larger lists take further rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundCapacity {
    /// Rows or bags, with their vectors and gradients.
    pub vectors: usize,
    /// Ids of bags.
    pub ids: usize,
}

/// The placement of one table.
#[derive(Debug, Clone, PartialEq)]
pub struct TablePlan {
    /// The kind of placement.
    pub placement: Placement,
    /// What ranks exchange for rows that are owned.
    pub exchange: Exchange,
    /// The rows that every rank stores.
    pub frequent: FrequentRows,
    /// The owners of the other rows; empty if every row is frequent.
    pub shards: Vec<Shard>,
    /// What a round carries per shard.
    pub round: RoundCapacity,
}

/// Some columns of all infrequent rows of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The columns.
    pub columns: Range<usize>,
    /// Their owner.
    pub owner: Owner,
}

/// The owner of a shard's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Row `r` belongs to rank `r % ranks`, where it is row `r / ranks`.
    EveryRank,
    /// All rows belong to this rank.
    Rank(Rank),
}

impl Owner {
    /// The owner of a row.
    pub fn of(self, row: u64, topology: Topology) -> Rank {
        match self {
            Self::EveryRank => Rank((row % topology.ranks() as u64) as usize),
            Self::Rank(rank) => rank,
        }
    }

    /// The number of a row at its owner.
    pub fn local(self, row: u64, topology: Topology) -> u64 {
        match self {
            Self::EveryRank => row / topology.ranks() as u64,
            Self::Rank(_) => row,
        }
    }

    /// The row with a given number at a rank that owns it.
    pub fn global(self, local: u64, rank: Rank, topology: Topology) -> u64 {
        match self {
            Self::EveryRank => local * topology.ranks() as u64 + rank.0 as u64,
            Self::Rank(_) => local,
        }
    }

    /// How many rows of a table with `rows` rows a rank owns.
    pub fn rows_at(self, rank: Rank, rows: u64, topology: Topology) -> u64 {
        match self {
            Self::EveryRank => (rows + topology.ranks() as u64 - 1 - rank.0 as u64) / topology.ranks() as u64,
            Self::Rank(owner) => {
                if owner == rank {
                    rows
                } else {
                    0
                }
            }
        }
    }
}

impl EmbeddingPlan {
    /// Replicates every table on every rank.
    pub fn replicated(topology: Topology, tables: &[TableSpec]) -> Self {
        Self { topology, tables: tables.iter().map(TablePlan::replicated).collect() }
    }
}

/// Enough for batches of usual sizes.
impl Default for RoundCapacity {
    fn default() -> Self {
        Self { vectors: 1 << 14, ids: 1 << 14 }
    }
}

impl TablePlan {
    /// Columns of a shard are a multiple of this, so that its rows begin at multiples of 16 bytes.
    pub(crate) const COLUMNS: usize = 4;

    /// Replicates the table on every rank.
    pub fn replicated(table: &TableSpec) -> Self {
        Self {
            placement: Placement::Replicated,
            exchange: Exchange::Rows,
            frequent: FrequentRows::all(table.rows),
            shards: Vec::new(),
            round: RoundCapacity::default(),
        }
    }

    /// Replicates some rows on every rank; each other row has one owner.
    pub fn hybrid(table: &TableSpec, exchange: Exchange, frequent: FrequentRows) -> Self {
        Self { placement: Placement::Hybrid, frequent, ..Self::row_wise(table, exchange) }
    }

    /// Each row has one owner.
    pub fn row_wise(table: &TableSpec, exchange: Exchange) -> Self {
        Self {
            placement: Placement::RowWise,
            exchange,
            frequent: FrequentRows::none(),
            shards: vec![Shard { columns: 0..table.dim, owner: Owner::EveryRank }],
            round: RoundCapacity::default(),
        }
    }

    /// One rank owns the whole table.
    pub fn table_wise(table: &TableSpec, exchange: Exchange, rank: Rank) -> Self {
        Self {
            placement: Placement::TableWise,
            shards: vec![Shard { columns: 0..table.dim, owner: Owner::Rank(rank) }],
            ..Self::row_wise(table, exchange)
        }
    }

    /// Splits the columns among the given ranks, or fewer of them if there are not enough columns.
    pub fn column_wise(table: &TableSpec, exchange: Exchange, ranks: &[Rank]) -> Self {
        let groups = table.dim.div_ceil(Self::COLUMNS);
        let shards = ranks.len().min(groups);
        let cut = |shard: usize| (groups * shard / shards * Self::COLUMNS).min(table.dim);
        let shards = ranks
            .iter()
            .take(shards)
            .enumerate()
            .map(|(number, &rank)| Shard { columns: cut(number)..cut(number + 1), owner: Owner::Rank(rank) });
        Self { placement: Placement::ColumnWise, shards: shards.collect(), ..Self::row_wise(table, exchange) }
    }
}

/// The rows of a table that every rank stores, numbered in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrequentRows(Rows);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rows {
    All(u64),
    Listed {
        /// Ascending.
        rows: Vec<u64>,
        /// One bit per row, up to the last listed one.
        bits: Vec<u64>,
        /// For each word of `bits`, the number of rows listed before it.
        before: Vec<u32>,
    },
}

impl FrequentRows {
    /// No rows.
    pub fn none() -> Self {
        Self::listed(Vec::new())
    }

    /// All rows of a table.
    pub fn all(rows: u64) -> Self {
        Self(Rows::All(rows))
    }

    /// The given rows, in any order. Takes eight bytes per listed row, and 1.5 bits per row of the table up to the
    /// highest listed one.
    ///
    /// # Panics
    /// With 2^32 rows or more: for a whole table, use [`FrequentRows::all`].
    pub fn listed(mut rows: Vec<u64>) -> Self {
        rows.sort_unstable();
        rows.dedup();
        u32::try_from(rows.len()).expect("fewer than 2^32 frequent rows");
        let mut bits = vec![0; rows.last().map_or(0, |&last| last as usize / 64 + 1)];
        for row in &rows {
            bits[(row / 64) as usize] |= 1 << (row % 64);
        }
        let before = bits.iter().scan(0, |sum, word: &u64| {
            let before = *sum;
            *sum += word.count_ones();
            Some(before)
        });
        let before = before.collect();
        Self(Rows::Listed { rows, bits, before })
    }

    /// The number of rows.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Rows::All(rows) => *rows,
            Rows::Listed { rows, .. } => rows.len() as u64,
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of a row among the frequent ones, or `None` if it is not frequent.
    pub fn index(&self, row: u64) -> Option<u64> {
        match &self.0 {
            Rows::All(_) => Some(row),
            Rows::Listed { bits, before, .. } => {
                let word = (row / 64) as usize;
                let (bits, bit) = (*bits.get(word)?, 1 << (row % 64));
                let below = (bits & (bit - 1)).count_ones();
                (bits & bit != 0).then(|| u64::from(before[word] + below))
            }
        }
    }

    /// The same rows as a [`RowSet`].
    pub fn set(&self) -> RowSet {
        match &self.0 {
            Rows::All(rows) => RowSet::all(*rows),
            Rows::Listed { rows, .. } => RowSet::from(rows.clone()),
        }
    }

    /// The frequent row with a number.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn row(&self, index: u64) -> u64 {
        match &self.0 {
            Rows::All(_) => index,
            Rows::Listed { rows, .. } => rows[index as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frequent_rows_are_numbered_in_order(rows in prop::collection::btree_set(0..400u64, 0..60)) {
            let frequent = FrequentRows::listed(rows.iter().rev().copied().collect());
            prop_assert_eq!(frequent.len(), rows.len() as u64);
            for (index, &row) in rows.iter().enumerate() {
                prop_assert_eq!(frequent.row(index as u64), row);
            }
            for row in 0..500 {
                let expected = rows.iter().position(|&listed| listed == row);
                prop_assert_eq!(frequent.index(row), expected.map(|index| index as u64));
            }
        }

        #[test]
        fn every_row_has_one_owner(rows in 0..50u64, per_node in 1..4usize, nodes in 1..4usize) {
            let topology = Topology::new(per_node * nodes, nodes).unwrap();
            for owner in [Owner::EveryRank, Owner::Rank(Rank(topology.ranks() - 1))] {
                let mut owned = Vec::new();
                for rank in topology.all_ranks() {
                    for local in 0..owner.rows_at(rank, rows, topology) {
                        let row = owner.global(local, rank, topology);
                        prop_assert_eq!((owner.of(row, topology), owner.local(row, topology)), (rank, local));
                        owned.push(row);
                    }
                }
                owned.sort_unstable();
                prop_assert_eq!(owned, (0..rows).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn columns_are_cut_at_multiples_of_16_bytes() {
        let table = TableSpec { name: "t".into(), rows: 3, dim: 18, dtype: Dtype::Fp32, dynamic: None };
        let columns = |ranks: &[usize]| -> Vec<_> {
            let ranks: Vec<_> = ranks.iter().copied().map(Rank).collect();
            let plan = TablePlan::column_wise(&table, Exchange::Rows, &ranks);
            plan.shards.into_iter().map(|shard| shard.columns).collect()
        };
        assert_eq!(columns(&[2, 0]), [0..8, 8..18]);
        assert_eq!(columns(&[0, 1, 2, 3, 4, 5, 6, 7]), [0..4, 4..8, 8..12, 12..16, 16..18]);
    }
}
