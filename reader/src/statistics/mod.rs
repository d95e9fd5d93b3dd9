//! How often each row of each table is looked up in the training part: the input to planning.
//!
//! The size is bounded for any table: the most frequent rows are listed one by one, the rest is a histogram.

mod frequencies;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use rankine_base::error::{Error, Result};
use rankine_base::system;

use crate::popularity::Popularity;
use crate::samples::Bags;
use crate::schema::{Categorical, Schema};

pub use crate::popularity::TailBucket;
pub use frequencies::RowFrequencies;

/// Maximum number of rows of a table that are listed one by one.
pub const HEAD_ROWS_MAX: usize = 1 << 20;
/// Number of buckets: rows after the head are grouped by the bit length of their count.
pub const TAIL_BUCKETS: usize = 64;

/// The file that holds the statistics of all columns, in the schema's order.
pub const FILE_NAME: &str = "statistics.bin";
const MAGIC: [u8; 8] = *b"RKNSTATS";
const VERSION: u64 = 1;

/// The frequency statistics of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableStatistics {
    /// Number of bags, which is the number of samples.
    pub bags: u64,
    /// Ids in all bags.
    pub lookups: u64,
    /// Rows looked up at least once.
    pub distinct_rows: u64,
    /// `(row, count)`, most frequent first, equal counts in row order.
    pub head: Vec<(u64, u64)>,
    /// The rows after the head: bucket `b` has those whose count `c` satisfies `2^b <= c < 2^(b + 1)`.
    pub tail: [TailBucket; TAIL_BUCKETS],
}

impl TableStatistics {
    /// Returns whether look-ups are known by row. They are not if the vocabulary is open, and ids are keys.
    pub fn counts_rows(&self) -> bool {
        self.lookups == 0 || self.distinct_rows > 0
    }

    /// Returns the sums over head and tail of rows and look-ups, which must equal [`TableStatistics::distinct_rows`]
    /// and [`TableStatistics::lookups`], or `None` if they overflow.
    fn sums(&self) -> Option<(u64, u64)> {
        let head = self.head.iter().map(|&(_, count)| (1, count));
        let tail = self.tail.iter().map(|bucket| (bucket.rows, bucket.lookups));
        let add = |(rows, lookups): (u64, u64), (more, count): (u64, u64)| {
            Some((rows.checked_add(more)?, lookups.checked_add(count)?))
        };
        head.chain(tail).try_fold((0, 0), add)
    }

    /// Returns the share of all look-ups that the most frequent 1% of a table's rows have, in `0..=1`.
    pub fn top_1_percent_share(&self, rows: u64) -> f64 {
        self.coverage(rows.div_ceil(100))
    }

    /// Returns the share of all look-ups that the most frequent `rows` rows have, in `0..=1`. Exact within the head;
    /// after it the rows of a bucket count as equally frequent.
    pub fn coverage(&self, rows: u64) -> f64 {
        RowFrequencies::new(self, None).coverage(rows)
    }
}

/// Counts look-ups of every row of a table from any number of threads; the sums do not depend on the order. Takes
/// eight bytes per row.
#[derive(Debug, Default)]
pub(crate) struct TableCounter {
    bags: AtomicU64,
    counts: Vec<AtomicU64>,
    /// Whether the counts are given from the start, so that only bags are counted.
    known: bool,
    /// The look-ups of these bags, if the known counts are sums with earlier ones.
    own: Option<Vec<AtomicU64>>,
    /// The look-ups of a column whose vocabulary is open: its keys are not counted one by one.
    of_keys: Option<AtomicU64>,
}

/// Memory for a row: its counter, and its code once all look-ups are counted.
const COUNTER_ROW_BYTES: u64 = size_of::<AtomicU64>() as u64 + 1;

/// Returns the memory that this process could have if nothing else ran.
fn memory_bytes() -> u64 {
    let limit = |memory: system::Memory| memory.cgroup_limit_bytes.unwrap_or(memory.total_bytes);
    system::memory().map_or(u64::MAX, limit)
}

