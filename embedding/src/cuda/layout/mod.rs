//! Which rank owns which row, and where ids and vectors are stored.

mod dynamic;
pub(crate) mod numbering;
pub(crate) mod parts;
pub(crate) mod pooled;

use rankine_cuda::Pointer;
use rankine_cuda::kernels::{GROUP_KEYS, LINE_KEYS, Route, SparseUpdate};
use rankine_topology::Topology;

use crate::cuda::error::{Error, Result};
use crate::cuda::layout::parts::{Holder, Part};
use crate::dtype::Dtype;
use crate::optimizer::{Optimizer, UpdateRule};
use crate::placement::{EmbeddingPlan, FrequentRows, RoundCapacity};
use crate::rows::VECTOR;
use crate::table::{Pooling, TableSpec};

/// The number of ids per sample in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hotness {
    /// The same number in every sample, at least one.
    Fixed(usize),
    /// From zero to `max`.
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

/// A column of ids and the table that it looks up. Several features may read one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// The number of the column.
    pub column: usize,
    /// The number of the table.
    pub table: usize,
    /// The first element of its vector within a sample's vectors.
    pub vector_offset: usize,
    /// How bags are pooled.
    pub pooling: Pooling,
}

/// A sequence of columns whose bags have the same sizes. A position has one id of each, and a key: their rows side by
/// side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySequence {
    /// The number of one of its columns.
    pub column: usize,
    /// Elements from one key to the next, a multiple of 4.
    pub stride: usize,
}

/// The part of a sequence's keys that a feature looks up. Its rows are not pooled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPart {
    /// The number of the sequence.
    pub sequence: usize,
    /// The first element of the feature's row within a key, a multiple of 4.
    pub offset: usize,
}

/// A batch's ids in a GPU's memory, at [`Layout::ids_begin`] and [`Layout::offsets_begin`].
#[derive(Debug, Clone, Copy)]
pub struct Ids {
    /// Per column, sample by sample. If a column has `n` ids in every sample, sample `s`'s start at `s * n` after the
    /// column's start; otherwise at its offset.
    pub ids: Pointer<u32>,
    /// Per column with weights, from [`Layout::factors_begin`] on: the factor of each id, in the order of ids. It is
    /// the id's weight, or for the mean its share of the bag's weights. Not read if no column has weights.
    pub factors: Pointer<f32>,
    /// Per ragged column: where each sample's ids start, relative to the column's start, and where the last one's
    /// end. Samples after the batch's end have none.
    pub offsets: Pointer<u32>,
    /// The number of samples; later ones are not looked up, and have vectors of zeros.
    pub samples: Pointer<u32>,
}

