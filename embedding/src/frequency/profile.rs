//! How many distinct rows of a table some samples name.
//!
//! The samples of a batch are drawn without replacement from those that were counted. Their ids are then some of the
//! counted look-ups, also drawn without replacement, as many as the samples have on average: `s` of `L`. A row with
//! `c` of the look-ups is missed by all of them with the hypergeometric probability
//!
//! ```text
//! C(L - c, s) / C(L, s) = prod (1 - M / (L - i)), i from 0 to m - 1        m = min(c, s), M = max(c, s)
//!                       ~ (1 - M / (L - (m - 1) / 2))^m
//! ```
//!
//! and the expected number of distinct rows is the sum of `1 -` that over all rows. If all samples of a dataset were
//! counted, this is what its batches hold; every epoch draws them anew. If the counted samples are themselves drawn
//! from the dataset, it is the same expectation, since a sample of a sample is distributed like a sample of the
//! whole: rows that the counted samples lack need no assumption as long as a batch is no larger than they are
//! (rarefaction; Hurlbert, "The nonconcept of species diversity", 1971). Larger batches need one: further samples
//! name new rows at the rate of the last counted sample, which is the rate of rows counted once (Good, "The
//! population frequencies of species", 1953).

use std::ops::Range;

use super::TableFrequencies;
use crate::placement::FrequentRows;

/// A table's frequencies in classes of rows that are looked up about equally often, most frequent first.
#[derive(Debug, Clone)]
pub struct FrequencyProfile {
    table_rows: u64,
    samples: f64,
    lookups: f64,
    classes: Vec<Class>,
    /// Classes whose rows are known individually.
    listed_classes: usize,
    /// The rows of those classes.
    listed: Vec<u64>,
}

/// Rows of about the same frequency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Class {
    /// Number of rows.
    pub(crate) rows: f64,
    /// Look-ups per row.
    pub(crate) count: f64,
    /// Listed rows before this class.
    pub(crate) first: usize,
    /// The row, if there is only one and it is known.
    pub(crate) row: Option<u64>,
}

impl FrequencyProfile {
    /// This many of the most frequent rows are classes of one row.
    const SINGLE_ROWS: usize = 512;
    /// A class spans counts down to this share of its highest.
    const CLASS_SPAN: f64 = 0.98;

    /// Creates the profile of a table with this many rows.
    pub fn new(table_rows: u64, frequencies: &TableFrequencies) -> Self {
        let head = &frequencies.head;
        let mut classes = Vec::new();
        let mut start = 0;
        while start < head.len() {
            let most = head[start].1 as f64;
            let mut end = start + 1;
            if start >= Self::SINGLE_ROWS {
                end += head[end..].partition_point(|&(_, count)| count as f64 >= most * Self::CLASS_SPAN);
            }
            let lookups: u64 = head[start..end].iter().map(|&(_, count)| count).sum();
            let rows = (end - start) as f64;
            let row = (end - start == 1).then_some(head[start].0);
            classes.push(Class { rows, count: lookups as f64 / rows, first: start, row });
            start = end;
        }
        let listed_classes = classes.len();
        let tail = frequencies.tail.iter().filter(|class| class.rows > 0);
        let mut tail: Vec<_> = tail
            .map(|class| {
                let (rows, lookups) = (class.rows as f64, class.lookups as f64);
                Class { rows, count: lookups / rows, first: head.len(), row: None }
            })
            .collect();
        tail.sort_by(|a, b| b.count.total_cmp(&a.count));
        classes.extend(tail);
        Self {
            table_rows,
            samples: frequencies.samples as f64,
            lookups: frequencies.lookups as f64,
            classes,
            listed_classes,
            listed: head.iter().map(|&(row, _)| row).collect(),
        }
    }

    /// The mean number of ids per sample, over all features that look the table up.
    pub fn lookups_per_sample(&self) -> f64 {
        if self.samples == 0.0 { 0.0 } else { self.lookups / self.samples }
    }

    /// The samples that were counted.
    pub(crate) fn samples(&self) -> f64 {
        self.samples
    }

    /// The expected number of distinct rows that `samples` samples of one batch name.
    pub fn distinct(&self, samples: f64) -> f64 {
        self.distinct_after(0, samples)[0]
    }

    pub(crate) fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Class numbers at which the rows can be split: those before are then frequent, and all of them are known.
    pub(crate) fn splits(&self) -> Range<usize> {
        0..self.listed_classes + 1
    }

    /// Rows before a split.
    pub(crate) fn rows_before(&self, split: usize) -> u64 {
        self.classes[..split].last().map_or(0, |class| class.first as u64 + class.rows as u64)
    }

    /// The rows before a split.
    pub(crate) fn frequent(&self, split: usize) -> FrequentRows {
        FrequentRows::listed(self.listed[..self.rows_before(split) as usize].to_vec())
    }

