//! What is wrong with weights of ids that make a row bad.

use rankine_base::escape::excerpt;

use super::values::Values;
use super::{ParquetFile, Target, each_part};
use crate::convert::number;
use crate::convert::rows::fault::BadReason;

impl ParquetFile {
    /// Returns the first value of a row, or part of it, that is not a weight; `values` are the values of the leaf.
    pub(super) fn wrong_weight(&self, values: &Values, row: usize, leaf: usize) -> Option<String> {
        let of_leaf = self.actions.iter().filter(|action| action.leaf == leaf);
        let mut separators = of_leaf.filter_map(|action| match &action.target {
            Target::Weights { separator, .. } => Some(separator.as_deref()),
            _ => None,
        });
        separators.find_map(|separator| {
            values.of_row(row).map(|at| values.get(at)).find_map(|value| {
                let Some(separator) = separator else {
                    let is_weight = value.number().and_then(number::weight).is_some();
                    return (!is_weight).then(|| value.with_text(&mut Vec::new(), excerpt));
                };
                let mut wrong = None;
                // It ends at a wrong weight.
                let _ = value.with_text(&mut Vec::new(), |text| {
                    each_part(text, separator, |weight| {
                        let is_weight = number::parse_weight(weight).is_some();
                        wrong = (!is_weight).then(|| excerpt(weight));
                        if is_weight { Ok(()) } else { Err(BadReason::BagWeight) }
                    })
                });
                wrong
            })
        })
    }
}
