//! Who owns which row, and where ids and vectors lie.

use rankine_cuda::Pointer;
use rankine_cuda::kernels::{GROUP_KEYS, RANKS_MAX, Route, SparseUpdate};

use super::error::{Error, Result};
use super::numbering::bits_of;
use crate::dtype::Dtype;
use crate::optimizer::{Optimizer, UpdateRule};
use crate::placement::{EmbeddingPlan, Exchange, Owner, Shard};
use crate::table::{Pooling, TableSpec};

/// Elements that rows are read by.
pub(super) const VECTOR: usize = 4;

/// How many ids a sample has in a column of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hotness {
    /// As many in every sample, one at least.
    Fixed(usize),
    /// From none to `max`.
    Ragged {
        /// The most.
        max: usize,
    },
}

impl Hotness {
    /// The most ids that a sample has.
    pub fn max(self) -> usize {
        match self {
            Self::Fixed(ids) | Self::Ragged { max: ids } => ids,
        }
    }
}

/// A column of ids, as it is looked up in a table. Several features may read one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// The number of the column.
    pub column: usize,
    /// The number of the table.
    pub table: usize,
    /// The element where its vector begins in a sample's.
    pub place: usize,
    /// How a bag becomes a vector.
    pub pooling: Pooling,
}

/// A batch's ids in a GPU's memory, where [`Layout::ids_begin`] and [`Layout::offsets_begin`] say.
#[derive(Debug, Clone, Copy)]
pub struct Ids {
    /// Of each column, sample by sample. Where a column has as many in every sample, sample `s`'s begin `s` times as
    /// many behind the column's beginning; else where `offsets` says.
    pub ids: Pointer<u32>,
    /// Of each ragged column: where each sample's ids begin behind the column's beginning, and where the last one's
    /// end. Samples that are not there have none.
    pub offsets: Pointer<u32>,
    /// How many samples there are: what lies behind is not looked up, and has vectors of zeros.
    pub samples: Pointer<u32>,
}

/// How tables and batches are laid out over the ranks of a node.
///
/// A table is one shard or several, each some columns of all its rows ([`Shard`]). Unless [`Layout::with_plan`] says
/// otherwise, it is one whose rows take turns among the ranks ([`Owner::EveryRank`]). Every owner numbers its rows
/// shard by shard, and by row within a shard, and numbers begin with the same at all owners: where owners take turns,
/// those of a shard have room for as many rows as the owner with most. Rows are filled up with zeros to a multiple of
/// four elements.
#[derive(Debug, Clone)]
pub struct Layout {
    pub(super) ranks: usize,
    pub(super) samples: usize,
    pub(super) stride: usize,
    pub(super) tables: Vec<TableSpec>,
    /// One a table.
    pub(super) optimizers: Vec<Optimizer>,
    pub(super) columns: Vec<Hotness>,
    pub(super) features: Vec<Feature>,
    /// Each with its table, in the order of tables.
    pub(super) shards: Vec<(usize, Shard)>,
    /// Every feature for each shard of its table, by number.
    pub(super) sharded: Vec<(usize, usize)>,
    /// Where each shard's rows begin at every owner, and where the last one's end.
    pub(super) bases: Vec<u64>,
    /// Keys of an owner: its rows, rounded up to whole groups.
    pub(super) span: usize,
}

impl Layout {
    /// A layout for batches of `samples` samples a rank, whose vectors lie in `[sample, stride]` matrices.
    ///
    /// # Panics
    /// Where a feature names a table, a column or elements that there are not, or where no sample of a column has ids.
    ///
    /// # Errors
    /// Where something is larger than kernels can number, or where stride or places are no multiples of 4.
    pub fn new(
        ranks: usize,
        samples: usize,
        stride: usize,
        tables: &[TableSpec],
        columns: &[Hotness],
        features: &[Feature],
    ) -> Result<Self> {
        assert!(columns.iter().all(|hotness| hotness.max() > 0), "a column has room for an id");
        assert!(features.iter().all(|&Feature { column, table, place, .. }| {
            column < columns.len()
                && table < tables.len()
                && place + tables[table].dim.next_multiple_of(VECTOR) <= stride
        }));
        let places = features.iter().map(|feature| ("where a vector begins", feature.place));
        for (what, have) in places.chain([("the stride", stride)]) {
            if have % VECTOR != 0 {
                return Err(Error::NotByFour { what, have });
            }
        }
        let whole = |(number, table): (usize, &TableSpec)| {
            (number, Shard { columns: 0..table.dim, owner: Owner::EveryRank })
        };
        let mut layout = Self {
            ranks,
            samples,
            stride,
            tables: tables.to_vec(),
            optimizers: vec![Optimizer::sgd(0.0); tables.len()],
            columns: columns.to_vec(),
            features: features.to_vec(),
            shards: tables.iter().enumerate().map(whole).collect(),
            sharded: Vec::new(),
            bases: Vec::new(),
            span: 0,
        };
        layout.number()?;
        Ok(layout)
    }

