//! Columns whose categories have weights, and what is wrong with the weights of a row.

use rankine_base::escape::excerpt;

use crate::convert::number::{parse_weight, weight_count};
use crate::convert::rows::fault::BadReason;

/// A categorical column with weights. Where both are texts, the separator `S` divides them.
#[derive(Debug)]
pub(crate) struct WeightedColumn<S> {
    /// Its number among the categorical columns.
    pub(crate) number: usize,
    pub(crate) name: String,
    /// The number of the column of the file that has its weights.
    pub(crate) weights: usize,
    /// The number of the column of the file that has its categories.
    pub(crate) categories: usize,
    pub(crate) separator: S,
}

impl<S> WeightedColumn<S> {
    /// Returns the columns whose weights are in a column of the file.
    pub(crate) fn with_weights_in(columns: &[Self], weights: Option<usize>) -> impl Iterator<Item = &Self> {
        columns.iter().filter(move |column| Some(column.weights) == weights)
    }

    /// Describes a row with another number of weights than of categories; `None` if there are as many. `count` counts
    /// the parts in a column of the file.
    pub(crate) fn describe_count(&self, count: impl Fn(usize, &S) -> usize) -> Option<String> {
        let counts = (count(self.weights, &self.separator), count(self.categories, &self.separator));
        (counts.0 != counts.1).then(|| weight_count(counts, &self.name))
    }
}

/// Takes a part of a text; an error ends the division.
type TakePart<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), BadReason>;

/// Returns the first part of a text that is not a weight. `divide` divides the text.
pub(crate) fn wrong_weight(divide: impl FnOnce(TakePart<'_>) -> Result<(), BadReason>) -> Option<String> {
    let mut wrong = None;
    // It ends at a wrong weight.
    let _ = divide(&mut |weight| {
        let is_weight = parse_weight(weight).is_some();
        wrong = (!is_weight).then(|| excerpt(weight));
        if is_weight { Ok(()) } else { Err(BadReason::BagWeight) }
    });
    wrong
}

/// Returns the number of parts of a text. `divide` divides the text.
pub(crate) fn count_parts(divide: impl FnOnce(TakePart<'_>) -> Result<(), BadReason>) -> usize {
    let mut count = 0;
    // A row with too many parts has another fault.
    let _ = divide(&mut |_| {
        count += 1;
        Ok(())
    });
    count
}
