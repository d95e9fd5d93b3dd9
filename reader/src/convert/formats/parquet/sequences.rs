//! Rows in which the columns of a sequence have different numbers of categories.

use super::{ParquetChunk, ParquetFile, Target, each_part};
use crate::convert::rows::RawRows;
use crate::convert::rows::fault::unequal_lengths;

impl ParquetFile {
    /// Returns the leaf of a categorical column, and the text between its categories.
    fn categories(&self, column: usize) -> Option<(usize, Option<&str>)> {
        self.actions.iter().find_map(|action| match &action.target {
            Target::Category { number, separator, .. } if *number == column => {
                Some((action.leaf, separator.as_deref()))
            }
            _ => None,
        })
    }

    /// Returns the leaf of the first column whose categories in a row, the last one of `rows`, do not match the others
    /// of its sequence. Nulls of lists are left out, so that later categories would be at other positions.
    pub(super) fn unequal_leaf(&self, chunk: &ParquetChunk, row: usize, rows: &RawRows) -> Option<usize> {
        let leaf = |column: usize| Some(self.categories(column)?.0);
        let mut leaves = rows.columns_of_sequences().filter_map(leaf);
        if let Some(leaf) = leaves.find(|&leaf| chunk.decoded.columns[leaf].has_nulls(row)) {
            return Some(leaf);
        }
        leaf(rows.unequal_column(rows.len())?.column)
    }

    /// Describes a row in which a column of one of the sequences, in a leaf, does not match the first one.
    pub(super) fn describe_sequence(
        &self,
        chunk: &ParquetChunk,
        row: usize,
        (leaf, sequences): (Option<usize>, &[Vec<usize>]),
    ) -> String {
        let values = |leaf: usize| &chunk.decoded.columns[leaf];
        if leaf.is_some_and(|leaf| values(leaf).has_nulls(row)) {
            return "a category is null, so that it is unclear which ones of the sequence belong together"
                .into();
        }
        // The leaf of a column, and its categories in the row.
        let counted = |&column: &usize| {
            let (leaf, separator) = self.categories(column)?;
            let Some(separator) = separator else { return Some((leaf, values(leaf).of_row(row).len())) };
            let mut count = 0;
            for at in values(leaf).of_row(row) {
                let counted = values(leaf).get(at).with_text(&mut Vec::new(), |text| {
                    each_part(text, separator, |_| {
                        count += 1;
                        Ok(())
                    })
                });
                debug_assert!(counted.is_ok());
            }
            Some((leaf, count))
        };
        let differs = sequences.iter().find_map(|columns| {
            let mut columns = columns.iter().filter_map(counted);
            let (of, expected) = columns.next()?;
            let (_, found) = columns.find(|&(own, found)| Some(own) == leaf && found != expected)?;
            Some(unequal_lengths((found, expected), &self.leaves[of].name))
        });
        differs.unwrap_or_default()
    }
}
