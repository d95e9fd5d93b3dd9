//! What is wrong with weights of ids that make a row bad.

use rankine_base::escape::excerpt;

use super::values::Values;
use super::{ParquetChunk, ParquetFile, each_part};
use crate::convert::number;
use crate::convert::rows::weights::{WeightedColumn, count_parts, wrong_weight};

impl ParquetFile {
    /// Returns the first value of a row, or part of it, that is not a weight; `values` are the values of the leaf.
    pub(super) fn wrong_weight(&self, values: &Values, row: usize, leaf: usize) -> Option<String> {
        WeightedColumn::with_weights_in(&self.weighted, Some(leaf)).find_map(|column| {
            values.of_row(row).map(|at| values.get(at)).find_map(|value| {
                let Some(separator) = &column.separator else {
                    let is_weight = value.number().and_then(number::weight).is_some();
                    return (!is_weight).then(|| value.with_text(&mut Vec::new(), excerpt));
                };
                let scratch = &mut Vec::new();
                value.with_text(scratch, |text| wrong_weight(|take| each_part(text, separator, take)))
            })
        })
    }

    /// Describes a row with another number of weights, which are in a leaf, than of categories.
    pub(super) fn describe_weight_count(
        &self,
        chunk: &ParquetChunk,
        row: usize,
        leaf: Option<usize>,
    ) -> String {
        let count = |leaf: usize, separator: &Option<String>| {
            let values = &chunk.decoded.columns[leaf];
            let Some(separator) = separator else { return values.of_row(row).len() };
            let parts = |text: &[u8]| count_parts(|take| each_part(text, separator, take));
            values.of_row(row).map(|at| values.get(at).with_text(&mut Vec::new(), parts)).sum()
        };
        let describe = |column: &WeightedColumn<Option<String>>| {
            if chunk.decoded.columns[column.categories].has_nulls(row) {
                let name = &column.name;
                let what = "is null, so that it is unclear which one a weight belongs to";
                return Some(format!("a category of {name} {what}"));
            }
            column.describe_count(count)
        };
        WeightedColumn::with_weights_in(&self.weighted, leaf).find_map(describe).unwrap_or_default()
    }
}
