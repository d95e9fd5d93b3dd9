//! Counts look-ups of a table's rows in bounded memory, however many rows and look-ups there are.
//!
//! Up to its capacity of distinct rows the sketch counts exactly. Beyond that, it keeps two things. First, a lower
//! bound for each of the most frequent rows: whenever there are too many counters, all of them are lowered by the
//! same number until half are left, so that every row's count is known to within the sum of these numbers, which is
//! at most `look-ups / (capacity / 2)` (Misra and Gries, "Finding repeated elements", 1982; lowered by a quantile as
//! in Anderson et al., "A high-performance algorithm for identifying frequent items in data streams", IMC 2017).
//! Second, a sample of all other rows, for the histogram: rows whose hash begins with some zero bits, each counted
//! exactly.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::{BagLengths, CountClass, TableFrequencies};

type Counts = HashMap<u64, u64, BuildHasherDefault<RowHasher>>;

/// A running count of one table's look-ups. It takes at most [`FrequencySketch::BYTES_PER_ROW`] bytes of memory per
/// row of its capacity.
#[derive(Debug)]
pub struct FrequencySketch {
    capacity: usize,
    samples: u64,
    lookups: u64,
    counts: Counts,
    /// By how much counters were lowered in total: no count is too low by more.
    lowered: u64,
    sample: Option<RowSample>,
    lengths: BTreeMap<u32, u64>,
}

/// The rows whose hash begins with `level` zero bits, each with all its look-ups.
#[derive(Debug)]
struct RowSample {
    level: u32,
    counts: Counts,
}

impl FrequencySketch {
    /// Memory per row of the capacity, in two hash tables that double when seven sixteenths are in use.
    pub const BYTES_PER_ROW: usize = 160;
    /// A capacity for tables of any size: at most 160 MiB, and exact up to a million distinct rows.
    pub const CAPACITY: usize = 1 << 20;
    /// The most rows that are listed individually.
    const HEAD_ROWS_MAX: usize = 1 << 20;
    /// Beyond this many distinct bag lengths, longer ones are counted as powers of two.
    const LENGTHS_MAX: usize = 1 << 12;
    /// A row is listed if its count is at least this many times the error; otherwise it is one of the sample's.
    const LISTED_ERRORS: u64 = 8;