/// Returns a counter for each categorical column of a schema.
///
/// # Errors
/// [`Error::TooLarge`] if this machine does not have enough memory for them.
pub(crate) fn counters(schema: &Schema) -> Result<Vec<TableCounter>> {
    let rows = schema.categorical.iter().filter_map(|column| column.rows).map(u128::from);
    let bytes = rows.sum::<u128>() * u128::from(COUNTER_ROW_BYTES);
    let memory = memory_bytes();
    let refuse = || {
        let what = format!(
            "counting how often each row of the tables is looked up takes {COUNTER_ROW_BYTES} bytes per row, {} GiB \
             for these tables, but this machine has {} GiB of memory: reduce the tables' rows",
            bytes.div_ceil(1 << 30),
            memory >> 30
        );
        Error::too_large(memory, what)
    };
    if bytes > u128::from(memory) {
        return Err(refuse());
    }
    let counter = |column: &Categorical| match column.rows {
        Some(rows) => TableCounter::new(rows).ok_or_else(refuse),
        None => Ok(TableCounter::of_keys()),
    };
    schema.categorical.iter().map(counter).collect()
}

impl TableCounter {
    /// Returns `None` if the memory cannot be allocated.
    fn new(rows: u64) -> Option<Self> {
        // A zeroed allocation consists of untouched pages: rows that never occur cost no memory.
        let counts = bytemuck::allocation::try_zeroed_vec(usize::try_from(rows).ok()?).ok()?;
        Some(Self { counts, ..Self::default() })
    }

    /// Returns a counter of bags and ids alone, for a column whose vocabulary is open.
    fn of_keys() -> Self {
        Self { of_keys: Some(AtomicU64::new(0)), ..Self::default() }
    }

    /// Returns a counter with look-ups that were counted before, row by row, when the vocabulary was learnt.
    pub(crate) fn known(counts: &[u64]) -> Self {
        let counts = counts.iter().map(|&count| AtomicU64::new(count)).collect();
        Self { counts, known: true, ..Self::default() }
    }

    /// Counts the look-ups of its bags beside the known counts, which are sums with earlier ones.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the memory cannot be allocated.
    pub(crate) fn count_own(&mut self) -> Result<()> {
        if self.known {
            let rows = self.counts.len() as u64;
            let bytes = rows.saturating_mul(8);
            let refuse =
                || Error::too_large(bytes, format!("counting {rows} rows takes {bytes} bytes of memory"));
            self.own = Some(Self::new(rows).ok_or_else(refuse)?.counts);
        }
        Ok(())
    }

