//! How often rows are looked up: the input of planning.
//!
//! [`TableFrequencies`] is what is known of a table, from any source: a dataset's own statistics, a
//! [`FrequencySketch`] over drawn samples, or the distribution of ids. [`BagLengths`] is what is known of one
//! feature's bags. [`FrequencyProfile`] is a table's frequencies in a form that answers queries fast, above all how
//! many distinct rows some samples name.

mod profile;
mod sketch;

pub use profile::FrequencyProfile;
pub use sketch::FrequencySketch;

/// How often each row of a table is looked up, over all features that look it up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableFrequencies {
    /// Samples that were counted.
    pub samples: u64,
    /// Ids in all bags of these samples.
    pub lookups: u64,
    /// Rows that were looked up at least once; may be an estimate.
    pub distinct_rows: u64,
    /// `(row, count)` of the most frequent rows, most frequent first, equal counts by row.
    pub head: Vec<(u64, u64)>,
    /// All other looked-up rows.
    pub tail: Vec<CountClass>,
}

/// Some rows that are looked up about equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountClass {
    /// How many there are.
    pub rows: u64,
    /// How often they are looked up together.
    pub lookups: u64,
}

impl TableFrequencies {
    /// Merges those of several features that look up the table in the same samples. A row that is listed for one
    /// feature and not for another counts as two, since its part in the other's tail is not known.
    pub fn merged(of_features: impl IntoIterator<Item = Self>) -> Self {
        let mut of_features = of_features.into_iter();
        let Some(mut merged) = of_features.next() else { return Self::default() };
        let mut more = false;
        for other in of_features {
            more = true;
            merged.samples = merged.samples.max(other.samples);
            merged.lookups += other.lookups;
            merged.head.extend(other.head);
            merged.tail.extend(other.tail);
        }
        if more {
            merged.head.sort_unstable();
            merged.head.dedup_by(|later, first| {
                let same = later.0 == first.0;
                first.1 += if same { later.1 } else { 0 };
                same
            });
            merged.head.sort_unstable_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
            merged.distinct_rows =
                merged.head.len() as u64 + merged.tail.iter().map(|class| class.rows).sum::<u64>();
        }
        merged
    }
}

/// The distribution of the number of ids per bag of one feature.
#[derive(Debug, Clone, PartialEq)]
pub struct BagLengths {
    /// `(ids, share of the bags)`, ascending; shares sum to 1.
    shares: Vec<(f64, f64)>,
}

impl BagLengths {
    /// Lengths up to this are kept exactly, longer ones in groups of similar lengths.
    const EXACT: u32 = 16;

    /// All bags have this many ids.
    pub fn fixed(ids: u32) -> Self {
        Self { shares: vec![(f64::from(ids), 1.0)] }
    }

    /// From counts of bags per length: `(ids, bags)` in any order. Without any, bags are empty.
    pub fn counted(lengths: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let mut groups = std::collections::BTreeMap::<u32, (f64, f64)>::new();
        for (ids, bags) in lengths {
            // An eighth of an octave.
            let group = match ids {
                ids if ids <= Self::EXACT => ids,
                ids => Self::EXACT + (libm::log2(f64::from(ids) / f64::from(Self::EXACT)) * 8.0) as u32 + 1,
            };
            let (sum, count) = groups.entry(group).or_default();
            *sum += f64::from(ids) * bags as f64;
            *count += bags as f64;
        }
        let all: f64 = groups.values().map(|&(_, bags)| bags).sum();
        if all == 0.0 {
            return Self::fixed(0);
        }
        let groups = groups.values().filter(|&&(_, bags)| bags > 0.0);
        Self { shares: groups.map(|&(ids, bags)| (ids / bags, bags / all)).collect() }
    }

    /// Bags of any length up to `max`, equally likely.
    pub fn uniform(max: u32) -> Self {
        Self::counted((0..=max).map(|ids| (ids, 1)))
    }

    /// The mean number of ids per bag.
    pub fn mean(&self) -> f64 {
        self.shares.iter().map(|(ids, share)| ids * share).sum()
    }

    /// The share of bags that hold at least one id of a kind, if each id independently is of that kind with this
    /// probability.
    pub fn hit(&self, probability: f64) -> f64 {
        if probability >= 1.0 {
            return self.shares.iter().filter(|&&(ids, _)| ids > 0.0).map(|(_, share)| share).sum();
        }
        let log = libm::log1p(-probability.max(0.0));
        self.shares.iter().map(|(ids, share)| share * -libm::expm1(ids * log)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_a_table_are_added_up() {
        let first = TableFrequencies {
            samples: 10,
            lookups: 12,
            distinct_rows: 4,
            head: vec![(7, 6), (1, 4)],
            tail: vec![CountClass { rows: 2, lookups: 2 }],
        };
        let second = TableFrequencies {
            samples: 11,
            lookups: 15,
            distinct_rows: 5,
            head: vec![(1, 7), (3, 3)],
            tail: vec![CountClass { rows: 3, lookups: 5 }],
        };
        let merged = TableFrequencies::merged([first.clone(), second]);
        assert_eq!((merged.samples, merged.lookups, merged.distinct_rows), (11, 27, 8));
        assert_eq!(merged.head, [(1, 11), (7, 6), (3, 3)]);
        assert_eq!(merged.tail, [CountClass { rows: 2, lookups: 2 }, CountClass { rows: 3, lookups: 5 }]);
        assert_eq!(TableFrequencies::merged([first.clone()]), first);
    }

    #[test]
    fn bags_are_hit_as_their_lengths_say() {
        let one = BagLengths::fixed(1);
        assert_eq!((one.mean(), one.hit(1.0), one.hit(0.0)), (1.0, 1.0, 0.0));
        assert!((one.hit(0.25) - 0.25).abs() < 1e-15);
        let ragged = BagLengths::counted([(0, 5), (3, 5)]);
        assert_eq!((ragged.mean(), ragged.hit(1.0)), (1.5, 0.5));
        assert!((ragged.hit(0.5) - 0.5 * 0.875).abs() < 1e-15);
        // Long lengths are grouped: the mean stays, and there are few groups.
        let long = BagLengths::uniform(4000);
        assert!((long.mean() - 2000.0).abs() < 1e-9 && long.shares.len() < 100, "{}", long.shares.len());
        let expected: f64 = (0..=4000).map(|ids| 1.0 - 0.999_f64.powi(ids)).sum::<f64>() / 4001.0;
        assert!((long.hit(0.001) - expected).abs() < 1e-3);
        assert_eq!(BagLengths::counted([]).mean(), 0.0);
    }
}