    /// Numbers the shards' rows and what looks them up.
    fn number(&mut self) -> Result<()> {
        let of_table = |table: usize| {
            let begin = self.shards.partition_point(|(other, _)| *other < table);
            begin..self.shards.partition_point(|(other, _)| *other <= table)
        };
        let sharded = self.features.iter().enumerate();
        let sharded =
            sharded.flat_map(|(number, feature)| of_table(feature.table).map(move |shard| (number, shard)));
        self.sharded = sharded.collect();
        self.bases = vec![0];
        for (table, shard) in &self.shards {
            let rows = self.tables[*table].rows;
            let room = match shard.owner {
                Owner::EveryRank => rows.div_ceil(self.ranks.max(1) as u64),
                Owner::Rank(_) => rows,
            };
            self.bases.push(self.bases[self.bases.len() - 1] + room);
        }
        let span = self.bases[self.shards.len()].next_multiple_of(GROUP_KEYS as u64);
        self.span = span as usize;
        let features = self.sharded.len();
        let widest = self.shards.iter().map(|(_, shard)| shard.columns.len()).max().unwrap_or(0);
        let limits = [
            ("ranks", self.ranks as u64, RANKS_MAX as u64),
            ("features, one for each shard of their tables", features as u64, Route::FEATURES_MAX as u64),
            ("elements of a row", widest as u64, 4 * u64::from(SparseUpdate::<f32>::VECTORS_MAX)),
            ("rows, rounded up over all owners", span * self.ranks as u64, u64::from(u32::MAX)),
            ("elements of a rank's vectors", self.elements() as u64, u64::from(u32::MAX)),
            ("bags of a rank's batch", (features as u64) << self.sample_bits(), u64::from(u32::MAX)),
            ("ids of a rank's batch", self.ids().max(self.look_ups()) as u64, Route::LOOK_UPS_MAX),
        ];
        match limits.into_iter().find(|(_, have, most)| have > most) {
            Some((what, have, most)) => Err(Error::TooLarge { what, have, most }),
            None => Ok(()),
        }
    }

    /// The same with the optimizers of its tables, one each, whose state lies behind each row's weights. Without,
    /// tables learn by plain gradient descent.
    ///
    /// # Panics
    /// Where there are not as many optimizers as tables.
    pub fn with_optimizers(mut self, optimizers: &[Optimizer]) -> Self {
        assert_eq!(optimizers.len(), self.tables.len(), "an optimizer a table");
        self.optimizers = optimizers.to_vec();
        self
    }

    /// The same with the shards of a plan.
    ///
    /// # Panics
    /// Where the plan is of other tables, or of other ranks.
    ///
    /// # Errors
    /// Where the plan has what GPUs do not exchange, or shards cannot be numbered.
    pub fn with_plan(mut self, plan: &EmbeddingPlan) -> Result<Self> {
        assert_eq!(
            (plan.tables.len(), plan.topology.ranks()),
            (self.tables.len(), self.ranks),
            "the plan of these"
        );
        self.shards.clear();
        for (number, (table, optimizer)) in plan.tables.iter().zip(&self.optimizers).enumerate() {
            if !table.frequent.is_empty() {
                return Err(Error::NotExchanged("replicated rows"));
            }
            if table.exchange != Exchange::Rows {
                return Err(Error::NotExchanged("bags that owners have pooled"));
            }
            let rowwise = matches!(optimizer.rule, UpdateRule::RowwiseAdagrad { .. });
            if rowwise && table.shards.len() > 1 {
                return Err(Error::NotExchanged("the squares of rows whose columns several ranks have"));
            }
            self.shards.extend(table.shards.iter().map(|shard| (number, shard.clone())));
        }
        self.number()?;
        Ok(self)
    }

    /// Ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Samples of a rank's batch.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Tables.
    pub fn tables(&self) -> &[TableSpec] {
        &self.tables
    }

    /// Columns of ids.
    pub fn columns(&self) -> &[Hotness] {
        &self.columns
    }

    /// Features.
    pub fn features(&self) -> &[Feature] {
        &self.features
    }

    /// Whether all tables are of f32 and learn by gradient descent or by Adagrad, element by element.
    pub(super) fn is_lean(&self) -> bool {
        let rules = self.optimizers.iter().map(|optimizer| optimizer.rule);
        self.tables.iter().all(|table| table.dtype == Dtype::Fp32)
            && rules.into_iter().all(|rule| matches!(rule, UpdateRule::Sgd | UpdateRule::Adagrad { .. }))
    }

    /// Ids that a rank's batch has room for: column by column.
    pub fn ids(&self) -> usize {
        self.ids_begin(self.columns.len())
    }

    /// Where a column's ids begin: as many as [`Hotness::max`] says a sample have room there.
    pub fn ids_begin(&self, column: usize) -> usize {
        self.samples * self.columns[..column].iter().map(|hotness| hotness.max()).sum::<usize>()
    }

    /// Offsets that a rank's batch has: one a sample and one more for each ragged column.
    pub fn offsets(&self) -> usize {
        self.offsets_begin(self.columns.len())
    }