    pub(crate) fn add(&self, bags: &Bags) {
        self.bags.fetch_add(bags.offsets.len() as u64 - 1, Ordering::Relaxed);
        if let Some(lookups) = &self.of_keys {
            lookups.fetch_add(bags.ids.len() as u64, Ordering::Relaxed);
            return;
        }
        let counts = match &self.own {
            Some(own) => own,
            None if self.known => return,
            None => &self.counts,
        };
        for &id in &bags.ids {
            counts[id as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how often the bags look up each row. Must be called before [`TableCounter::added_to`], which adds
    /// earlier counts.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the memory cannot be allocated.
    pub(crate) fn popularity(&self) -> Result<Popularity> {
        let counts = self.own.as_ref().unwrap_or(&self.counts);
        Popularity::of_counts(counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Returns the sum of earlier statistics of the same table and these counts.
    ///
    /// The tail of `earlier` is a histogram, which does not record row numbers. Rows that are counted here and are not
    /// in its head are assumed to be the rows of the tail, matched by descending count. No row is counted twice, and
    /// the number of look-ups is exact. Without a tail, everything is exact.
    pub(crate) fn added_to(&self, earlier: Option<&TableStatistics>) -> TableStatistics {
        let Some(earlier) = earlier else { return self.statistics() };
        self.bags.fetch_add(earlier.bags, Ordering::Relaxed);
        if let Some(lookups) = &self.of_keys {
            lookups.fetch_add(earlier.lookups, Ordering::Relaxed);
        }
        if self.known || self.of_keys.is_some() {
            return self.statistics();
        }
        let mut tail = earlier.tail;
        if tail.iter().any(|bucket| bucket.rows > 0) {
            let in_head: HashSet<u64> = earlier.head.iter().map(|&(row, _)| row).collect();
            let counted =
                self.counts.iter().enumerate().map(|(row, count)| (count.load(Ordering::Relaxed), row));
            let mut fresh: Vec<_> =
                counted.filter(|&(count, row)| count > 0 && !in_head.contains(&(row as u64))).collect();
            fresh.sort_unstable_by_key(|&(count, row)| (Reverse(count), row));
            let mut fresh = fresh.into_iter();
            for bucket in tail.iter_mut().rev() {
                while bucket.rows > 0
                    && let Some((_, row)) = fresh.next()
                {
                    let lookups = bucket.lookups / bucket.rows;
                    bucket.rows -= 1;
                    bucket.lookups -= lookups;
                    self.counts[row].fetch_add(lookups, Ordering::Relaxed);
                }
            }
        }
        for &(row, count) in &earlier.head {
            self.counts[row as usize].fetch_add(count, Ordering::Relaxed);
        }
        self.statistics_with(tail)
    }

    pub(crate) fn statistics(&self) -> TableStatistics {
        self.statistics_with([TailBucket::default(); TAIL_BUCKETS])
    }

    /// Returns the statistics of the counts and of rows without numbers, of which there are `tail`.
    fn statistics_with(&self, mut tail: [TailBucket; TAIL_BUCKETS]) -> TableStatistics {
        let of_keys = self.of_keys.as_ref().map_or(0, |lookups| lookups.load(Ordering::Relaxed));
        let mut lookups = of_keys + tail.iter().map(|bucket| bucket.lookups).sum::<u64>();
        let mut distinct_rows = tail.iter().map(|bucket| bucket.rows).sum();
        let mut to_tail = |count: u64| {
            let bucket = &mut tail[count.ilog2() as usize];
            bucket.rows += 1;
            bucket.lookups += count;
        };
        let by_frequency = |&(row, count): &(u64, u64)| (Reverse(count), row);
        let mut cut = |head: &mut Vec<(u64, u64)>| {
            if head.len() > HEAD_ROWS_MAX {
                head.select_nth_unstable_by_key(HEAD_ROWS_MAX, by_frequency);
                head.drain(HEAD_ROWS_MAX..).for_each(|(_, count)| to_tail(count));
            }
        };
        let mut head = Vec::new();
        for (row, count) in (0..).zip(&self.counts) {
            let count = count.load(Ordering::Relaxed);
            if count == 0 {
                continue;
            }
            lookups += count;
            distinct_rows += 1;
            head.push((row, count));
            if head.len() == 2 * HEAD_ROWS_MAX {
                cut(&mut head);
            }
        }
        cut(&mut head);
        // Rows of a new vocabulary are nearly in this order, which makes a stable sort fast.
        head.sort_by_key(by_frequency);
        TableStatistics { bags: self.bags.load(Ordering::Relaxed), lookups, distinct_rows, head, tail }
    }
}

/// Adds up the statistics of one table over several datasets that number its rows alike.
///
/// Heads add up row by row. A tail does not record row numbers, so its rows are matched by descending count, as far as
/// possible: with rows that only other heads list, then with the rows of other tails. No row is counted twice, and the
/// number of look-ups is exact; without tails, everything is.
#[derive(Debug, Default)]
pub(crate) struct TableSum {
    bags: u64,
    /// The counts of the rows that a head has listed.
    counts: BTreeMap<u64, u64>,
    tail: Tail,
    /// Look-ups of keys, which are not counted one by one.
    of_keys: u64,
}

/// Rows without numbers, by the bit length of their count.
#[derive(Debug, Clone, Copy)]
struct Tail([TailBucket; TAIL_BUCKETS]);

impl Default for Tail {
    fn default() -> Self {
        Self([TailBucket::default(); TAIL_BUCKETS])
    }
}

impl Tail {
    fn is_empty(&self) -> bool {
        self.0.iter().all(|bucket| bucket.rows == 0)
    }

    /// Takes up to `rows` of the most frequent rows: returns how many and their look-ups, all of one bucket; `None` if
    /// there is no row.
    fn take(&mut self, rows: u64) -> Option<(u64, u64)> {
        let bucket = self.0.iter_mut().rev().find(|bucket| bucket.rows > 0)?;
        let rows = rows.min(bucket.rows);
        let lookups = first_of(rows, bucket.rows, bucket.lookups);
        bucket.rows -= rows;
        bucket.lookups -= lookups;
        Some((rows, lookups))
    }

    /// Adds rows of about the same count.
    fn put(&mut self, rows: u64, lookups: u64) {
        let (each, more) = (lookups / rows, lookups % rows);
        for (rows, count) in [(more, each + 1), (rows - more, each)] {
            if rows > 0 {
                let bucket = &mut self.0[count.ilog2() as usize];
                bucket.rows += rows;
                bucket.lookups += rows * count;
            }
        }
    }

    /// Adds the rows of another tail, matched by descending count.
    fn add(&mut self, mut other: Self) {
        let mut sum = Self::default();
        while let Some((rows, lookups)) = other.take(u64::MAX) {
            let (mut left, mut of_other) = (rows, lookups);
            while left > 0 {
                let (matched, mine) = self.take(left).unwrap_or((left, 0));
                let theirs = first_of(matched, left, of_other);
                sum.put(matched, mine + theirs);
                left -= matched;
                of_other -= theirs;
            }
        }
        while let Some((rows, lookups)) = self.take(u64::MAX) {
            sum.put(rows, lookups);
        }
        *self = sum;
    }
}

/// Returns the look-ups of the first `rows` out of `of_rows` rows, which have `lookups` as evenly as possible: the
/// first ones have one more than the others.
fn first_of(rows: u64, of_rows: u64, lookups: u64) -> u64 {
    lookups / of_rows * rows + (lookups % of_rows).min(rows)
}

impl TableSum {
    /// Adds the statistics of a dataset.
    pub(crate) fn add(&mut self, table: TableStatistics) {
        self.bags += table.bags;
        if !table.counts_rows() {
            self.of_keys += table.lookups;
        }
        let mut tail = Tail(table.tail);
        if !tail.is_empty() {
            // Rows that only earlier heads list are taken for the first ones of this tail.
            let listed: HashSet<u64> = table.head.iter().map(|&(row, _)| row).collect();
            let mut others: Vec<_> =
                self.counts.iter_mut().filter(|(row, _)| !listed.contains(row)).collect();
            others.sort_by_key(|(_, count)| Reverse(**count));
            for (_, count) in others {
                let Some((_, lookups)) = tail.take(1) else { break };
                *count += lookups;
            }
        }
        for (row, count) in table.head {
            *self.counts.entry(row).or_insert_with(|| {
                // A row that only this head lists is taken for the first one of the earlier tails.
                self.tail.take(1).map_or(0, |(_, lookups)| lookups)
            }) += count;
        }
        self.tail.add(tail);
    }

    /// Returns the sum.
    pub(crate) fn finish(self) -> TableStatistics {
        let mut head: Vec<_> = self.counts.into_iter().collect();
        head.sort_by_key(|&(row, count)| (Reverse(count), row));
        let mut tail = self.tail;
        for (_, count) in head.drain(head.len().min(HEAD_ROWS_MAX)..) {
            tail.put(1, count);
        }
        let by_row = head.iter().map(|&(_, count)| count).chain(tail.0.iter().map(|bucket| bucket.lookups));
        let lookups = by_row.sum::<u64>() + self.of_keys;
        let distinct_rows = head.len() as u64 + tail.0.iter().map(|bucket| bucket.rows).sum::<u64>();
        TableStatistics { bags: self.bags, lookups, distinct_rows, head, tail: tail.0 }
    }
}

/// Serializes the statistics of all tables as specified in `docs/reference/dataset-format.md`.
pub(crate) fn to_bytes(tables: &[TableStatistics]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    let mut put = |value: u64| out.extend_from_slice(&value.to_le_bytes());
    put(VERSION);
    put(tables.len() as u64);
    for table in tables {
        put(table.bags);
        put(table.lookups);
        put(table.distinct_rows);
        put(table.head.len() as u64);
        for &(row, count) in &table.head {
            put(row);
            put(count);
        }
        for bucket in &table.tail {
            put(bucket.rows);
            put(bucket.lookups);
        }
    }
    out
}

/// Parses the result of [`to_bytes`].
pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Vec<TableStatistics>, String> {
    let mut rest = bytes.strip_prefix(&MAGIC).ok_or("it does not start with RKNSTATS")?;
    let mut take = || {
        let (first, after) = rest.split_first_chunk::<8>().ok_or("it ends too early")?;
        rest = after;
        Ok::<u64, String>(u64::from_le_bytes(*first))
    };
    let version = take()?;
    if version != VERSION {
        return Err(format!("it has version {version}, but this program reads {VERSION}"));
    }
    let table_count = take()?;
    let mut tables = Vec::new();
    for _ in 0..table_count {
        let (bags, lookups, distinct_rows, head_rows) = (take()?, take()?, take()?, take()?);
        if head_rows > HEAD_ROWS_MAX as u64 {
            return Err(format!("a head of {head_rows} rows is over the limit of {HEAD_ROWS_MAX}"));
        }
        let head = (0..head_rows).map(|_| Ok((take()?, take()?))).collect::<Result<_, String>>()?;
        let mut tail = [TailBucket::default(); TAIL_BUCKETS];
        for bucket in &mut tail {
            *bucket = TailBucket { rows: take()?, lookups: take()? };
        }
        let table = TableStatistics { bags, lookups, distinct_rows, head, tail };
        let summed = if table.counts_rows() { lookups } else { 0 };
        if table.sums() != Some((distinct_rows, summed)) {
            return Err(format!("the counts of table {} do not add up", tables.len()));
        }
        tables.push(table);
    }
    if !rest.is_empty() {
        return Err(format!("{} bytes follow its last table", rest.len()));
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schema::{Categorical, DenseDtype, Hotness, Pooling, VocabularyKind};

    #[test]
    fn counts_are_listed_by_frequency_and_survive_the_file() {
        let counter = TableCounter::new(10).unwrap();
        let mut bags = Bags::default();
        bags.push([3, 3, 7]);
        bags.push([]);
        bags.push([1, 7, 3]);
        counter.add(&bags);
        let statistics = counter.statistics();
        assert_eq!((statistics.bags, statistics.lookups, statistics.distinct_rows), (3, 6, 3));
        assert_eq!(statistics.head, [(3, 3), (7, 2), (1, 1)]);
        assert_eq!(statistics.coverage(1), 0.5);
        assert_eq!(statistics.coverage(99), 1.0);
        let tables = vec![statistics.clone(), statistics];
        assert_eq!(from_bytes(&to_bytes(&tables)).unwrap(), tables);
        let bytes = to_bytes(&tables);
        for len in 0..bytes.len() {
            assert!(from_bytes(&bytes[..len]).is_err());
        }
        assert!(from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn coverage_takes_the_most_frequent_rows_first() {
        let mut table = TableStatistics {
            bags: 9,
            lookups: 100,
            distinct_rows: 8,
            head: vec![(5, 40), (2, 20)],
            tail: [TailBucket::default(); TAIL_BUCKETS],
        };
        // Two rows of 8 to 15 look-ups, four of 4 to 7.
        table.tail[3] = TailBucket { rows: 2, lookups: 20 };
        table.tail[2] = TailBucket { rows: 4, lookups: 20 };
        let shares: Vec<_> = (0..10).map(|rows| table.coverage(rows)).collect();
        assert_eq!(shares, [0.0, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.0]);
        let none = TableCounter::new(3).unwrap().statistics();
        assert_eq!(none.coverage(3), 0.0);
    }

    /// Counts look-ups of a table of this many rows.
    fn counted(rows: u64, ids: &[u64]) -> TableStatistics {
        let counter = TableCounter::new(rows).unwrap();
        let mut bags = Bags::default();
        ids.iter().for_each(|&id| bags.push([id]));
        counter.add(&bags);
        counter.statistics()
    }

    /// Moves the rows of the head after the first `len` to the tail, as if there were no room for them.
    fn cut(table: &TableStatistics, len: usize) -> TableStatistics {
        let mut cut = table.clone();
        for (_, count) in cut.head.drain(len.min(table.head.len())..) {
            let bucket = &mut cut.tail[count.ilog2() as usize];
            (bucket.rows, bucket.lookups) = (bucket.rows + 1, bucket.lookups + count);
        }
        cut
    }

    proptest! {
        #[test]
        fn statistics_add_up(
            ids in prop::collection::vec(prop::collection::vec(0..30u64, 0..200), 1..5),
            heads in prop::collection::vec(0..30usize, 5),
        ) {
            let tables: Vec<_> = ids.iter().map(|ids| counted(30, ids)).collect();
            let sum = |tables: &[TableStatistics]| {
                let mut sum = TableSum::default();
                tables.iter().for_each(|table| sum.add(table.clone()));
                sum.finish()
            };
            // Without tails it is exact.
            let whole = counted(30, &ids.concat());
            prop_assert_eq!(sum(&tables), whole.clone());
            // With them look-ups are, and no row is counted twice.
            let cut: Vec<_> = tables.iter().zip(heads).map(|(table, len)| cut(table, len)).collect();
            let found = sum(&cut);
            prop_assert_eq!((found.bags, found.lookups), (whole.bags, whole.lookups));
            prop_assert_eq!(found.sums(), Some((found.distinct_rows, found.lookups)));
            prop_assert!(found.distinct_rows <= 30);
            prop_assert!(found.distinct_rows >= tables.iter().map(|table| table.distinct_rows).max().unwrap_or(0));
            prop_assert!(from_bytes(&to_bytes(&[found])).is_ok());
        }
    }

    #[test]
    fn rows_of_tails_are_matched_by_descending_count() {
        // Heads of one row: 8 look-ups of row 0; 6 of row 1.
        let one = cut(&counted(4, &[[0; 8].as_slice(), &[1; 4], &[2; 2]].concat()), 1);
        let other = cut(&counted(4, &[[1; 6].as_slice(), &[3; 5], &[2; 1]].concat()), 1);
        let mut sum = TableSum::default();
        sum.add(one);
        sum.add(other);
        let found = sum.finish();
        // Row 0 is taken for the row of 5 in the other tail, row 1 for the row of 4; the rows of 2 and of 1 match.
        assert_eq!(found.head, [(0, 13), (1, 10)]);
        assert_eq!((found.distinct_rows, found.lookups), (3, 26));
        assert_eq!(found.tail[1], TailBucket { rows: 1, lookups: 3 });
    }

    #[test]
    fn known_counts_are_not_counted_again() {
        let counter = TableCounter::known(&[5, 0, 7, 5]);
        let mut bags = Bags::default();
        bags.push([0, 2]);
        bags.push([]);
        counter.add(&bags);
        counter.add(&bags);
        let statistics = counter.statistics();
        assert_eq!((statistics.bags, statistics.lookups, statistics.distinct_rows), (4, 17, 3));
        assert_eq!(statistics.head, [(2, 7), (0, 5), (3, 5)], "equal counts in row order");
    }

    #[test]
    fn earlier_counts_are_added_row_by_row_and_a_tail_is_not_counted_twice() {
        let mut earlier = TableStatistics {
            bags: 9,
            lookups: 100,
            distinct_rows: 6,
            head: vec![(5, 40), (2, 32)],
            tail: [TailBucket::default(); TAIL_BUCKETS],
        };
        earlier.tail[3] = TailBucket { rows: 2, lookups: 19 };
        earlier.tail[2] = TailBucket { rows: 2, lookups: 9 };
        let counter = TableCounter::new(7).unwrap();
        let mut bags = Bags::default();
        bags.push([5, 0, 0, 0, 1, 1, 6]);
        counter.add(&bags);
        let sum = counter.added_to(Some(&earlier));
        assert_eq!((sum.bags, sum.lookups, sum.distinct_rows), (10, 107, 6));
        // Rows 0, 1 and 6 are taken for three of the tail, the most frequent first.
        assert_eq!(sum.head, [(5, 41), (2, 32), (0, 12), (1, 12), (6, 5)]);
        assert_eq!(sum.tail[2], TailBucket { rows: 1, lookups: 5 });
        assert_eq!(sum.sums(), Some((6, 107)));

        let known = TableCounter::known(&[4, 5]);
        let sum = known.added_to(Some(&earlier));
        assert_eq!((sum.bags, sum.lookups), (9, 9), "known counts are sums already");
    }

    #[test]
    fn statistics_of_another_version_or_with_too_long_a_head_are_refused() {
        let bytes = to_bytes(&[TableCounter::new(3).unwrap().statistics()]);
        let with = |at: usize, value: u64| {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            from_bytes(&bytes).map(drop)
        };
        assert_eq!(with(8, 1), Ok(()));
        for version in [0, 2] {
            assert_eq!(with(8, version), Err(format!("it has version {version}, but this program reads 1")));
        }
        // After magic, version and number of tables: bags, look-ups, distinct rows, rows of the head.
        assert_eq!(
            with(48, (1 << 20) + 1),
            Err("a head of 1048577 rows is over the limit of 1048576".into())
        );
        assert_eq!(with(48, 1 << 20), Err("it ends too early".into()));
        assert_eq!(from_bytes(&bytes[1..]), Err("it does not start with RKNSTATS".into()));
    }

    /// Otherwise the sums would be computed later, without overflow checks.
    #[test]
    fn counts_that_do_not_add_up_are_refused() {
        let counter = TableCounter::new(10).unwrap();
        let mut bags = Bags::default();
        bags.push([3, 3, 7]);
        counter.add(&bags);
        let whole = counter.statistics();
        let with = |change: fn(&mut TableStatistics)| {
            let mut table = whole.clone();
            change(&mut table);
            from_bytes(&to_bytes(&[table]))
        };
        assert!(with(|_| ()).is_ok());
        let changes: [fn(&mut TableStatistics); 4] = [
            |table| table.lookups += 1,
            |table| table.distinct_rows -= 1,
            |table| table.head[0].1 = u64::MAX,
            |table| table.tail[63] = TailBucket { rows: 1, lookups: u64::MAX },
        ];
        for change in changes {
            assert!(with(change).unwrap_err().contains("the counts of table 0 do not add up"));
        }
    }

    #[test]
    fn rows_after_the_head_are_a_histogram() {
        let rows = HEAD_ROWS_MAX as u64 + 6;
        let counter = TableCounter::new(rows).unwrap();
        let mut bags = Bags::default();
        bags.push((0..rows).chain(10..rows).chain(10..rows));
        counter.add(&bags);
        let statistics = counter.statistics();
        assert_eq!(statistics.head.len(), HEAD_ROWS_MAX);
        assert_eq!(statistics.head[0], (10, 3));
        // 4 of the ten rows that occur once fit into the head.
        assert_eq!(statistics.head.last(), Some(&(3, 1)));
        assert_eq!(statistics.tail[0], TailBucket { rows: 6, lookups: 6 });
        assert_eq!(statistics.coverage(rows), 1.0);

        // Every row three times: of equal rows the first are listed, and the others have two or three look-ups.
        let mut bags = Bags::default();
        bags.push((0..10).chain(0..10));
        counter.add(&bags);
        let statistics = counter.statistics();
        assert_eq!(statistics.head.last(), Some(&(HEAD_ROWS_MAX as u64 - 1, 3)));
        assert_eq!(statistics.tail[0], TailBucket::default());
        assert_eq!(statistics.tail[1], TailBucket { rows: 6, lookups: 18 });
    }

    #[test]
    fn tables_too_large_to_count_in_memory_are_refused() {
        let column = |rows| Categorical {
            name: "C1".into(),
            rows: Some(rows),
            hotness: Hotness::Fixed(1),
            pooling: Pooling::Sum,
            vocabulary: VocabularyKind::Hash,
            weighted: false,
            shares: None,
        };
        let mut schema = Schema {
            labels: Vec::new(),
            weight: None,
            dense: Vec::new(),
            dense_dtype: DenseDtype::F32,
            sequences: Vec::new(),
            categorical: vec![column(10), column(3)],
        };
        let made = counters(&schema).unwrap();
        assert_eq!(made.iter().map(|counter| counter.counts.len()).collect::<Vec<_>>(), [10, 3]);
        // One alone can be allocated, since none of its pages is touched; all together cannot.
        let half = memory_bytes() / 18;
        schema.categorical = vec![column(half); 3];
        assert!(counters(&schema).is_err_and(|error| error.to_string().contains("reduce the tables' rows")));
        // 2^50 rows of 9 bytes are 9 * 2^20 GiB, which no machine has; 2^64 bytes cannot be expressed as a length.
        for (rows, gib) in [(1_u64 << 50, "9437184 GiB"), (u64::MAX, "154618822656 GiB")] {
            schema.categorical = vec![column(rows)];
            let refusal = counters(&schema).unwrap_err().to_string();
            assert!(refusal.contains(gib) && refusal.contains("reduce the tables' rows"), "{refusal}");
            // Optimized builds would leave an unused allocation out.
            assert!(std::hint::black_box(TableCounter::new(rows)).is_none());
        }
    }
}
