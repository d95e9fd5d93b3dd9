//! De-duplication: from a batch's ids to its distinct rows, each with the bags that name it.

use super::feature::Feature;

/// The distinct rows of one table in one batch, ascending, each with the bags that look it up, ordered by feature and
/// then by sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Route {
    /// Distinct rows, ascending.
    pub rows: Vec<u64>,
    /// Where each distinct row's bags start, then the end of the last.
    starts: Vec<u32>,
    /// One bag per id of the batch: the feature's number above `sample_bits`, the sample's below.
    bags: Vec<u32>,
    /// The factor of each of these ids' rows in its bag; empty if no feature has weights.
    factors: Vec<f32>,
    sample_bits: u32,
    /// `(row, bag)` of each id in one word; kept to reuse its memory.
    keys: Vec<u64>,
    /// The same with factors, if some feature has weights.
    weighted_keys: Vec<(u64, f32)>,
}

/// One of a batch's bags, which looks up a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BagIndex {
    /// The number of the feature among those of the table.
    pub feature: usize,
    /// The sample.
    pub sample: usize,
    /// The factor of the row in the bag, if a feature of the table has weights.
    pub factor: Option<f32>,
}

impl Route {
    /// Sorts the ids that a batch's features look up in a table by row, then by bag.
    ///
    /// # Panics
    /// If an id is not below `rows`, or if a table of `rows` rows and a batch of this many bags need more than 64
    /// bits together (2^32 bags of a table with 2^32 rows).
    pub fn build(&mut self, features: &[Feature<'_>], rows: u64) {
        let bits = |count: u64| u64::BITS - count.leading_zeros();
        let samples = features.iter().map(|feature| feature.bags.len()).max().unwrap_or(0);
        let (sample_bits, feature_bits) = (bits(samples as u64), bits(features.len() as u64 - 1));
        let bag_bits = sample_bits + feature_bits;
        assert!(
            bag_bits <= u32::BITS && bag_bits + bits(rows) <= u64::BITS,
            "{rows} rows and {} features of {samples} bags do not fit one key",
            features.len()
        );
        self.sample_bits = sample_bits;
        self.keys.clear();
        self.factors.clear();
        let key = |(number, sample): (usize, usize), row: u64| {
            assert!(row < rows, "row {row} is not below {rows}");
            row << bag_bits | (number as u64) << sample_bits | sample as u64
        };
        if features.iter().any(|feature| feature.bags.weights.is_some()) {
            self.sort_weighted(features, key);
        } else {
            for (number, feature) in features.iter().enumerate() {
                for sample in 0..feature.bags.len() {
                    self.keys.extend(feature.bags.bag(sample).iter().map(|&row| key((number, sample), row)));
                }
            }
            // Equal keys are a bag that names a row twice; their order makes no difference.
            self.keys.sort_unstable();
        }

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

    /// Sorts keys with their factors. Of a bag that names a row twice, with two weights, the look-ups stay in order.
    fn sort_weighted(&mut self, features: &[Feature<'_>], key: impl Fn((usize, usize), u64) -> u64) {
        self.weighted_keys.clear();
        for (number, Feature { bags, pooling, .. }) in features.iter().enumerate() {
            for sample in 0..bags.len() {
                let keys = bags.bag(sample).iter().map(|&row| key((number, sample), row));
                match bags.factors(sample, *pooling) {
                    Some(factors) => self.weighted_keys.extend(keys.zip(factors)),
                    None => {
                        let factor = pooling.scale(bags.bag(sample).len());
                        self.weighted_keys.extend(keys.map(|key| (key, factor)));
                    }
                }
            }
        }
        self.weighted_keys.sort_by_key(|(key, _)| *key);
        self.keys.extend(self.weighted_keys.iter().map(|(key, _)| key));
        self.factors.extend(self.weighted_keys.iter().map(|(_, factor)| factor));
    }

    /// The bags that look up distinct row `index`, in order, once per look-up.
    pub fn bags_of(&self, index: usize) -> impl ExactSizeIterator<Item = BagIndex> {
        let sample_bits = self.sample_bits;
        let range = self.starts[index] as usize..self.starts[index + 1] as usize;
        range.map(move |at| {
            let bag = u64::from(self.bags[at]);
            BagIndex {
                feature: (bag >> sample_bits) as usize,
                sample: (bag & ((1 << sample_bits) - 1)) as usize,
                factor: self.factors.get(at).copied(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Bags, FeatureSlot};
    use crate::table::Pooling;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn every_id_is_found_under_its_row(
            features in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(0..20u64, 0..4), 0..40), 1..4,
            ),
        ) {
            let mut expected = BTreeMap::<u64, Vec<BagIndex>>::new();
            for (feature, bags) in features.iter().enumerate() {
                for (sample, bag) in bags.iter().enumerate() {
                    for &row in bag {
                        expected.entry(row).or_default().push(BagIndex { feature, sample, factor: None });
                    }
                }
            }
            let ids = |bags: &Vec<Vec<u64>>| bags.iter().flatten().copied().collect::<Vec<_>>();
            let columns: Vec<_> = features.iter().map(|bags| (offsets_of(bags), ids(bags))).collect();
            let slot = FeatureSlot { stride: 1, offset: 0 };
            let of_batch: Vec<_> = columns.iter().map(|(offsets, ids)| {
                Feature { bags: Bags { offsets, ids, weights: None }, pooling: Pooling::Sum, slot }
            }).collect();
            let mut route = Route::default();
            route.build(&of_batch, 20);
            prop_assert_eq!(&route.rows, &expected.keys().copied().collect::<Vec<_>>());
            for (index, bags) in expected.values().enumerate() {
                prop_assert_eq!(&route.bags_of(index).collect::<Vec<_>>(), bags);
            }
        }
    }

    #[test]
    #[should_panic(expected = "row 20 is not below 20")]
    fn a_row_behind_the_last_one_is_refused() {
        let slot = FeatureSlot { stride: 1, offset: 0 };
        let bags = Bags { offsets: &[0, 2], ids: &[19, 20], weights: None };
        Route::default().build(&[Feature { bags, pooling: Pooling::Sum, slot }], 20);
    }

    fn offsets_of(bags: &[Vec<u64>]) -> Vec<u32> {
        let ends = bags.iter().scan(0, |end, bag| {
            *end += bag.len() as u32;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }
}
