//! Who owns which row, and where ids and vectors lie.

use rankine_cuda::Pointer;
use rankine_cuda::kernels::{
    self, GROUP_KEYS, LookUpTask, RANKS_MAX, Route, Segment, SparseUpdate, TableRule,
};

use super::error::{Error, Result};
use super::router::tiles;
use crate::dtype::Dtype;
use crate::optimizer::Optimizer;
#[cfg(doc)]
use crate::placement::Owner;
use crate::table::{Pooling, TableSpec};

/// Elements that rows are read by.
const VECTOR: usize = 4;

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
/// Row `r` of a table belongs to rank `r mod ranks` ([`Owner::EveryRank`]). At its owner it is row
/// `bases[table] + r / ranks`: an owner's rows ascend by table, and by row within a table, and every owner has room for
/// as many rows of a table as the one with most. Rows are filled up with zeros to a multiple of four elements.
#[derive(Debug, Clone)]
pub struct Layout {
    pub(super) ranks: usize,
    pub(super) samples: usize,
    pub(super) stride: usize,
    pub(super) tables: Vec<TableSpec>,
    /// Where each table's rows begin at every owner, and where the last one's end.
    pub(super) bases: Vec<u64>,
    /// One a table.
    pub(super) optimizers: Vec<Optimizer>,
    /// Where each table begins in an owner's memory, in words of four bytes, and where the last one ends.
    pub(super) words: Vec<u64>,
    pub(super) columns: Vec<Hotness>,
    pub(super) features: Vec<Feature>,
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
            column < columns.len() && table < tables.len() && place + filled_up(&tables[table]) <= stride
        }));
        let places = features.iter().map(|feature| ("where a vector begins", feature.place));
        for (what, have) in places.chain([("the stride", stride)]) {
            if have % VECTOR != 0 {
                return Err(Error::NotByFour { what, have });
            }
        }
        let mut bases = vec![0];
        for table in tables {
            bases.push(bases[bases.len() - 1] + table.rows.div_ceil(ranks.max(1) as u64));
        }
        let span = bases[tables.len()].next_multiple_of(GROUP_KEYS as u64);
        let layout = Self {
            ranks,
            samples,
            stride,
            tables: tables.to_vec(),
            bases,
            optimizers: Vec::new(),
            words: Vec::new(),
            columns: columns.to_vec(),
            features: features.to_vec(),
            span: span as usize,
        };
        let layout = layout.with_optimizers(&vec![Optimizer::sgd(0.0); tables.len()]);
        let widest = tables.iter().map(|table| table.dim).max().unwrap_or(0);
        let limits = [
            ("ranks", ranks as u64, RANKS_MAX as u64),
            ("features", features.len() as u64, Route::FEATURES_MAX as u64),
            ("elements of a row", widest as u64, 4 * u64::from(SparseUpdate::<f32>::VECTORS_MAX)),
            ("rows, rounded up over all owners", span * ranks as u64, u64::from(u32::MAX)),
            ("elements of a rank's vectors", (samples * stride) as u64, u64::from(u32::MAX)),
            ("bags of a rank's batch", (features.len() as u64) << layout.sample_bits(), u64::from(u32::MAX)),
            ("ids of a rank's batch", layout.ids().max(layout.look_ups()) as u64, Route::LOOK_UPS_MAX),
        ];
        match limits.into_iter().find(|(_, have, most)| have > most) {
            Some((what, have, most)) => Err(Error::TooLarge { what, have, most }),
            None => Ok(layout),
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
        self.words = vec![0];
        for table in 0..self.tables.len() {
            let rows = self.bases[table + 1] - self.bases[table];
            self.words.push(self.words[table] + rows * self.row_words(table) as u64);
        }
        self
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

    /// Bytes of a set of all keys, one bit each.
    pub fn key_bytes(&self) -> usize {
        self.span * self.ranks / 8
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

    /// Look-ups of a rank's batch, at most: each feature's ids.
    pub fn look_ups(&self) -> usize {
        (0..self.features.len()).map(|feature| self.feature_look_ups(feature)).sum()
    }

    /// Look-ups of a feature, at most.
    pub(super) fn feature_look_ups(&self, feature: usize) -> usize {
        self.samples * self.columns[self.features[feature].column].max()
    }

    /// Elements of a rank's vectors.
    pub fn elements(&self) -> usize {
        self.samples * self.stride
    }

    /// The rank that owns a row, and the row's number there.
    pub fn place(&self, table: usize, row: u64) -> (usize, u64) {
        ((row % self.ranks as u64) as usize, self.bases[table] + row / self.ranks as u64)
    }

    /// The table and row that an owner has as its row `row`.
    pub fn row_of(&self, owner: usize, row: u64) -> (usize, u64) {
        let table = self.bases.partition_point(|&base| base <= row) - 1;
        (table, (row - self.bases[table]) * self.ranks as u64 + owner as u64)
    }

    /// Rows that every owner has room for.
    pub fn owner_rows(&self) -> usize {
        self.bases[self.tables.len()] as usize
    }

    /// Words of four bytes that an owner's rows take.
    pub fn owner_words(&self) -> usize {
        self.words[self.tables.len()] as usize
    }

    /// Words of four bytes from one row of a table to the next.
    pub(super) fn row_words(&self, table: usize) -> usize {
        let (spec, rule) = (&self.tables[table], self.optimizers[table].rule);
        weight_words(spec) + rule.state_elements(filled_up(spec)).next_multiple_of(VECTOR)
    }

    /// How the rows of each table learn, as the kernels have it.
    pub(super) fn kernel_rules(&self) -> Vec<TableRule> {
        let of = |(table, optimizer): (&TableSpec, &Optimizer)| TableRule {
            rule: optimizer.into(),
            dim: table.dim as u32,
            first: weight_words(table) as u32,
            second: (weight_words(table) + filled_up(table)) as u32,
            dtype: kernel_dtype(table),
        };
        self.tables.iter().zip(&self.optimizers).map(of).collect()
    }

    /// Vectors of the widest row.
    pub(super) fn vectors(&self) -> usize {
        self.tables.iter().map(|table| filled_up(table) / VECTOR).max().unwrap_or(0)
    }

    /// Bits of a bag that are the sample's; the feature's are above.
    pub fn sample_bits(&self) -> u32 {
        usize::BITS - (self.samples - 1).leading_zeros()
    }

    /// Features as the kernels have them.
    pub(super) fn kernel_features(&self) -> Vec<kernels::Feature> {
        let of = |feature: &Feature| {
            let &Feature { column, table, place, pooling } = feature;
            let ragged = matches!(self.columns[column], Hotness::Ragged { .. });
            kernels::Feature {
                words: self.words[table],
                ids: self.ids_begin(column) as u32,
                offsets: if ragged { self.offsets_begin(column) as u32 } else { kernels::Feature::FIXED },
                hotness: self.columns[column].max() as u32,
                mean: u32::from(pooling == Pooling::Mean),
                base: self.bases[table] as u32,
                rows: self.tables[table].rows as u32,
                row_words: self.row_words(table) as u32,
                dim: filled_up(&self.tables[table]) as u32,
                place: place as u32,
                table: table as u32,
                dtype: kernel_dtype(&self.tables[table]),
                reserved: 0,
            }
        };
        self.features.iter().map(of).collect()
    }

    /// Tables as the kernels have them that set their first weights. Those from number `drawn` on begin with zeros.
    pub(super) fn kernel_tables(&self, drawn: usize) -> Vec<kernels::Table> {
        let of = |(number, table): (usize, &TableSpec)| kernels::Table {
            words: self.words[number],
            base: self.bases[number] as u32,
            bound: if number < drawn { table.initial_bound() } else { 0.0 },
            dim: table.dim as u32,
            row_words: self.row_words(number) as u32,
            dtype: kernel_dtype(table),
            reserved: 0,
        };
        self.tables.iter().enumerate().map(of).collect()
    }
}

/// What look-ups and routes have of a layout.
impl Layout {
    /// The features' numbers in the order of segments.
    pub(super) fn segment_features(&self) -> Vec<u32> {
        let mut order: Vec<_> = (0..self.features.len() as u32).collect();
        order.sort_by_key(|&feature| self.segment(feature));
        order
    }

    /// What a feature's look-ups are sorted with: on one GPU with those of the same table, and else with all, since
    /// keys go by owner first.
    fn segment(&self, feature: u32) -> Option<usize> {
        (self.ranks == 1).then(|| self.features[feature as usize].table)
    }

    /// The segments, as the kernels have them that sort look-ups.
    pub(super) fn segments(&self) -> Vec<Segment> {
        let (mut first, mut tile) = (0, 0);
        let of = |features: &[u32]| {
            let (base, keys) = match self.segment(features[0]) {
                Some(table) => (self.bases[table], self.tables[table].rows),
                None => (0, (self.span * self.ranks) as u64),
            };
            let bits = (u64::BITS - (keys - 1).leading_zeros()).max(1);
            let passes = bits.div_ceil(Route::DIGIT_BITS);
            let segment = Segment {
                first,
                features: features.len() as u32,
                base: base as u32,
                tile,
                passes,
                digit_bits: bits.div_ceil(passes),
            };
            first += segment.features;
            let look_ups = features.iter().map(|&feature| self.feature_look_ups(feature as usize)).sum();
            tile += tiles(look_ups) as u32;
            segment
        };
        let together = |one: &u32, other: &u32| self.segment(*one) == self.segment(*other);
        self.segment_features().chunk_by(together).map(of).collect()
    }

    /// Blocks that look up all features' samples, by the types of their tables, and how many there are of each.
    pub(super) fn look_up_tasks(&self) -> (Vec<LookUpTask>, [u32; 3]) {
        let (mut tasks, mut counts) = (Vec::new(), [0; 3]);
        for (dtype, count) in (0..).zip(&mut counts) {
            let before = tasks.len();
            for (number, feature) in (0..).zip(&self.features) {
                let table = &self.tables[feature.table];
                if kernel_dtype(table) == dtype {
                    let (hotness, dim) = (self.columns[feature.column].max(), filled_up(table));
                    let (samples, hotness, dim) = (self.samples as u32, hotness as u32, dim as u32);
                    tasks.extend(LookUpTask::of_feature(number, samples, hotness, dim));
                }
            }
            *count = (tasks.len() - before) as u32;
        }
        (tasks, counts)
    }
}

/// Elements of a table's row, filled up to whole vectors.
fn filled_up(table: &TableSpec) -> usize {
    table.dim.next_multiple_of(VECTOR)
}

/// Words of four bytes that a row's weights take: state begins where rows can be read by vectors of f32.
fn weight_words(table: &TableSpec) -> usize {
    (filled_up(table) * table.dtype.bytes() / 4).next_multiple_of(VECTOR)
}

/// What a table is stored as, as the kernels have it.
fn kernel_dtype(table: &TableSpec) -> u32 {
    match table.dtype {
        Dtype::Fp32 => kernels::Dtype::Fp32 as u32,
        Dtype::Bf16 => kernels::Dtype::Bf16 as u32,
        Dtype::Fp16 => kernels::Dtype::Fp16 as u32,
    }
}

/// What the exchange between ranks has of a layout: one id a sample, a column a feature, tables of one dim.
impl Layout {
    /// Refuses what is not exchanged.
    pub(super) fn check_exchange(&self) -> Result<()> {
        let in_order = self.features.iter().map(|feature| feature.column).eq(0..self.columns.len());
        if !in_order || self.columns.iter().any(|&hotness| hotness != Hotness::Fixed(1)) {
            return Err(Error::NotExchanged("columns of other than one id a sample, or of several features"));
        }
        if self.tables.iter().any(|table| table.dim != self.dim()) {
            return Err(Error::NotExchanged("tables of different dims"));
        }
        if self.tables.iter().any(|table| table.dtype != Dtype::Fp32) {
            return Err(Error::NotExchanged("tables of other types than fp32"));
        }
        let have = self.dim();
        if have.is_multiple_of(VECTOR) {
            Ok(())
        } else {
            Err(Error::NotByFour { what: "the dim of a table", have })
        }
    }

    /// Elements of a row.
    pub(super) fn dim(&self) -> usize {
        self.tables[0].dim
    }

    /// Distinct rows that a rank can look up at one owner.
    pub fn entries_max(&self) -> usize {
        self.ids().min(self.span)
    }

    /// Distinct rows of an owner that all ranks together can look up.
    pub(super) fn union_max(&self) -> usize {
        (self.ids() * self.ranks).min(self.span)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn tables(rows: &[u64]) -> Vec<TableSpec> {
        rows.iter().map(|&rows| TableSpec { name: "t".into(), rows, dim: 8, dtype: Dtype::Fp32 }).collect()
    }

    fn feature(table: usize, place: usize) -> Feature {
        Feature { column: 0, table, place, pooling: Pooling::Sum }
    }

    #[test]
    fn every_row_has_one_place() {
        let tables = tables(&[5, 1, 70_000, 3]);
        for ranks in 1..=4 {
            let layout = Layout::new(ranks, 3, 8, &tables, &[Hotness::Fixed(1)], &[feature(2, 0)]).unwrap();
            let mut seen = BTreeSet::new();
            for (table, spec) in tables.iter().enumerate() {
                for row in 0..spec.rows {
                    let (owner, place) = layout.place(table, row);
                    assert!(
                        owner < ranks
                            && (place as usize) < layout.owner_rows()
                            && seen.insert((owner, place))
                    );
                    assert_eq!(layout.row_of(owner, place), (table, row));
                }
            }
            // Room for one row a table and owner that is not there, at most.
            assert!(layout.owner_rows() * ranks - seen.len() <= tables.len() * (ranks - 1));
            assert!(layout.span >= layout.owner_rows());
        }
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
    fn only_one_id_a_sample_and_one_dim_are_exchanged() {
        let layout = |dims: [usize; 2], columns: [Hotness; 2], of: [usize; 2]| {
            let table = |dim| TableSpec { name: "t".into(), rows: 3, dim, dtype: Dtype::Fp32 };
            let feature = |number: usize| Feature { column: of[number], ..feature(number, 8 * number) };
            Layout::new(2, 3, 16, &dims.map(table), &columns, &[feature(0), feature(1)]).unwrap()
        };
        let one = Hotness::Fixed(1);
        assert!(layout([8, 8], [one, one], [0, 1]).check_exchange().is_ok());
        for (dims, columns, of) in [
            ([8, 4], [one, one], [0, 1]),
            ([8, 8], [one, Hotness::Fixed(2)], [0, 1]),
            ([8, 8], [Hotness::Ragged { max: 1 }, one], [0, 1]),
            ([8, 8], [one, one], [0, 0]),
        ] {
            assert!(matches!(layout(dims, columns, of).check_exchange(), Err(Error::NotExchanged(_))));
        }
        let uneven = layout([6, 6], [one, one], [0, 1]).check_exchange();
        assert!(matches!(uneven, Err(Error::NotByFour { have: 6, .. })));
    }
}
