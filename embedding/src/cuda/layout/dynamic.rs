//! Dynamic tables in a layout, and where a batch has their ids.

use std::collections::BTreeSet;

use super::Layout;
use crate::membership::DynamicRows;

impl Layout {
    /// The dynamic tables, with their numbers.
    pub(crate) fn dynamic_tables(&self) -> impl Iterator<Item = (usize, DynamicRows)> + '_ {
        self.tables.iter().enumerate().filter_map(|(number, table)| Some((number, table.dynamic?)))
    }

    /// The columns that look up a table, ascending.
    pub(crate) fn id_columns(&self, table: usize) -> BTreeSet<usize> {
        let own = self.features.iter().filter(|feature| feature.table == table);
        own.map(|feature| feature.column).collect()
    }

    /// Whether a column's ids are given rows as they come: a batch has them in 64 bits, too.
    pub fn is_dynamic(&self, column: usize) -> bool {
        self.dynamic_tables().any(|(table, _)| self.id_columns(table).contains(&column))
    }

    /// Room for ids of 64 bits in a rank's batch, column by column.
    pub fn long_ids(&self) -> usize {
        self.long_ids_begin(self.columns.len())
    }

    /// Where the ids of 64 bits of a column start whose ids are given rows.
    pub fn long_ids_begin(&self, column: usize) -> usize {
        let dynamic = (0..column).filter(|&column| self.is_dynamic(column));
        self.samples * dynamic.map(|column| self.columns[column].max()).sum::<usize>()
    }
}
