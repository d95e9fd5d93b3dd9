//! Where the rows of each table lie among the ranks, and what crosses between them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::rows::RowSet;
use crate::table::TableSpec;
use crate::topology::Topology;

/// A way to place a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Every rank has the whole table; gradients are summed over all ranks together with the dense ones.
    Replicated,
    /// Frequent rows are replicated, the others are owned as under [`Placement::RowWise`].
    Hybrid,
    /// Each row has one owner; owners take turns.
    RowWise,
    /// One rank owns the table.
    TableWise,
    /// Several ranks own some columns of every row each.
    ColumnWise,
}

impl Placement {
    /// All of them.
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

/// What crosses between ranks for rows that are owned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// The distinct rows that a rank's samples name; their gradients, summed, go back.
    Rows,
    /// Bags that owners have pooled, as far as their rows go; the gradients of the bags go back.
    Pooled,
}

impl Exchange {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Rows, Self::Pooled];

    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Pooled => "pooled",
        }
    }
}

/// Where all tables of a model lie.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingPlan {
    /// The ranks.
    pub topology: Topology,
    /// One a table.
    pub tables: Vec<TablePlan>,
}

/// What one round carries of a shard from a rank to one of its rail in another node: messages between nodes have fixed
/// sizes, and whatever is more goes in further rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundCapacity {
    /// Rows or bags, their vectors and their gradients.
    pub vectors: usize,
    /// Ids of bags.
    pub ids: usize,
}

/// Where one table lies.
#[derive(Debug, Clone, PartialEq)]
pub struct TablePlan {
    /// What it was planned as.
    pub placement: Placement,
    /// What crosses between ranks for rows that are owned.
    pub exchange: Exchange,
    /// The rows that every rank has.
    pub frequent: FrequentRows,
    /// Who owns the others; nobody where every row is frequent.
    pub shards: Vec<Shard>,
    /// What a round carries of each shard.
    pub round: RoundCapacity,
}

/// Some columns of all infrequent rows of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The columns.
    pub columns: Range<usize>,
    /// Who owns them.
    pub owner: Owner,
}

/// Who owns the rows of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Row `r` belongs to rank `r % ranks`, where it is row `r / ranks`.
    EveryRank,
    /// All rows belong to this rank.
    Rank(usize),
}

impl Owner {
    /// The owner of a row.
    pub fn of(self, row: u64, topology: Topology) -> usize {
        match self {
            Self::EveryRank => (row % topology.ranks() as u64) as usize,
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

    /// The row that has a number at a rank that owns it.
    pub fn global(self, local: u64, rank: usize, topology: Topology) -> u64 {
        match self {
            Self::EveryRank => local * topology.ranks() as u64 + rank as u64,
            Self::Rank(_) => local,
        }
    }

    /// Rows of a table of `rows` rows that a rank owns.
    pub fn rows_at(self, rank: usize, rows: u64, topology: Topology) -> u64 {
        match self {
            Self::EveryRank => (rows + topology.ranks() as u64 - 1 - rank as u64) / topology.ranks() as u64,
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
    /// Every table wholly on every rank.
    pub fn replicated(topology: Topology, tables: &[TableSpec]) -> Self {
        Self { topology, tables: tables.iter().map(TablePlan::replicated).collect() }
    }
}

/// What batches of usual sizes seldom exceed.
impl Default for RoundCapacity {
    fn default() -> Self {
        Self { vectors: 1 << 14, ids: 1 << 14 }
    }
}

impl TablePlan {
    /// Columns of a shard are a multiple of this, so that its rows begin at multiples of 16 bytes.
    pub(crate) const COLUMNS: usize = 4;

    /// The whole table on every rank.
    pub fn replicated(table: &TableSpec) -> Self {
        Self {
            placement: Placement::Replicated,
            exchange: Exchange::Rows,
            frequent: FrequentRows::all(table.rows),
            shards: Vec::new(),
            round: RoundCapacity::default(),
        }
    }

    /// Some rows on every rank, the others with one owner each.
    pub fn hybrid(table: &TableSpec, exchange: Exchange, frequent: FrequentRows) -> Self {
        Self { placement: Placement::Hybrid, frequent, ..Self::row_wise(table, exchange) }
    }

    /// Each row with one owner.
    pub fn row_wise(table: &TableSpec, exchange: Exchange) -> Self {
        Self {
            placement: Placement::RowWise,
            exchange,
            frequent: FrequentRows::none(),
            shards: vec![Shard { columns: 0..table.dim, owner: Owner::EveryRank }],
            round: RoundCapacity::default(),
        }
    }

    /// The whole table at one rank.
    pub fn table_wise(table: &TableSpec, exchange: Exchange, rank: usize) -> Self {
        Self {
            placement: Placement::TableWise,
            shards: vec![Shard { columns: 0..table.dim, owner: Owner::Rank(rank) }],
            ..Self::row_wise(table, exchange)
        }
    }

    /// Some columns at each of some ranks; at fewer of them where there are not enough columns.
    pub fn column_wise(table: &TableSpec, exchange: Exchange, ranks: &[usize]) -> Self {
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

/// The rows of a table that every rank has, numbered in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrequentRows(Rows);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rows {
    All(u64),
    Listed {
        /// Ascending.
        rows: Vec<u64>,
        /// A bit a row, up to the last listed one.
        bits: Vec<u64>,
        /// For each word of `bits`, how many rows are listed before it.
        before: Vec<u32>,
    },
}

impl FrequentRows {
    /// No row.
    pub fn none() -> Self {
        Self::listed(Vec::new())
    }

    /// All rows of a table.
    pub fn all(rows: u64) -> Self {
        Self(Rows::All(rows))
    }

    /// These rows, in any order. Takes eight bytes a listed row, and 1.5 bits a row of the table up to the highest one.
    ///
    /// # Panics
    /// With 2^32 rows or more: a table is not frequent as a whole but by [`FrequentRows::all`].
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

    /// How many rows there are.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Rows::All(rows) => *rows,
            Rows::Listed { rows, .. } => rows.len() as u64,
        }
    }

    /// Whether there is no such row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of a row among the frequent ones, if it is one.
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

    /// The same as rows with positions.
    pub fn set(&self) -> RowSet {
        match &self.0 {
            Rows::All(rows) => RowSet::all(*rows),
            Rows::Listed { rows, .. } => RowSet::from(rows.clone()),
        }
    }

    /// The frequent row with a number.
    ///
    /// # Panics
    /// Where there are not so many.
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
            for owner in [Owner::EveryRank, Owner::Rank(topology.ranks() - 1)] {
                let mut owned = Vec::new();
                for rank in 0..topology.ranks() {
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
        let table = TableSpec { name: "t".into(), rows: 3, dim: 18, dtype: Dtype::Fp32 };
        let columns = |ranks: &[usize]| -> Vec<_> {
            let plan = TablePlan::column_wise(&table, Exchange::Rows, ranks);
            plan.shards.into_iter().map(|shard| shard.columns).collect()
        };
        assert_eq!(columns(&[2, 0]), [0..8, 8..18]);
        assert_eq!(columns(&[0, 1, 2, 3, 4, 5, 6, 7]), [0..4, 4..8, 8..12, 12..16, 16..18]);
    }
}