    /// Creates a sketch that keeps exact counts of up to `capacity` distinct rows.
    ///
    /// # Panics
    /// With a capacity below 2.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity >= 2, "a sketch needs room");
        Self {
            capacity,
            samples: 0,
            lookups: 0,
            counts: Counts::default(),
            lowered: 0,
            sample: None,
            lengths: BTreeMap::new(),
        }
    }

    /// Counts samples; [`FrequencySketch::add_bag`] must follow for each of their bags.
    pub fn add_samples(&mut self, samples: u64) {
        self.samples += samples;
    }

    /// Counts a bag of one of the samples: its length, and its rows.
    pub fn add_bag(&mut self, rows: &[u64]) {
        let mut length = rows.len() as u32;
        if self.lengths.len() >= Self::LENGTHS_MAX && !self.lengths.contains_key(&length) {
            length = length.next_power_of_two();
        }
        *self.lengths.entry(length).or_default() += 1;
        rows.iter().for_each(|&row| self.add(row, 1));
    }

    /// Counts look-ups of a row.
    pub fn add(&mut self, row: u64, count: u64) {
        self.lookups += count;
        *self.counts.entry(row).or_default() += count;
        if let Some(sample) = &mut self.sample
            && in_sample(row, sample.level)
        {
            *sample.counts.entry(row).or_default() += count;
            sample.thin(self.capacity);
        }
        if self.counts.len() > self.capacity {
            self.lower();
        }
    }

    /// Lowers all counts by as much as leaves half of the capacity.
    fn lower(&mut self) {
        if self.sample.is_none() {
            // So far every row was counted exactly.
            let mut sample = RowSample { level: 0, counts: self.counts.clone() };
            sample.thin(self.capacity / 2);
            self.sample = Some(sample);
        }
        let mut counts: Vec<_> = self.counts.values().copied().collect();
        let at = counts.len() - self.capacity / 2 - 1;
        let (_, &mut by, _) = counts.select_nth_unstable(at);
        self.counts.retain(|_, count| {
            *count = count.saturating_sub(by);
            *count > 0
        });
        self.lowered += by;
    }

    /// By how much a row's count may be too low: 0 as long as all counts are exact.
    pub fn error(&self) -> u64 {
        self.lowered
    }

    /// Bytes of memory of its counters now.
    pub fn bytes(&self) -> usize {
        // The standard map keeps one control byte per bucket, and an eighth of the buckets free.
        let of = |counts: &Counts| counts.capacity() * 8 / 7 * (size_of::<(u64, u64)>() + 1);
        of(&self.counts) + self.sample.as_ref().map_or(0, |sample| of(&sample.counts))
    }

    /// The lengths of the counted bags.
    pub fn bag_lengths(&self) -> BagLengths {
        BagLengths::counted(self.lengths.iter().map(|(&ids, &bags)| (ids, bags)))
    }

    /// Returns the counts. While [`FrequencySketch::error`] is 0 they are exact. Otherwise counts of listed rows are
    /// off by at most a sixteenth, and the number of rows in the tail is estimated from the sampled ones: with `n` of
    /// them, at least a quarter of the capacity minus those that are listed, the relative standard error is `1 /
    /// sqrt(n)`.
    pub fn frequencies(&self) -> TableFrequencies {
        let least = Self::LISTED_ERRORS * self.lowered;
        let listed = |count: u64| count >= least;
        let mut head: Vec<_> = self.counts.iter().map(|(&row, &count)| (row, count)).collect();
        head.retain(|&(_, count)| listed(count));
        head.sort_unstable_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
        let mut classes = BTreeMap::<u64, CountClass>::new();
        let mut add = |rows: u64, lookups: u64| {
            // Counts below 64 are kept exactly; larger counts are grouped by their first six bits.
            let count = lookups / rows;
            let shift = count.max(1).ilog2().saturating_sub(5);
            let class = count >> shift << shift;
            let of = classes.entry(class).or_insert(CountClass { rows: 0, lookups: 0 });
            of.rows += rows;
            of.lookups += lookups;
        };
        for &(_, count) in head.iter().skip(Self::HEAD_ROWS_MAX) {
            add(1, count);
        }
        head.truncate(Self::HEAD_ROWS_MAX);
        let exact = |row: u64| self.sample.as_ref().and_then(|sample| sample.counts.get(&row)).copied();
        if let Some(sample) = &self.sample {
            for (&row, &count) in &sample.counts {
                if !self.counts.get(&row).is_some_and(|&count| listed(count)) {
                    add(1 << sample.level, count << sample.level);
                }
            }
            for (row, count) in &mut head {
                *count = exact(*row).unwrap_or(*count + self.lowered / 2);
            }
            head.sort_unstable_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
        }
        let mut tail: Vec<_> = classes.into_values().rev().collect();
        self.fit(&head, &mut tail);
        let distinct_rows = head.len() as u64 + tail.iter().map(|class| class.rows).sum::<u64>();
        TableFrequencies { samples: self.samples, lookups: self.lookups, distinct_rows, head, tail }
    }

    /// Scales the rows of an estimated tail so that its look-ups are those not in the head.
    fn fit(&self, head: &[(u64, u64)], tail: &mut [CountClass]) {
        let estimated: u64 = tail.iter().map(|class| class.lookups).sum();
        if self.sample.is_none() || estimated == 0 {
            return;
        }
        let left = self.lookups.saturating_sub(head.iter().map(|&(_, count)| count).sum());
        let factor = left as f64 / estimated as f64;
        for class in tail {
            class.rows = ((class.rows as f64 * factor).round() as u64).max(1);
            class.lookups = (class.lookups as f64 * factor).round() as u64;
        }
    }
}

impl RowSample {
    /// Halves the sample until it has at most `rows` rows.
    fn thin(&mut self, rows: usize) {
        while self.counts.len() > rows && self.level < u64::BITS - 1 {
            self.level += 1;
            let level = self.level;
            self.counts.retain(|&row, _| in_sample(row, level));
        }
    }
}

/// Returns whether a row's hash begins with `level` zero bits. The hash must be independent of the maps' hash.
fn in_sample(row: u64, level: u32) -> bool {
    mixed(row ^ 0x9E37_79B9_7F4A_7C15).leading_zeros() >= level
}

/// The finalizer of SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014).
fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A hasher for row numbers only.
#[derive(Debug, Default)]
struct RowHasher(u64);

impl Hasher for RowHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = mixed(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, row: u64) {
        self.0 = mixed(row);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exact(rows: &[u64]) -> BTreeMap<u64, u64> {
        let mut counts = BTreeMap::new();
        rows.iter().for_each(|&row| *counts.entry(row).or_default() += 1);
        counts
    }

    /// Draws from about `k^-1` over `rows` rows, scattered.
    fn skewed(draws: u64, rows: u64) -> Vec<u64> {
        let draw = |i: u64| {
            let unit = (mixed(i) >> 11) as f64 / (1u64 << 53) as f64;
            ((rows as f64).powf(unit) as u64).wrapping_mul(0x9E37_79B9) % rows
        };
        (0..draws).map(draw).collect()
    }

