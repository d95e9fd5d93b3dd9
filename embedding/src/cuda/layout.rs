//! Who owns which row, and where ids and vectors lie.

use rankine_cuda::Pointer;
use rankine_cuda::kernels::{GROUP_KEYS, LINE_KEYS, RANKS_MAX, Route, SparseUpdate};

use super::error::{Error, Result};
use super::numbering::bits_of;
use super::parts::{Held, Part};
use crate::dtype::Dtype;
use crate::optimizer::{Optimizer, UpdateRule};
use crate::placement::{EmbeddingPlan, FrequentRows, RoundCapacity};
use crate::table::{Pooling, TableSpec};
use crate::topology::Topology;

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
/// A table is one part or several: some columns of its rows, with an owner each, or rows that every rank has. Unless
/// [`Layout::with_plan`] says otherwise, it is one whose rows take turns among the ranks
/// ([`Owner::EveryRank`](crate::Owner::EveryRank)). Every rank numbers its rows part by part, and by row within a part,
/// and numbers begin with the same at all ranks: where owners take turns, those of a part have room for as many rows as
/// the owner with most. Rows are filled up with zeros to a multiple of four elements.
///
/// Where a row is, is one word, its *key*: `owner * span + number`. What every rank has is counted as of one more
/// owner, behind the last rank, so that all rows go one way: those ones each rank sends to itself, and their gradients
/// to all.
///
/// Over several nodes, a rank asks the rank of its own node that is on the owner's rail. So the owner in a key is that
/// one's place, and its keys go on by nodes: `place * owner_span + node * span + number`. Every node has as many ranks.
/// What every rank has, has the keys there of the first node.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Those of a node.
    pub(super) ranks: usize,
    pub(super) nodes: usize,
    /// Of each part: the rows of it that a message between nodes has room for at first.
    pub(super) rounds: Vec<usize>,
    pub(super) samples: usize,
    pub(super) stride: usize,
    pub(super) tables: Vec<TableSpec>,
    /// One a table.
    pub(super) optimizers: Vec<Optimizer>,
    pub(super) columns: Vec<Hotness>,
    pub(super) features: Vec<Feature>,
    /// Those with owners first, in the order of tables.
    pub(super) parts: Vec<Part>,
    /// Those whose owners pool: nothing else that is said here of rows and keys is of these.
    pub(super) pooled: Vec<Part>,
    /// Every feature for each part of its table, by number; for rows that every rank has, only where no row has an
    /// owner.
    pub(super) sharded: Vec<(usize, usize)>,
    /// Of each table: the key of its first row in the set of rows that every rank has.
    pub(super) listed_keys: Vec<Option<u32>>,
    /// Where each part's rows begin at every rank, and where the last one's end.
    pub(super) bases: Vec<u64>,
    /// Keys of a rank's rows, rounded up to whole groups.
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
        let mut layout = Self {
            ranks,
            nodes: 1,
            rounds: vec![RoundCapacity::default().vectors; tables.len()],
            samples,
            stride,
            tables: tables.to_vec(),
            optimizers: vec![Optimizer::sgd(0.0); tables.len()],
            columns: columns.to_vec(),
            features: features.to_vec(),
            parts: Part::in_turns(tables),
            pooled: Vec::new(),
            sharded: Vec::new(),
            listed_keys: Vec::new(),
            bases: Vec::new(),
            span: 0,
        };
        layout.number()?;
        Ok(layout)
    }

    /// Numbers the parts' rows and what looks them up.
    fn number(&mut self) -> Result<()> {
        let is_listed = |part: &Part| part.listed(self.tables[part.table].rows).is_some();
        let of_table = |table: usize| {
            let parts = self.parts.iter().enumerate();
            let own = parts.filter(move |(_, part)| part.table == table && !is_listed(part));
            own.map(|(number, _)| number)
        };
        let sharded = self.features.iter().enumerate();
        let sharded =
            sharded.flat_map(|(number, feature)| of_table(feature.table).map(move |part| (number, part)));
        self.sharded = sharded.collect();
        self.bases = vec![0];
        for part in &self.parts {
            let room = part.room(self.tables[part.table].rows, self.topology());
            self.bases.push(self.bases[self.bases.len() - 1] + room);
        }
        let mut keys = 0;
        self.listed_keys = vec![None; self.tables.len()];
        for table in self.listed().map(|(_, table, _)| table).collect::<Vec<_>>() {
            self.listed_keys[table] = Some(keys as u32);
            keys += self.tables[table].rows.next_multiple_of(LINE_KEYS as u64);
        }
        let span = self.bases[self.parts.len()].next_multiple_of(GROUP_KEYS as u64);
        self.span = span as usize;
        let features = self.sharded.len();
        let widest = self.parts.iter().map(|part| part.columns.len()).max().unwrap_or(0);
        let limits = [
            ("nodes", self.nodes as u64, RANKS_MAX as u64),
            ("features, one for each part of their tables", features as u64, Route::FEATURES_MAX as u64),
            ("elements of a row", widest as u64, 4 * u64::from(SparseUpdate::<f32>::VECTORS_MAX)),
            (
                "rows, rounded up over all owners",
                span * (self.nodes * self.owners()) as u64,
                u64::from(u32::MAX),
            ),
            ("rows of tables with rows that every rank has", keys, u64::from(u32::MAX)),
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

    /// The same with its ranks on so many nodes, numbered node by node.
    ///
    /// # Panics
    /// Where nodes would have unequal numbers of ranks, or a plan was taken before.
    ///
    /// # Errors
    /// Where something is larger than kernels can number.
    pub fn with_nodes(mut self, nodes: usize) -> Result<Self> {
        let ranks = self.ranks();
        assert!(nodes > 0 && ranks.is_multiple_of(nodes), "nodes have as many ranks each");
        (self.ranks, self.nodes) = (ranks / nodes, nodes);
        self.number()?;
        Ok(self)
    }

    /// The same with its tables placed by a plan.
    ///
    /// # Panics
    /// Where the plan is of other tables, or of other ranks or nodes.
    ///
    /// # Errors
    /// Where the plan has what GPUs do not exchange, or parts cannot be numbered.
    pub fn with_plan(mut self, plan: &EmbeddingPlan) -> Result<Self> {
        assert_eq!(
            (plan.tables.len(), plan.topology.ranks(), plan.topology.nodes()),
            (self.tables.len(), self.ranks(), self.nodes),
            "the plan of these"
        );
        (self.parts, self.pooled) = Part::of_plan(plan, &self.tables, &self.optimizers)?;
        if self.nodes > 1 && !self.pooled.is_empty() {
            return Err(Error::NotExchanged("bags that owners have pooled, over several nodes,"));
        }
        let of_part = |part: &Part| plan.tables[part.table].round.vectors;
        self.rounds = self.parts.iter().map(of_part).collect();
        self.number()?;
        Ok(self)
    }

    /// Ranks, of all nodes.
    pub fn ranks(&self) -> usize {
        self.ranks * self.nodes
    }

    /// Nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Keys of a rank's rows.
    pub fn span(&self) -> usize {
        self.span
    }

    /// Keys of an owner: those of all ranks of its rail.
    pub(super) fn owner_span(&self) -> usize {
        self.nodes * self.span
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

    /// The features, by number, of tables whose owners pool: each once for each part of its table.
    pub fn pooled(&self) -> impl Iterator<Item = usize> {
        self.pooled_features().into_iter().map(|(feature, _)| feature)
    }

    /// What is looked up by rows: each feature, by number, for each part of its table, by number.
    pub fn looked_up(&self) -> &[(usize, usize)] {
        &self.sharded
    }

    /// Owners of keys: the ranks of a node, and where there are rows that every rank has, one more that stands for each
    /// of them.
    pub fn owners(&self) -> usize {
        self.ranks + usize::from(self.parts.iter().any(Part::is_everywhere))
    }

    /// Lists of rows that an owner reads: one of each rank, and where there are rows that every rank has, one of each
    /// rank's of these.
    pub(super) fn lists(&self) -> usize {
        self.ranks * (1 + self.owners() - self.ranks)
    }

    /// The owner of a row that is looked up in a part, and the row's number there. Over nodes it is the rank of a node
    /// that is on the owner's rail, with a number for each of this one's rows.
    ///
    /// # Panics
    /// Where every rank has only some of the table's rows, and not this one, though the part is of such rows.
    pub fn place(&self, part: usize, row: u64) -> (usize, u64) {
        let everywhere = |part: usize, index| (self.ranks, self.bases[part] + index);
        let Part { table, held, .. } = &self.parts[part];
        let listed = self.listed().find(|(_, other, _)| other == table);
        match (held, listed.and_then(|(number, _, frequent)| Some((number, frequent.index(row)?)))) {
            (_, Some((number, index))) => everywhere(number, index),
            (Held::Everywhere(frequent), None) => {
                everywhere(part, frequent.index(row).expect("every rank has it"))
            }
            (Held::Owned(owner), None) => {
                let topology = self.topology();
                let (rank, number) = (owner.of(row, topology), self.bases[part] + owner.local(row, topology));
                (topology.place_of(rank), (topology.node_of(rank) * self.span) as u64 + number)
            }
        }
    }

    /// The parts, by number, that every rank has of tables of which it has not all; with these tables and rows.
    pub(super) fn listed(&self) -> impl Iterator<Item = (usize, usize, &FrequentRows)> {
        let parts = self.parts.iter().enumerate();
        parts.filter_map(|(number, part)| {
            Some((number, part.table, part.listed(self.tables[part.table].rows)?))
        })
    }

    /// The ranks of all nodes.
    pub(super) fn topology(&self) -> Topology {
        Topology::new(self.ranks().max(1), self.nodes).expect("as many ranks a node")
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
    use crate::placement::{Exchange, TablePlan};
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
        assert!(matches!(refused(2, 1, 8, u64::from(u32::MAX), 0), Error::TooLarge { .. }));
        assert!(matches!(refused(1, (1 << 28) + 1, 8, 5, 0), Error::TooLarge { .. }));
        assert!(matches!(refused(1, 1, 10, 5, 0), Error::NotByFour { what: "the stride", have: 10 }));
        assert!(matches!(refused(1, 1, 12, 5, 2), Error::NotByFour { .. }));
    }

    #[test]
    fn every_row_of_a_part_has_one_place() {
        let tables = tables(&[5, 1, 70_000, 3, 6, 900]);
        let features: Vec<_> = (0..tables.len()).map(|table| feature(table, 0)).collect();
        for (ranks, nodes) in [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (6, 3)] {
            let layout = Layout::new(ranks, 3, 8, &tables, &[Hotness::Fixed(1)], &features).unwrap();
            let (layout, places) = (layout.with_nodes(nodes).unwrap(), ranks / nodes);
            let topology = Topology::new(ranks, nodes).unwrap();
            let owners: Vec<_> = (0..ranks).collect();
            let plans = vec![
                TablePlan::row_wise(&tables[0], Exchange::Rows),
                TablePlan::table_wise(&tables[1], Exchange::Rows, ranks - 1),
                TablePlan::column_wise(&tables[2], Exchange::Rows, &owners),
                TablePlan::hybrid(&tables[3], Exchange::Rows, FrequentRows::listed(vec![2, 0])),
                TablePlan::replicated(&tables[4]),
                TablePlan::hybrid(&tables[5], Exchange::Rows, FrequentRows::listed(vec![899, 3])),
            ];
            let planned = layout.clone().with_plan(&EmbeddingPlan { topology, tables: plans }).unwrap();
            assert_eq!((layout.owners(), planned.owners()), (places, places + 1));
            for layout in [layout, planned] {
                let (mut seen, mut of_owners) = (BTreeSet::new(), vec![0; ranks + 1]);
                for &(_, part) in layout.looked_up() {
                    for row in 0..tables[layout.parts[part].table].rows {
                        let (owner, number) = layout.place(part, row);
                        // Over nodes keys go by the owner's place, and then by its node.
                        let (node, own) = (number as usize / layout.span, number as usize % layout.span);
                        assert!(own < layout.row_numbers() && node < nodes && seen.insert((owner, number)));
                        of_owners[if owner == places { ranks } else { topology.rank(node, owner) }] += 1;
                    }
                }
                for rank in 0..ranks {
                    let rows: u64 = layout.parts.iter().map(|part| layout.part_rows(rank, part)).sum();
                    // Owners have room for frequent rows, too.
                    let listed = layout.listed().flat_map(|(.., frequent)| {
                        (0..frequent.len()).map(|index| frequent.row(index) as usize % ranks)
                    });
                    let unused = listed.filter(|&owner| owner == rank).count() as u64;
                    assert_eq!(of_owners[rank] + of_owners[ranks] + unused, rows);
                }
                assert!(layout.span >= layout.row_numbers());
            }
        }
    }

    #[test]
    fn what_is_not_exchanged_is_refused() {
        let (tables, features) = (tables(&[5]), [feature(0, 0)]);
        let over_nodes = Layout::new(2, 3, 8, &tables, &[Hotness::Fixed(1)], &features).unwrap();
        let over_nodes = over_nodes.with_nodes(2).unwrap();
        for (exchange, is_exchanged) in [(Exchange::Rows, true), (Exchange::Pooled, false)] {
            let plan = vec![TablePlan::row_wise(&tables[0], exchange)];
            let plan = EmbeddingPlan { topology: Topology::new(2, 2).unwrap(), tables: plan };
            assert_eq!(over_nodes.clone().with_plan(&plan).is_ok(), is_exchanged);
        }
        let layout = Layout::new(2, 3, 8, &tables, &[Hotness::Fixed(1)], &features).unwrap();
        let topology = Topology::new(2, 1).unwrap();
        let by_columns = TablePlan::column_wise(&tables[0], Exchange::Rows, &[0, 1]);
        for plan in [
            TablePlan::hybrid(&tables[0], Exchange::Pooled, FrequentRows::listed(vec![3])),
            TablePlan { frequent: FrequentRows::listed(vec![3]), ..by_columns },
        ] {
            let refused = layout.clone().with_plan(&EmbeddingPlan { topology, tables: vec![plan] });
            assert!(matches!(refused, Err(Error::NotExchanged(_))));
        }
    }
}