/// How tables and batches are laid out over the ranks of a node.
///
/// A table has one or more parts: some columns of its rows, each with an owner, or rows that every rank stores. By
/// default it is one part whose rows take turns among the ranks ([`Owner::EveryRank`](crate::Owner::EveryRank)); see
/// [`Layout::with_plan`]. Every rank numbers its rows part by part, and by row within a part. A part's numbers start
/// at the same number at all ranks: if owners take turns, there is room for as many rows as the owner with the most
/// has. Rows are padded with zeros to a multiple of four elements.
///
/// A row's location is one word, its *key*: `owner * span + number`. Rows that every rank stores belong to an extra
/// owner after the last rank, so that all rows are handled alike: each rank sends these rows to itself, and their
/// gradients to all.
///
/// Over several nodes, a rank requests rows from the rank of its own node that is on the owner's rail. So the owner
/// in a key is a local rank, and its keys are ordered by node: `local_rank * owner_span + node * span + number`. All
/// nodes have the same number of ranks. Rows that every rank stores have the keys of the first node there.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Ranks of a node.
    pub(crate) ranks: usize,
    pub(crate) nodes: usize,
    /// Per part: the rows that the smallest message between nodes has room for.
    pub(crate) rounds: Vec<usize>,
    pub(crate) samples: usize,
    pub(crate) stride: usize,
    pub(crate) tables: Vec<TableSpec>,
    /// One per table.
    pub(crate) optimizers: Vec<Optimizer>,
    pub(crate) columns: Vec<Hotness>,
    /// Per column: whether its ids have weights.
    pub(crate) weighted: Vec<bool>,
    pub(crate) features: Vec<Feature>,
    pub(crate) sequences: Vec<KeySequence>,
    /// One per feature.
    pub(crate) keys: Vec<Option<KeyPart>>,
    /// Those with owners first, in the order of tables.
    pub(crate) parts: Vec<Part>,
    /// Parts whose owners pool; nothing else here about rows and keys applies to them.
    pub(crate) pooled: Vec<Part>,
    /// Every feature for each part of its table, by number; for rows that every rank stores, only if no row of the
    /// table has an owner.
    pub(crate) sharded: Vec<(usize, usize)>,
    /// Per table: the key of its first row in the set of rows that every rank stores.
    pub(crate) listed_keys: Vec<Option<u32>>,
    /// Where each part's row numbers start at every rank, and where the last one's end.
    pub(crate) bases: Vec<u64>,
    /// Keys of a rank's rows, rounded up to whole groups.
    pub(crate) span: usize,
}

impl Layout {
    /// Creates a layout for batches of `samples` samples per rank, whose vectors are stored in `[sample, stride]`
    /// matrices.
    ///
    /// # Panics
    /// If a feature names a table, a column or elements that do not exist, or if a column never has ids.
    ///
    /// # Errors
    /// If something is too large for kernels to number, or if the stride or a vector's position is not a multiple of
    /// 4.
    pub fn new(
        ranks: usize,
        samples: usize,
        stride: usize,
        tables: &[TableSpec],
        columns: &[Hotness],
        features: &[Feature],
    ) -> Result<Self> {
        assert!(columns.iter().all(|hotness| hotness.max() > 0), "a column has room for an id");
        assert!(features.iter().all(|&Feature { column, table, vector_offset, .. }| {
            column < columns.len()
                && table < tables.len()
                && vector_offset + tables[table].dim.next_multiple_of(VECTOR) <= stride
        }));
        let begins = features.iter().map(|feature| ("where a vector begins", feature.vector_offset));
        for (what, have) in begins.chain([("the stride", stride)]) {
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
            weighted: vec![false; columns.len()],
            features: features.to_vec(),
            sequences: Vec::new(),
            keys: vec![None; features.len()],
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

    /// Numbers the parts' rows and their look-ups.
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
            ("features, one for each part of their tables", features as u64, Route::FEATURES_MAX as u64),
            ("elements of a row", widest as u64, 4 * u64::from(SparseUpdate::<f32>::VECTORS_MAX)),
            (
                "rows, rounded up over all owners",
                span * (self.nodes * self.owners()) as u64,
                u64::from(u32::MAX),
            ),
            ("rows of tables with rows that every rank has", keys, u64::from(u32::MAX)),
            (
                "elements of a rank's vectors and keys",
                (self.elements() + self.key_elements()) as u64,
                u64::from(u32::MAX),
            ),
            ("bags of a rank's batch", (features as u64) << self.sample_bits(), u64::from(u32::MAX)),
            ("ids of a rank's batch", self.ids().max(self.look_ups()) as u64, Route::LOOK_UPS_MAX),
        ];
        let positions = self.has_factors().then(|| self.numbered_positions());
        match limits.into_iter().chain(positions).find(|(_, have, most)| have > most) {
            Some((what, have, most)) => Err(Error::TooLarge { what, have, most }),
            None => Ok(()),
        }
    }