    #[test]
    fn a_sketch_with_room_is_exact() {
        let mut sketch = FrequencySketch::new(8);
        sketch.add_samples(3);
        sketch.add_bag(&[5, 5, 2]);
        sketch.add_bag(&[]);
        sketch.add_bag(&[2, 5, 9]);
        let frequencies = sketch.frequencies();
        assert_eq!((frequencies.samples, frequencies.lookups, frequencies.distinct_rows), (3, 6, 3));
        assert_eq!((frequencies.head, frequencies.tail), (vec![(5, 3), (2, 2), (9, 1)], vec![]));
        assert_eq!((sketch.error(), sketch.bag_lengths().mean()), (0, 2.0));
    }

    #[test]
    fn memory_is_bounded_and_counts_stay_near() {
        let capacity = 4096;
        let rows = skewed(1_000_000, 400_000);
        let mut sketch = FrequencySketch::new(capacity);
        let mut most = 0;
        for &row in &rows {
            sketch.add(row, 1);
            most = most.max(sketch.bytes());
        }
        assert!(most <= capacity * FrequencySketch::BYTES_PER_ROW, "{most} bytes");
        assert!(sketch.error() > 0 && sketch.error() <= rows.len() as u64 / (capacity as u64 / 2));
        let (exact, found) = (exact(&rows), sketch.frequencies());
        assert!(found.head.len() > 50, "{} rows are listed", found.head.len());
        for &(row, count) in &found.head {
            let error = exact[&row].abs_diff(count);
            assert!(error * 16 <= exact[&row], "row {row} has {} and not {count}", exact[&row]);
        }
        // Everything that is frequent enough is listed.
        let least = (FrequencySketch::LISTED_ERRORS + 1) * sketch.error();
        assert!(
            exact
                .iter()
                .filter(|&(_, &count)| count >= least)
                .all(|(row, _)| { found.head.iter().any(|(listed, _)| listed == row) })
        );
        // At least 1024 - 512 sampled rows: 4 standard errors are 0.18.
        let (distinct, estimated) = (exact.len() as f64, found.distinct_rows as f64);
        assert!((estimated / distinct - 1.0).abs() < 0.18, "{estimated} for {distinct}");
        let lookups: u64 =
            found.head.iter().map(|row| row.1).chain(found.tail.iter().map(|c| c.lookups)).sum();
        assert!((lookups as f64 / 1e6 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn rows_that_are_not_listed_stay_apart_by_their_counts() {
        let mut sketch = FrequencySketch::new(1024);
        for round in 0..80 {
            (0..6000).filter(|row| row % 2 == 0 || round < 20).for_each(|row| sketch.add(row, 1));
        }
        let found = sketch.frequencies();
        // More rows than the sketch's capacity, all of them below sixteen times its error.
        assert_eq!((found.head.len(), found.lookups), (0, 3000 * (80 + 20)));
        let means: Vec<_> = found.tail.iter().map(|class| class.lookups as f64 / class.rows as f64).collect();
        // Rows and look-ups are rounded: with more than 1000 rows each, by less than 0.1%.
        assert!(found.tail.iter().all(|class| class.rows > 1000), "{:?}", found.tail);
        assert!((means[0] / 80.0 - 1.0).abs() < 1e-3 && (means[1] / 20.0 - 1.0).abs() < 1e-3, "{means:?}");
        assert_eq!(means.len(), 2);
    }

    proptest! {
        #[test]
        fn no_count_is_further_off_than_the_error(
            rows in prop::collection::vec(0..60u64, 0..600),
            capacity in 2..40usize,
        ) {
            let mut sketch = FrequencySketch::new(capacity);
            rows.iter().for_each(|&row| sketch.add(row, 1));
            prop_assert!(sketch.counts.len() <= capacity);
            prop_assert!(sketch.sample.as_ref().is_none_or(|sample| sample.counts.len() <= capacity));
            prop_assert!(sketch.error() <= rows.len() as u64 / (capacity as u64 / 2).max(1));
            for (row, count) in exact(&rows) {
                let found = sketch.counts.get(&row).copied().unwrap_or(0);
                prop_assert!(found <= count && count <= found + sketch.error());
                if let Some(of_sample) = sketch.sample.as_ref().and_then(|sample| sample.counts.get(&row)) {
                    prop_assert_eq!(*of_sample, count);
                }
            }
        }

        #[test]
        fn any_counts_make_frequencies(counts in prop::collection::vec((0..30u64, 1..u64::from(u32::MAX)), 0..60)) {
            let mut sketch = FrequencySketch::new(8);
            counts.iter().for_each(|&(row, count)| sketch.add(row, count));
            let found = sketch.frequencies();
            prop_assert!(found.head.is_sorted_by_key(|&(row, count)| (std::cmp::Reverse(count), row)));
            prop_assert_eq!(found.lookups, counts.iter().map(|count| count.1).sum::<u64>());
        }
    }
}
