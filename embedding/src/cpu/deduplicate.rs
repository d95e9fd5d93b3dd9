//! From a batch's ids to each distinct row with the bags that name it.

use super::pool::Bags;

/// The distinct rows of one table in one batch, ascending, each with the bags that look it up, ascending too.
///
/// Distinct row `i` is `rows[i]`, and `bags[starts[i]..starts[i + 1]]` name it, once for each time that they do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// Distinct rows, ascending.
    pub rows: Vec<u64>,
    /// One entry a distinct row and one more.
    pub starts: Vec<u32>,
    /// Bag numbers, one an id of the batch.
    pub bags: Vec<u32>,
    /// `(row, bag)` of each id in one word; kept for its memory.
    keys: Vec<u64>,
}

impl Route {
    /// Sorts the ids of a batch by row, then by bag.
    ///
    /// # Panics
    /// Where an id is not below `rows`, or a table of `rows` rows and a batch of this many bags need more than 64 bits
    /// together (2^32 bags of a table with 2^32 rows).
    pub fn build(&mut self, bags: Bags<'_>, rows: u64) {
        let bag_bits = u64::BITS - (bags.len() as u64).leading_zeros();
        let row_bits = u64::BITS - rows.leading_zeros();
        assert!(bag_bits + row_bits <= u64::BITS, "{rows} rows and {} bags do not fit one key", bags.len());
        self.keys.clear();
        for bag in 0..bags.len() {
            self.keys.extend(bags.bag(bag).iter().map(|&row| {
                assert!(row < rows, "row {row} is not below {rows}");
                row << bag_bits | bag as u64
            }));
        }
        // Equal keys are a bag that names a row twice: which of them comes first makes no difference.
        self.keys.sort_unstable();

        self.rows.clear();
        self.starts.clear();
        self.bags.clear();
        let mut last = None;
        for (position, key) in self.keys.iter().enumerate() {
            let row = key >> bag_bits;
            if last != Some(row) {
                self.rows.push(row);
                self.starts.push(position as u32);
                last = Some(row);
            }
            self.bags.push((key & ((1 << bag_bits) - 1)) as u32);
        }
        self.starts.push(self.keys.len() as u32);
    }

    /// The bags that look up distinct row `index`.
    pub fn bags_of(&self, index: usize) -> &[u32] {
        &self.bags[self.starts[index] as usize..self.starts[index + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn every_id_is_found_under_its_row(
            bags in prop::collection::vec(prop::collection::vec(0..20u64, 0..4), 0..40),
        ) {
            let ids: Vec<u64> = bags.iter().flatten().copied().collect();
            let mut offsets = vec![0];
            offsets.extend(bags.iter().scan(0, |end, bag| { *end += bag.len() as u32; Some(*end) }));
            let mut expected = BTreeMap::<u64, Vec<u32>>::new();
            for (number, bag) in bags.iter().enumerate() {
                for &row in bag {
                    expected.entry(row).or_default().push(number as u32);
                }
            }
            let mut route = Route::default();
            route.build(Bags { offsets: &offsets, ids: &ids }, 20);
            prop_assert_eq!(&route.rows, &expected.keys().copied().collect::<Vec<_>>());
            for (index, bags) in expected.values().enumerate() {
                prop_assert_eq!(route.bags_of(index), bags.as_slice());
            }
        }
    }
}