    /// Sets which columns have weights, one value each: a batch has a factor for each of their ids
    /// ([`Ids::factors`]), by which look-ups multiply the id's row, and updates its gradient. By default none has.
    ///
    /// # Panics
    /// If there is not one value per column, or if a column has weights but a fixed number of ids.
    ///
    /// # Errors
    /// If something is too large for kernels to number.
    pub fn with_weights(mut self, weighted: &[bool]) -> Result<Self> {
        let mut columns = self.columns.iter().zip(weighted);
        assert!(weighted.len() == self.columns.len(), "one value per column");
        assert!(
            columns.all(|(column, &weighted)| !weighted || matches!(column, Hotness::Ragged { .. })),
            "columns with weights are ragged"
        );
        self.weighted = weighted.to_vec();
        self.number()?;
        Ok(self)
    }

    /// Sets which features look up parts of keys, one value each: their rows are not pooled, but written position by
    /// position, and their gradients are those with respect to keys. By default none does.
    ///
    /// # Panics
    /// If there is not one value per feature, or if one names a sequence or elements of a key that do not exist.
    ///
    /// # Errors
    /// If something is too large for kernels to number, or if a stride or an offset is not a multiple of 4.
    pub fn with_keys(mut self, sequences: &[KeySequence], keys: &[Option<KeyPart>]) -> Result<Self> {
        assert_eq!(keys.len(), self.features.len(), "one value per feature");
        for (key, feature) in keys.iter().zip(&self.features) {
            let Some(KeyPart { sequence, offset }) = key else { continue };
            let end = offset + self.tables[feature.table].dim.next_multiple_of(VECTOR);
            assert!(end <= sequences[*sequence].stride, "a row is part of a key");
        }
        let strides = sequences.iter().map(|sequence| ("the elements of a key", sequence.stride));
        let offsets = keys.iter().flatten().map(|key| ("where a row begins in a key", key.offset));
        if let Some((what, have)) = strides.chain(offsets).find(|(_, have)| have % VECTOR != 0) {
            return Err(Error::NotByFour { what, have });
        }
        (self.sequences, self.keys) = (sequences.to_vec(), keys.to_vec());
        self.number()?;
        Ok(self)
    }

    /// Sets the optimizers of the tables, one each, whose state is stored behind each row's weights. By default
    /// tables learn by plain SGD.
    ///
    /// # Panics
    /// If the number of optimizers is not that of the tables.
    pub fn with_optimizers(mut self, optimizers: &[Optimizer]) -> Self {
        assert_eq!(optimizers.len(), self.tables.len(), "one optimizer per table");
        self.optimizers = optimizers.to_vec();
        self
    }

    /// Distributes the ranks over `nodes` nodes, numbered node by node.
    ///
    /// # Panics
    /// If nodes would have unequal numbers of ranks, or if a plan was set before.
    ///
    /// # Errors
    /// If something is too large for kernels to number.
    pub fn with_nodes(mut self, nodes: usize) -> Result<Self> {
        let ranks = self.ranks();
        assert!(nodes > 0 && ranks.is_multiple_of(nodes), "nodes have equal numbers of ranks");
        (self.ranks, self.nodes) = (ranks / nodes, nodes);
        self.number()?;
        Ok(self)
    }

    /// Sets another number of samples per rank. The smallest messages between nodes grow or shrink in proportion.
    ///
    /// # Errors
    /// If something is too large for kernels to number.
    pub fn with_samples(mut self, samples: usize) -> Result<Self> {
        let before = self.samples.max(1);
        self.rounds.iter_mut().for_each(|rows| *rows = rows.saturating_mul(samples).div_ceil(before));
        self.samples = samples;
        self.number()?;
        Ok(self)
    }