    /// Where a ragged column's offsets begin.
    pub fn offsets_begin(&self, column: usize) -> usize {
        let ragged =
            self.columns[..column].iter().filter(|hotness| matches!(hotness, Hotness::Ragged { .. }));
        (self.samples + 1) * ragged.count()
    }

    /// Elements of a rank's vectors.
    pub fn elements(&self) -> usize {
        self.samples * self.stride
    }

    /// The shards, each with its table, in the order of tables.
    pub fn shards(&self) -> &[(usize, Shard)] {
        &self.shards
    }

    /// The rank that owns a row of a shard, and the row's number there.
    pub fn place(&self, shard: usize, row: u64) -> (usize, u64) {
        let base = self.bases[shard];
        match self.shards[shard].1.owner {
            Owner::EveryRank => ((row % self.ranks as u64) as usize, base + row / self.ranks as u64),
            Owner::Rank(rank) => (rank, base + row),
        }
    }

    /// Bits of a bag that are the sample's; the feature's are above.
    pub fn sample_bits(&self) -> u32 {
        bits_of(self.samples)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::dtype::Dtype;
    use crate::placement::TablePlan;
    use crate::topology::Topology;

    fn tables(rows: &[u64]) -> Vec<TableSpec> {
        rows.iter().map(|&rows| TableSpec { name: "t".into(), rows, dim: 8, dtype: Dtype::Fp32 }).collect()
    }

    fn feature(table: usize, place: usize) -> Feature {
        Feature { column: 0, table, place, pooling: Pooling::Sum }
    }

    #[test]
    fn what_cannot_be_numbered_is_refused() {
        let refused = |ranks, samples, stride, rows: u64, place| {
            let columns = [Hotness::Ragged { max: 4 }];
            Layout::new(ranks, samples, stride, &tables(&[rows]), &columns, &[feature(0, place)]).unwrap_err()
        };
        assert!(matches!(refused(9, 1, 8, 5, 0), Error::TooLarge { what: "ranks", .. }));
        assert!(matches!(refused(2, 1, 8, u64::from(u32::MAX), 0), Error::TooLarge { .. }));
        assert!(matches!(refused(1, (1 << 28) + 1, 8, 5, 0), Error::TooLarge { .. }));
        assert!(matches!(refused(1, 1, 10, 5, 0), Error::NotByFour { what: "the stride", have: 10 }));
        assert!(matches!(refused(1, 1, 12, 5, 2), Error::NotByFour { .. }));
    }

    #[test]
    fn every_row_of_a_shard_has_one_place() {
        let tables = tables(&[5, 1, 70_000, 3]);
        for ranks in 1..=4 {
            let layout = Layout::new(ranks, 3, 8, &tables, &[Hotness::Fixed(1)], &[feature(2, 0)]).unwrap();
            let topology = Topology::new(ranks, 1).unwrap();
            let owners: Vec<_> = (0..ranks).collect();
            let plans = vec![
                TablePlan::row_wise(&tables[0], Exchange::Rows),
                TablePlan::table_wise(&tables[1], Exchange::Rows, ranks - 1),
                TablePlan::column_wise(&tables[2], Exchange::Rows, &owners),
                TablePlan::row_wise(&tables[3], Exchange::Rows),
            ];
            let planned = layout.clone().with_plan(&EmbeddingPlan { topology, tables: plans }).unwrap();
            for layout in [layout, planned] {
                let mut seen = BTreeSet::new();
                for (shard, (table, of_shard)) in layout.shards().iter().enumerate() {
                    let mut owned = vec![0; ranks];
                    for row in 0..tables[*table].rows {
                        let (owner, number) = layout.place(shard, row);
                        assert!(
                            number < layout.bases[shard + 1]
                                && layout.bases[shard] <= number
                                && seen.insert((owner, number))
                        );
                        owned[owner] += 1;
                    }
                    let expected: Vec<_> =
                        (0..ranks).map(|rank| layout.shard_rows(rank, *table, of_shard)).collect();
                    assert_eq!(owned, expected);
                }
                assert!(layout.span >= layout.row_numbers());
            }
        }
    }

    #[test]
    fn what_is_not_exchanged_is_refused() {
        let tables = tables(&[5]);
        let layout = Layout::new(2, 3, 8, &tables, &[Hotness::Fixed(1)], &[feature(0, 0)]).unwrap();
        let topology = Topology::new(2, 1).unwrap();
        let rowwise = UpdateRule::RowwiseAdagrad { initial_accumulator: 0.0, epsilon: 0.1 };
        let rowwise = Optimizer { rule: rowwise, ..Optimizer::sgd(0.1) };
        for (optimizer, plan) in [
            (Optimizer::sgd(0.1), TablePlan::replicated(&tables[0])),
            (Optimizer::sgd(0.1), TablePlan::row_wise(&tables[0], Exchange::Pooled)),
            (rowwise, TablePlan::column_wise(&tables[0], Exchange::Rows, &[0, 1])),
        ] {
            let layout = layout.clone().with_optimizers(&[optimizer]);
            let refused = layout.with_plan(&EmbeddingPlan { topology, tables: vec![plan] });
            assert!(matches!(refused, Err(Error::NotExchanged(_))));
        }
    }
}
