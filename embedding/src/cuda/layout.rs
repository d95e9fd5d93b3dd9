//! Who owns which row, and where ids and vectors lie.

use rankine_cuda::kernels::{self, GROUP_KEYS, RANKS_MAX, Reduce, TILE};

use super::error::{Error, Result};
#[cfg(doc)]
use crate::placement::Owner;
use crate::table::TableSpec;

/// A categorical feature of one id a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// The number of the table that it looks up.
    pub table: usize,
    /// The element where its vector begins in a sample's.
    pub column: usize,
}

/// How tables and batches are laid out over the ranks of a node.
///
/// Row `r` of a table belongs to rank `r mod ranks` ([`Owner::EveryRank`]). At its owner it is row
/// `bases[table] + r / ranks`: an owner's rows ascend by table, and by row within a table, and every owner has room for
/// as many rows of a table as the one with most.
#[derive(Debug, Clone)]
pub struct Layout {
    pub(super) ranks: usize,
    pub(super) samples: usize,
    pub(super) dim: usize,
    pub(super) stride: usize,
    pub(super) tables: Vec<TableSpec>,
    /// Where each table's rows begin at every owner, and where the last one's end.
    pub(super) bases: Vec<u64>,
    pub(super) features: Vec<Feature>,
    /// Keys of an owner: its rows, rounded up to whole groups.
    pub(super) span: usize,
}

impl Layout {
    /// A layout for batches of `samples` samples a rank, whose vectors lie in `[sample, stride]` matrices.
    ///
    /// # Panics
    /// Where a feature names a table or columns that there are not, or where tables have different dims.
    ///
    /// # Errors
    /// Where something is larger than the exchange can number, or where dims, stride or columns are no multiples of 4.
    pub fn new(
        ranks: usize,
        samples: usize,
        stride: usize,
        tables: &[TableSpec],
        features: &[Feature],
    ) -> Result<Self> {
        let dim = tables[0].dim;
        assert!(tables.iter().all(|table| table.dim == dim), "an exchange is of tables of one dim");
        assert!(
            features.iter().all(|feature| feature.table < tables.len() && feature.column + dim <= stride)
        );
        let lengths = features.iter().map(|feature| ("a column", feature.column + 4));
        for (what, have) in lengths.chain([("the dim of a table", dim), ("the stride", stride)]) {
            if have == 0 || have % 4 != 0 {
                return Err(Error::NotByFour { what, have });
            }
        }
        let mut bases = vec![0];
        for table in tables {
            bases.push(bases[bases.len() - 1] + table.rows.div_ceil(ranks.max(1) as u64));
        }
        let span = bases[tables.len()].next_multiple_of(GROUP_KEYS as u64);
        let limits = [
            ("ranks", ranks as u64, RANKS_MAX as u64),
            ("features", features.len() as u64, Reduce::FEATURES_MAX as u64),
            ("rows, rounded up over all owners", span * ranks as u64, u64::from(u32::MAX)),
            ("elements of a rank's vectors", (samples * stride) as u64, u64::from(u32::MAX)),
            ("ids of a rank's batch", (samples * features.len()) as u64, 1 << (2 * kernels::DIGIT_BITS_MAX)),
        ];
        for (what, have, most) in limits {
            if have > most {
                return Err(Error::TooLarge { what, have, most });
            }
        }
        Ok(Self {
            ranks,
            samples,
            dim,
            stride,
            tables: tables.to_vec(),
            bases,
            features: features.to_vec(),
            span: span as usize,
        })
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
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Features.
    pub fn features(&self) -> usize {
        self.features.len()
    }

    /// Elements of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a set of all keys, one bit each.
    pub fn key_bytes(&self) -> usize {
        self.span * self.ranks / 8
    }

    /// Ids of a rank's batch: feature by feature, one a sample.
    pub fn ids(&self) -> usize {
        self.samples * self.features.len()
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

    /// Bits of a bag that are the sample's; the feature's are above.
    pub fn sample_bits(&self) -> u32 {
        usize::BITS - (self.samples - 1).leading_zeros()
    }

    /// The bag of each id: they are the same in every batch.
    pub(super) fn bags(&self) -> Vec<u32> {
        let bits = self.sample_bits();
        let of_feature = |feature: u32| (0..self.samples as u32).map(move |sample| feature << bits | sample);
        (0..self.features.len() as u32).flat_map(of_feature).collect()
    }

    /// Features as the kernels have them.
    pub(super) fn kernel_features(&self) -> Vec<kernels::Feature> {
        let of = |(number, feature): (usize, &Feature)| kernels::Feature {
            first: (number * self.samples) as u32,
            base: self.bases[feature.table] as u32,
            rows: self.tables[feature.table].rows as u32,
            column: feature.column as u32,
        };
        self.features.iter().enumerate().map(of).collect()
    }

    /// Tiles of a batch's ids.
    pub(super) fn tiles(&self) -> usize {
        self.ids().div_ceil(TILE as usize)
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
        rows.iter().map(|&rows| TableSpec { name: "t".into(), rows, dim: 8 }).collect()
    }

    #[test]
    fn every_row_has_one_place() {
        let tables = tables(&[5, 1, 70_000, 3]);
        for ranks in 1..=4 {
            let layout = Layout::new(ranks, 3, 8, &tables, &[Feature { table: 2, column: 0 }]).unwrap();
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
        let feature = [Feature { table: 0, column: 0 }];
        let refused = |ranks, samples, stride, rows: u64, feature: Feature| {
            Layout::new(ranks, samples, stride, &tables(&[rows]), &[feature]).unwrap_err()
        };
        assert!(matches!(refused(9, 1, 8, 5, feature[0]), Error::TooLarge { what: "ranks", .. }));
        assert!(matches!(refused(2, 1, 8, u64::from(u32::MAX), feature[0]), Error::TooLarge { .. }));
        assert!(matches!(refused(1, (1 << 24) + 1, 8, 5, feature[0]), Error::TooLarge { .. }));
        assert!(matches!(
            refused(1, 1, 10, 5, feature[0]),
            Error::NotByFour { what: "the stride", have: 10 }
        ));
        assert!(matches!(refused(1, 1, 12, 5, Feature { table: 0, column: 2 }), Error::NotByFour { .. }));
    }
}