    /// Places the tables according to a plan.
    ///
    /// # Panics
    /// If the plan is for other tables, ranks or nodes.
    ///
    /// # Errors
    /// If the plan has something that GPUs do not exchange, or parts cannot be numbered.
    pub fn with_plan(mut self, plan: &EmbeddingPlan) -> Result<Self> {
        assert_eq!(
            (plan.tables.len(), plan.topology.ranks(), plan.topology.nodes()),
            (self.tables.len(), self.ranks(), self.nodes),
            "the plan is for this layout"
        );
        (self.parts, self.pooled) = Part::of_plan(plan, &self.tables, &self.optimizers)?;
        let is_pooled = |table| self.pooled.iter().any(|part| part.table == table);
        let mut features = self.features.iter().zip(&self.keys);
        if features.any(|(feature, key)| key.is_some() && is_pooled(feature.table)) {
            return Err(Error::NotExchanged("pooled bags of tables whose rows are parts of keys"));
        }
        let of_part = |part: &Part| plan.tables[part.table].round.vectors;
        self.rounds = self.parts.iter().map(of_part).collect();
        self.number()?;
        Ok(self)
    }

    /// Number of ranks of all nodes.
    pub fn ranks(&self) -> usize {
        self.ranks * self.nodes
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Keys of a rank's rows.
    pub fn span(&self) -> usize {
        self.span
    }

    /// Keys per owner: those of all ranks of its rail.
    pub(crate) fn owner_span(&self) -> usize {
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

    /// Returns whether all tables are f32 and learn by SGD or element-wise Adagrad.
    pub(crate) fn is_lean(&self) -> bool {
        let rules = self.optimizers.iter().map(|optimizer| optimizer.rule);
        self.tables.iter().all(|table| table.dtype == Dtype::Fp32)
            && rules.into_iter().all(|rule| matches!(rule, UpdateRule::Sgd | UpdateRule::Adagrad { .. }))
    }

    /// Room for ids in a rank's batch, column by column.
    pub fn ids(&self) -> usize {
        self.ids_begin(self.columns.len())
    }

    /// Where a column's ids start; there is room for [`Hotness::max`] ids per sample.
    pub fn ids_begin(&self, column: usize) -> usize {
        self.samples * self.columns[..column].iter().map(|hotness| hotness.max()).sum::<usize>()
    }

    /// Offsets in a rank's batch: one per sample and one more, for each ragged column.
    pub fn offsets(&self) -> usize {
        self.offsets_begin(self.columns.len())
    }

    /// Where a ragged column's offsets start.
    pub fn offsets_begin(&self, column: usize) -> usize {
        let ragged =
            self.columns[..column].iter().filter(|hotness| matches!(hotness, Hotness::Ragged { .. }));
        (self.samples + 1) * ragged.count()
    }

    /// Returns whether a column's ids have weights.
    pub fn is_weighted(&self, column: usize) -> bool {
        self.weighted[column]
    }

    /// Room for factors in a rank's batch: one per id, for each column with weights.
    pub fn factors(&self) -> usize {
        self.factors_begin(self.columns.len())
    }

    /// Where the factors of a column with weights start.
    pub fn factors_begin(&self, column: usize) -> usize {
        let columns = self.columns[..column].iter().zip(&self.weighted);
        let weighted = columns.filter(|(_, weighted)| **weighted);
        self.samples * weighted.map(|(hotness, _)| hotness.max()).sum::<usize>()
    }

    /// Whether some look-ups by rows have factors.
    pub(crate) fn has_factors(&self) -> bool {
        self.sharded.iter().any(|&(feature, _)| self.weighted[self.features[feature].column])
    }

    /// Elements of a rank's vectors, without keys.
    pub fn elements(&self) -> usize {
        self.samples * self.stride
    }

    /// Elements of the keys of a rank's batch: one sequence after another, with room for the most
    /// positions. Gradients with respect to them follow those with respect to the vectors.
    pub fn key_elements(&self) -> usize {
        self.keys_begin(self.sequences.len())
    }

    /// Where the keys of a sequence start: `[position, stride]`.
    pub fn keys_begin(&self, sequence: usize) -> usize {
        let elements =
            |sequence: &KeySequence| self.samples * self.columns[sequence.column].max() * sequence.stride;
        self.sequences[..sequence].iter().map(elements).sum()
    }

    /// The features, by number, of tables whose owners pool: once for each part of its table.
    pub fn pooled(&self) -> impl Iterator<Item = usize> {
        self.pooled_features().into_iter().map(|(feature, _)| feature)
    }

    /// Look-ups by rows: each feature, by number, for each part of its table, by number.
    pub fn looked_up(&self) -> &[(usize, usize)] {
        &self.sharded
    }

    /// Number of owners in keys: the ranks of a node, plus one if there are rows that every rank stores.
    pub fn owners(&self) -> usize {
        self.ranks + usize::from(self.parts.iter().any(Part::is_everywhere))
    }

    /// Number of lists of rows that an owner reads: one per rank; if there are rows that every rank stores, two per
    /// rank.
    pub(crate) fn lists(&self) -> usize {
        self.ranks * (1 + self.owners() - self.ranks)
    }

    /// The owner of a row that is looked up in a part, and the row's number there. Over several nodes this is the
    /// rank of the node on the owner's rail, and the number covers all ranks of the rail.
    ///
    /// # Panics
    /// If the part has rows that every rank stores, but not this one.
    pub fn locate(&self, part: usize, row: u64) -> (usize, u64) {
        let everywhere = |part: usize, index| (self.ranks, self.bases[part] + index);
        let Part { table, holder, .. } = &self.parts[part];
        let listed = self.listed().find(|(_, other, _)| other == table);
        match (holder, listed.and_then(|(number, _, frequent)| Some((number, frequent.index(row)?)))) {
            (_, Some((number, index))) => everywhere(number, index),
            (Holder::Everywhere(frequent), None) => {
                everywhere(part, frequent.index(row).expect("every rank stores it"))
            }
            (Holder::Owned(owner), None) => {
                let topology = self.topology();
                let (rank, number) = (owner.of(row, topology), self.bases[part] + owner.local(row, topology));
                (topology.local_rank(rank).0, (topology.node_of(rank).0 * self.span) as u64 + number)
            }
        }
    }

    /// The parts, by number, with rows that every rank stores of tables of which it does not store all; with these
    /// tables and rows.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (usize, usize, &FrequentRows)> {
        let parts = self.parts.iter().enumerate();
        parts.filter_map(|(number, part)| {
            Some((number, part.table, part.listed(self.tables[part.table].rows)?))
        })
    }

    /// The ranks of all nodes.
    pub(crate) fn topology(&self) -> Topology {
        Topology::new(self.ranks().max(1), self.nodes).expect("equal numbers of ranks per node")
    }

    /// Bits of a bag that hold the sample, or the position if rows are not pooled; the feature's bits are above.
    pub fn sample_bits(&self) -> u32 {
        let positions =
            self.sequences.iter().map(|sequence| self.samples * self.columns[sequence.column].max());
        bits_of(positions.max().unwrap_or(0).max(self.samples))
    }
}

/// Bits needed to number this many things.
pub(crate) fn bits_of(things: usize) -> u32 {
    usize::BITS - things.saturating_sub(1).leading_zeros()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rankine_cuda::kernels;

    use super::*;
    use crate::dtype::Dtype;
    use crate::placement::{Exchange, TablePlan};
    use rankine_topology::{LocalRank, Node, Rank};

    fn tables(rows: &[u64]) -> Vec<TableSpec> {
        rows.iter()
            .map(|&rows| TableSpec { name: "t".into(), rows, dim: 8, dtype: Dtype::Fp32, dynamic: None })
            .collect()
    }

    fn feature(table: usize, vector_offset: usize) -> Feature {
        Feature { column: 0, table, vector_offset, pooling: Pooling::Sum }
    }

    #[test]
    fn what_cannot_be_numbered_is_refused() {
        let refused = |ranks, samples, stride, rows: u64, vector_offset| {
            let columns = [Hotness::Ragged { max: 4 }];
            Layout::new(ranks, samples, stride, &tables(&[rows]), &columns, &[feature(0, vector_offset)])
                .unwrap_err()
        };
        assert!(matches!(refused(2, 1, 8, u64::from(u32::MAX), 0), Error::TooLarge { .. }));
        assert!(matches!(refused(1, (1 << 28) + 1, 8, 5, 0), Error::TooLarge { .. }));
        assert!(matches!(refused(1, 1, 10, 5, 0), Error::NotByFour { what: "the stride", have: 10 }));
        assert!(matches!(refused(1, 1, 12, 5, 2), Error::NotByFour { .. }));
    }

    #[test]
    fn every_row_of_a_part_has_one_key() {
        let tables = tables(&[5, 1, 70_000, 3, 6, 900]);
        let features: Vec<_> = (0..tables.len()).map(|table| feature(table, 0)).collect();
        for (ranks, nodes) in [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (6, 3), (32, 16), (512, 64)] {
            let layout = Layout::new(ranks, 3, 8, &tables, &[Hotness::Fixed(1)], &features).unwrap();
            let (layout, local_ranks) = (layout.with_nodes(nodes).unwrap(), ranks / nodes);
            let topology = Topology::new(ranks, nodes).unwrap();
            let owners: Vec<_> = topology.all_ranks().collect();
            let plans = vec![
                TablePlan::row_wise(&tables[0], Exchange::Rows),
                TablePlan::table_wise(&tables[1], Exchange::Rows, Rank(ranks - 1)),
                TablePlan::column_wise(&tables[2], Exchange::Rows, &owners),
                TablePlan::hybrid(&tables[3], Exchange::Rows, FrequentRows::listed(vec![2, 0])),
                TablePlan::replicated(&tables[4]),
                TablePlan::hybrid(&tables[5], Exchange::Rows, FrequentRows::listed(vec![899, 3])),
            ];
            let planned = layout.clone().with_plan(&EmbeddingPlan { topology, tables: plans }).unwrap();
            assert_eq!((layout.owners(), planned.owners()), (local_ranks, local_ranks + 1));
            for layout in [layout, planned] {
                let (mut seen, mut of_owners) = (BTreeSet::new(), vec![0; ranks + 1]);
                for &(_, part) in layout.looked_up() {
                    for row in 0..tables[layout.parts[part].table].rows {
                        let (owner, number) = layout.locate(part, row);
                        // Over several nodes keys are ordered by the owner's local rank, then by its node.
                        let (node, own) = (number as usize / layout.span, number as usize % layout.span);
                        assert!(own < layout.row_numbers() && node < nodes && seen.insert((owner, number)));
                        let of_rank = || topology.rank(Node(node), LocalRank(owner)).0;
                        of_owners[if owner == local_ranks { ranks } else { of_rank() }] += 1;
                    }
                }
                for rank in 0..ranks {
                    let rows: u64 = layout.parts.iter().map(|part| layout.part_rows(Rank(rank), part)).sum();
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
    fn messages_between_nodes_grow_with_the_batch() {
        let (tables, features) = (tables(&[5, 90_000]), [feature(0, 0), feature(1, 8)]);
        let layout = Layout::new(4, 30, 16, &tables, &[Hotness::Fixed(3)], &features).unwrap();
        let layout = layout.with_nodes(2).unwrap();
        let round = |vectors| RoundCapacity { vectors, ids: 1 };
        let plans = tables.iter().zip([round(20), round(50)]);
        let plans =
            plans.map(|(table, round)| TablePlan { round, ..TablePlan::row_wise(table, Exchange::Rows) });
        let topology = Topology::new(4, 2).unwrap();
        let plan = EmbeddingPlan { topology, tables: plans.collect() };
        let layout = layout.with_plan(&plan).unwrap();
        // A rank has at most two of the five rows, and at most 2 * 30 * 3 of the others are named.
        assert_eq!((layout.round_rows(), layout.node_max()), (2 + 50, 2 + 180));
        let rows = |samples| layout.clone().with_samples(samples).unwrap().round_rows();
        assert_eq!([rows(30), rows(300), rows(10), rows(1)], [2 + 50, 2 + 500, 2 + 17, 1 + 2]);
        assert_eq!(layout.clone().with_samples(300).unwrap().node_max(), 2 + 1800);
    }

    #[test]
    fn keys_have_places_of_their_own() {
        let columns = [Hotness::Fixed(1), Hotness::Ragged { max: 5 }, Hotness::Ragged { max: 7 }];
        let features: Vec<_> =
            (0..3).map(|column| Feature { column, ..feature(column, 8 * column) }).collect();
        let layout = Layout::new(1, 3, 24, &tables(&[5, 9, 4]), &columns, &features).unwrap();
        let sequences = [KeySequence { column: 1, stride: 12 }, KeySequence { column: 2, stride: 8 }];
        let key = |sequence, offset| Some(KeyPart { sequence, offset });
        let with = |keys: [Option<KeyPart>; 3]| layout.clone().with_keys(&sequences, &keys);
        let layout = with([None, key(0, 4), key(1, 0)]).unwrap();
        // Three samples, of up to five and seven positions.
        assert_eq!([layout.keys_begin(0), layout.keys_begin(1), layout.key_elements()], [0, 180, 348]);
        // Up to 21 positions.
        assert_eq!((layout.sample_bits(), layout.elements()), (5, 72));
        let of_kernels = layout.kernel_features(Rank(0));
        let of = |number: usize| {
            let kernels::Feature { pooling, vector_offset, key_stride, .. } = of_kernels[number];
            (pooling, vector_offset, key_stride)
        };
        let separate = kernels::BagPooling::Separate as u32;
        assert_eq!([of(0), of(1), of(2)], [(0, 0, 0), (separate, 4, 12), (separate, 180, 8)]);
        let (tasks, counts) = layout.look_up_tasks(&of_kernels);
        assert_eq!((tasks.len(), counts), (3, [1, 0, 0, 0, 0, 0, 2, 0, 0]));
        assert!(layout.look_up_tasks_in_fp8(&of_kernels).is_none());
        assert!(matches!(with([None, key(0, 2), None]), Err(Error::NotByFour { have: 2, .. })));
    }

    #[test]
    fn what_is_not_exchanged_is_refused() {
        let (tables, features) = (tables(&[5]), [feature(0, 0)]);
        let layout = Layout::new(2, 3, 8, &tables, &[Hotness::Fixed(1)], &features).unwrap();
        let topology = Topology::new(2, 1).unwrap();
        let by_columns = TablePlan::column_wise(&tables[0], Exchange::Rows, &[Rank(0), Rank(1)]);
        for plan in [
            TablePlan::hybrid(&tables[0], Exchange::Pooled, FrequentRows::listed(vec![3])),
            TablePlan { frequent: FrequentRows::listed(vec![3]), ..by_columns },
        ] {
            let refused = layout.clone().with_plan(&EmbeddingPlan { topology, tables: vec![plan] });
            assert!(matches!(refused, Err(Error::NotExchanged(_))));
        }
        // Owners pool, but not what is part of a key.
        let pooled = TablePlan::row_wise(&tables[0], Exchange::Pooled);
        let plan = EmbeddingPlan { topology, tables: vec![pooled] };
        assert!(layout.clone().with_plan(&plan).is_ok());
        let sequence = KeySequence { column: 0, stride: 8 };
        let layout = layout.with_keys(&[sequence], &[Some(KeyPart { sequence: 0, offset: 0 })]).unwrap();
        assert!(matches!(layout.with_plan(&plan), Err(Error::NotExchanged(_))));
    }
}
