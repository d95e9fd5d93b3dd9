//! A table that scores, some of whose rows are replaced while threads look up the others.

use std::sync::Arc;

use super::pool::RowWeights;
use super::table::Table;
use crate::membership::index::SlotIndex;
use crate::table::TableSpec;

/// Replaced rows that are kept apart from their table; beyond this, or half of the table, the table is copied.
const APART_MAX: usize = 1 << 31;

/// Rows of a table with their new weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChangedRows {
    /// The rows.
    pub rows: Vec<u64>,
    /// Their weights, `[row][dim]`.
    pub weights: Vec<f32>,
}

/// A table whose rows are not changed in place: [`PatchedTable::with`] returns another one that shares all rows but the
/// new ones. So threads that look rows up never see a part of a change, and a mapped table stays mapped.
#[derive(Debug, Clone)]
pub struct PatchedTable {
    table: Arc<Table>,
    /// The replaced rows.
    changed: Arc<ChangedRows>,
    /// Their places by row.
    index: Arc<SlotIndex>,
}

impl PatchedTable {
    /// Wraps a table.
    pub fn new(table: Table) -> Self {
        Self { table: Arc::new(table), changed: Arc::default(), index: Arc::new(SlotIndex::new(0)) }
    }

    /// Returns the table with other weights of some rows. Takes time and memory for all rows that were replaced since
    /// the table was loaded; if they are more than half of it, for the whole table.
    ///
    /// # Panics
    /// If a row is not in the table, or weights have another length.
    pub fn with(&self, new: &ChangedRows) -> Self {
        let dim = self.spec().dim;
        assert_eq!(new.weights.len(), new.rows.len() * dim, "weights of each row");
        assert!(new.rows.iter().all(|&row| row < self.spec().rows), "rows of the table");
        let mut changed = (*self.changed).clone();
        for (&row, weights) in new.rows.iter().zip(new.weights.chunks_exact(dim)) {
            match self.index.find(row, &self.changed.rows) {
                Some(slot) => changed.weights[slot as usize * dim..][..dim].copy_from_slice(weights),
                None => {
                    changed.rows.push(row);
                    changed.weights.extend_from_slice(weights);
                }
            }
        }
        if changed.rows.len() as u64 > self.spec().rows / 2 || changed.rows.len() > APART_MAX {
            let mut table = (*self.table).clone();
            for (&row, weights) in changed.rows.iter().zip(changed.weights.chunks_exact(dim)) {
                table.weights_mut(row).copy_from_slice(weights);
            }
            return Self::new(table);
        }
        let mut index = SlotIndex::new(changed.rows.len() as u64);
        (0..changed.rows.len()).for_each(|slot| index.insert(slot as u32, &changed.rows));
        Self { table: Arc::clone(&self.table), changed: Arc::new(changed), index: Arc::new(index) }
    }
}

impl RowWeights for PatchedTable {
    fn spec(&self) -> &TableSpec {
        self.table.spec()
    }

    #[inline]
    fn weights(&self, row: u64) -> &[f32] {
        let ChangedRows { rows, weights } = &*self.changed;
        if rows.is_empty() {
            return self.table.weights(row);
        }
        match self.index.find(row, rows) {
            Some(slot) => {
                let dim = self.spec().dim;
                &weights[slot as usize * dim..][..dim]
            }
            None => self.table.weights(row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::optimizer::Optimizer;

    #[test]
    fn a_changed_table_has_its_new_rows_and_the_one_before_keeps_its_own() {
        let spec = TableSpec { name: "t".into(), rows: 9, dim: 2, dtype: Dtype::Fp32, dynamic: None };
        let table = Table::filled(spec, Optimizer::sgd(0.0), |row, weights| weights.fill(row as f32));
        let changed = |rows: &[u64], by: f32| ChangedRows {
            rows: rows.to_vec(),
            weights: rows.iter().flat_map(|&row| [row as f32 + by; 2]).collect(),
        };
        let first = PatchedTable::new(table);
        let second = first.with(&changed(&[7, 0], 10.0));
        // A row again, and another one.
        let third = second.with(&changed(&[3, 7], 20.0));
        // More than half of the rows.
        let fourth = third.with(&changed(&[8, 1, 2], 30.0));
        let rows = |table: &PatchedTable| (0..9).map(|row| table.weights(row)[1]).collect::<Vec<_>>();
        assert_eq!(rows(&first), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(rows(&second), [10.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 17.0, 8.0]);
        assert_eq!(rows(&third), [10.0, 1.0, 2.0, 23.0, 4.0, 5.0, 6.0, 27.0, 8.0]);
        assert_eq!(rows(&fourth), [10.0, 31.0, 32.0, 23.0, 4.0, 5.0, 6.0, 27.0, 38.0]);
        assert!(Arc::ptr_eq(&first.table, &third.table) && fourth.changed.rows.is_empty());
    }
}