    /// The mean number of ids per sample that name a row of each class or of a later one: one number per class, and a
    /// final 0.
    pub(crate) fn lookups_after(&self) -> Vec<f64> {
        let samples = self.samples.max(1.0);
        suffix_sums(self.classes.iter().map(|class| class.rows * class.count / samples), 0.0)
    }

    /// The expected number of distinct rows that `samples` samples name, of each class from `first` on and all later
    /// ones: one number per class, and a last one for rows that were never counted.
    pub(crate) fn distinct_after(&self, first: usize, samples: f64) -> Vec<f64> {
        let counted = samples.min(self.samples);
        let named = self.classes[first..].iter().map(|class| class.rows * self.named(class.count, counted));
        let seen: f64 = self.classes.iter().map(|class| class.rows).sum();
        let unseen = (self.table_rows as f64 - seen).max(0.0);
        let rare: f64 = self.classes.iter().filter(|class| class.count < 1.5).map(|class| class.rows).sum();
        let new = if samples > counted { rare * (samples - counted) / counted.max(1.0) } else { 0.0 };
        suffix_sums(named, new.min(unseen))
    }

    /// The probability that a row with a count is named by some samples.
    pub(crate) fn named(&self, count: f64, samples: f64) -> f64 {
        if samples >= self.samples {
            return 1.0;
        }
        let drawn = samples * self.lookups_per_sample();
        let (fewer, more) = (count.min(drawn), count.max(drawn));
        if fewer <= 1.0 {
            return (fewer * more / self.lookups).min(1.0);
        }
        let named_each = more / (self.lookups - (fewer - 1.0) / 2.0);
        if named_each >= 1.0 { 1.0 } else { -libm::expm1(fewer * libm::log1p(-named_each)) }
    }
}

/// The sum of each value and all later ones, plus `last`; and finally `last` itself.
fn suffix_sums(values: impl DoubleEndedIterator<Item = f64>, last: f64) -> Vec<f64> {
    let mut sums = vec![last];
    let mut sum = last;
    for value in values.rev() {
        sum += value;
        sums.push(sum);
    }
    sums.reverse();
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frequency::sketch::FrequencySketch;

    /// A number from 0 to 1 per counter.
    fn unit(counter: u64) -> f64 {
        let words = crate::random::philox4x32([counter as u32, (counter >> 32) as u32, 0, 0], [1, 2]);
        f64::from(words[0]) / 4_294_967_296.0
    }

    /// `samples` bags of `ids` ids each from about `k^-1` over `rows` rows.
    fn dataset(samples: usize, ids: usize, rows: u64) -> Vec<Vec<u64>> {
        let id = |i: usize| (((rows + 1) as f64).powf(unit(i as u64)) as u64).clamp(1, rows) - 1;
        (0..samples).map(|sample| (0..ids).map(|number| id(sample * ids + number)).collect()).collect()
    }

    fn counted<'a>(bags: impl IntoIterator<Item = &'a Vec<u64>>, capacity: usize) -> TableFrequencies {
        let mut sketch = FrequencySketch::new(capacity);
        for bag in bags {
            sketch.add_samples(1);
            sketch.add_bag(bag);
        }
        sketch.frequencies()
    }

    /// The mean number of distinct rows of some samples, over shuffles of the dataset.
    fn drawn(bags: &[Vec<u64>], samples: usize) -> f64 {
        let rounds = 40;
        let mut order: Vec<_> = (0..bags.len()).collect();
        let mut distinct = 0;
        for round in 0..rounds {
            for at in 0..samples {
                let left = bags.len() - at;
                let with = at + (unit(u64::MAX - (round * bags.len() + at) as u64) * left as f64) as usize;
                order.swap(at, with);
            }
            let rows: std::collections::BTreeSet<_> =
                order[..samples].iter().flat_map(|&i| &bags[i]).collect();
            distinct += rows.len();
        }
        distinct as f64 / rounds as f64
    }

    #[test]
    fn expected_distinct_rows_equal_those_of_batches() {
        for (samples, ids, rows) in [(3000, 1, 5000), (3000, 1, 40), (2000, 5, 900), (500, 30, 100_000)] {
            let bags = dataset(samples, ids, rows);
            let profile = FrequencyProfile::new(rows, &counted(&bags, 1 << 20));
            assert_eq!(profile.lookups_per_sample(), ids as f64);
            for part in [1, 7, samples / 20, samples / 3, samples - 1, samples] {
                let (expected, drawn) = (profile.distinct(part as f64), drawn(&bags, part));
                // With few samples, draws scatter: the standard error of 40 means is below a sixth of a square root.
                let slack = 0.01 * drawn + 0.6 * drawn.sqrt().min(4.0);
                assert!((expected - drawn).abs() < slack, "{ids} of {rows}, {part}: {expected} for {drawn}");
            }
        }
    }

    #[test]
    fn a_part_of_a_dataset_predicts_the_whole() {
        let bags = dataset(200_000, 1, 1_000_000);
        let all = FrequencyProfile::new(1_000_000, &counted(&bags, 1 << 20));
        // Every tenth sample, counted exactly and through a sketch that is much too small.
        let tenth = || bags.iter().step_by(10);
        for capacity in [1 << 20, 2048] {
            let part = FrequencyProfile::new(1_000_000, &counted(tenth(), capacity));
            for samples in [100.0, 2000.0, 15_000.0, 20_000.0] {
                let (of_all, of_part) = (all.distinct(samples), part.distinct(samples));
                let tolerance = if capacity == 2048 { 0.1 } else { 0.03 };
                assert!((of_part / of_all - 1.0).abs() < tolerance, "{samples}: {of_part} for {of_all}");
            }
            // Beyond the part the estimate is extrapolated: the distribution bends, so the estimate is too high, but
            // not by much.
            let ratio = part.distinct(40_000.0) / all.distinct(40_000.0);
            assert!((0.95..1.3).contains(&ratio), "{ratio}");
        }
    }

    /// Compared with the exact product, within the error of the midpoint rule.
    #[test]
    fn a_row_is_named_with_the_hypergeometric_probability() {
        let head: Vec<(u64, u64)> = vec![(0, 100), (1, 30), (2, 7), (3, 1)];
        let tail = vec![crate::frequency::CountClass { rows: 431, lookups: 862 }];
        let frequencies =
            TableFrequencies { samples: 500, lookups: 1000, distinct_rows: 435, head: head.clone(), tail };
        let profile = FrequencyProfile::new(1000, &frequencies);
        let all = 1000.0;
        for (_, count) in head {
            for samples in [1u64, 4, 20, 60] {
                let drawn = 2 * samples;
                let (m, most) = (count.min(drawn), count.max(drawn) as f64);
                let missed: f64 = (0..m).map(|i| 1.0 - most / (all - i as f64)).product();
                // The sum of m values of f(i) = ln(1 - M / (L - i)) minus m times the middle one: m (m² - 1) / 24 of
                // f''.
                let left = all - (m - 1) as f64;
                let bend = most * (2.0 * left - most) / (left * (left - most)).powi(2);
                let slack = missed * (m * (m * m - 1)) as f64 / 24.0 * bend * 1.01 + 1e-12;
                let named = profile.named(count as f64, samples as f64);
                assert!((named - (1.0 - missed)).abs() <= slack, "{count}, {samples}: {named}, 1 - {missed}");
            }
            assert_eq!(profile.named(count as f64, 500.0), 1.0);
        }
    }

    #[test]
    fn splits_say_which_rows_are_frequent() {
        let frequencies = TableFrequencies {
            samples: 10,
            lookups: 10,
            distinct_rows: 4,
            head: vec![(9, 5), (2, 3), (4, 1)],
            tail: vec![crate::frequency::CountClass { rows: 1, lookups: 1 }],
        };
        let profile = FrequencyProfile::new(20, &frequencies);
        assert_eq!(profile.splits(), 0..4);
        assert_eq!((0..4).map(|split| profile.rows_before(split)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let frequent = profile.frequent(2);
        assert_eq!((frequent.len(), frequent.row(0), frequent.row(1)), (2, 2, 9));
        assert_eq!(profile.lookups_after(), [1.0, 0.5, 0.2, 0.1, 0.0]);
        assert_eq!(profile.distinct_after(1, 10.0), [3.0, 2.0, 1.0, 0.0]);
        // Twice as many samples as were counted: the two rows that were seen once stand for two new ones.
        assert_eq!(profile.distinct(20.0), 6.0);
        // A thousand times as many name no more rows than exist, and rows that were seen twice stand for none.
        assert_eq!(profile.distinct(10_000.0), 20.0);
        let head = vec![(9, 6), (2, 2), (4, 2)];
        let twice = TableFrequencies { distinct_rows: 3, head, tail: Vec::new(), ..frequencies };
        assert_eq!(FrequencyProfile::new(20, &twice).distinct(20.0), 3.0);
    }

    proptest! {
        #[test]
        fn expectations_are_possible(
            counts in prop::collection::vec(1..50u64, 1..40),
            samples in 1..100u64,
            part in 0.0..1.0f64,
        ) {
            let mut head: Vec<_> = (0..).zip(counts.iter().copied()).collect();
            head.sort_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
            let lookups = counts.iter().sum();
            let distinct_rows = counts.len() as u64;
            let frequencies = TableFrequencies { samples, lookups, distinct_rows, head, tail: vec![] };
            let profile = FrequencyProfile::new(1000, &frequencies);
            let drawn = part * samples as f64;
            let distinct = profile.distinct(drawn);
            let most = (drawn * profile.lookups_per_sample()).min(distinct_rows as f64);
            prop_assert!(distinct >= 0.0 && distinct <= most * (1.0 + 1e-9) + 1e-9, "{distinct} of {most}");
            prop_assert!(profile.distinct(drawn + 0.5) >= distinct);
        }
    }
}
