//! Counts unknown categories, that is, those not listed in a column's vocabulary, as look-ups and as distinct values,
//! in bounded memory.

use std::collections::HashSet;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::convert::rows::RawKeys;
use crate::key::KeyHasher;
use crate::vocabulary::OUT_OF_VOCABULARY;

/// Number of distinct values of a column that are counted exactly, in about 2 MiB; beyond it the count is a lower
/// bound.
pub const DISTINCT_VALUES_MAX: usize = 100_000;

/// Counts of the categories that a column's vocabulary does not list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct UnknownCategories {
    /// Number of distinct categories; `None` if only row numbers are known, as in a converted dataset, which has one
    /// row for all unknown categories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distinct_values: Option<u64>,
    /// Whether `distinct_values` is a lower bound: more than [`DISTINCT_VALUES_MAX`] were found.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub distinct_values_are_more: bool,
    /// Number of look-ups of unknown categories.
    pub lookups: u64,
}

impl UnknownCategories {
    /// Returns the sum over columns: a value in two columns counts twice.
    pub fn total<'a>(columns: impl IntoIterator<Item = &'a Self>) -> Self {
        let zero = Self { distinct_values: Some(0), ..Self::default() };
        columns.into_iter().fold(zero, |sum, column| Self {
            distinct_values: sum.distinct_values.zip(column.distinct_values).map(|(sum, own)| sum + own),
            distinct_values_are_more: sum.distinct_values_are_more || column.distinct_values_are_more,
            lookups: sum.lookups + column.lookups,
        })
    }
}

impl fmt::Display for UnknownCategories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        if let Some(count) = self.distinct_values {
            let bound = if self.distinct_values_are_more { "at least " } else { "" };
            write!(f, "{bound}{count} distinct value{}, ", plural(count))?;
        }
        write!(f, "{} look-up{}", self.lookups, plural(self.lookups))
    }
}

/// Counts the unknown categories of some columns from any number of threads. The result does not depend on their
/// order.
#[derive(Debug)]
pub(crate) struct UnknownCounter {
    columns: Vec<Column>,
}

#[derive(Debug, Default)]
struct Column {
    lookups: AtomicU64,
    /// Whether there was a value that `values` does not hold.
    is_exceeded: AtomicBool,
    /// Hashes of 64 bits: the probability that two of [`DISTINCT_VALUES_MAX`] values share a hash is 3e-10.
    values: Mutex<HashSet<u64, BuildHasherDefault<KeyHasher>>>,
}

impl UnknownCounter {
    pub(crate) fn new(columns: usize) -> Self {
        Self { columns: (0..columns).map(|_| Column::default()).collect() }
    }

    /// Counts the categories of a column that were looked up as `ids`, one per key.
    pub(crate) fn add(&self, column: usize, keys: &RawKeys, ids: &[u64]) {
        let column = &self.columns[column];
        let lookups = ids.iter().filter(|&&id| id == OUT_OF_VOCABULARY).count();
        column.lookups.fetch_add(lookups as u64, Ordering::Relaxed);
        if lookups == 0 || column.is_exceeded.load(Ordering::Relaxed) {
            return;
        }
        let short = keys.short().filter(|&(number, _)| ids[number] == OUT_OF_VOCABULARY);
        let mut hashes: Vec<_> = short.map(|(_, key)| key.with_bytes(xxh3_64)).collect();
        let long = keys.long().filter(|&(number, _)| ids[number] == OUT_OF_VOCABULARY);
        hashes.extend(long.map(|(_, key)| xxh3_64(key)));
        hashes.sort_unstable();
        hashes.dedup();
        // A panic elsewhere ends the work; the set is valid at every point where that can happen.
        let mut values = column.values.lock().unwrap_or_else(PoisonError::into_inner);
        for hash in hashes {
            if values.len() == DISTINCT_VALUES_MAX && !values.contains(&hash) {
                column.is_exceeded.store(true, Ordering::Relaxed);
                return;
            }
            values.insert(hash);
        }
    }

    /// Returns the counts of each column.
    pub(crate) fn counts(&self) -> Vec<UnknownCategories> {
        let count = |column: &Column| UnknownCategories {
            distinct_values: Some(column.values.lock().unwrap_or_else(PoisonError::into_inner).len() as u64),
            distinct_values_are_more: column.is_exceeded.load(Ordering::Relaxed),
            lookups: column.lookups.load(Ordering::Relaxed),
        };
        self.columns.iter().map(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(values: impl IntoIterator<Item = String>) -> RawKeys {
        let mut keys = RawKeys::default();
        values.into_iter().for_each(|value| keys.push(value.as_bytes()));
        keys
    }

    #[test]
    fn distinct_values_and_lookups_are_counted_separately() {
        let counter = UnknownCounter::new(2);
        let long = "a category of more than fifteen bytes";
        let chunk = keys(["a", "b", long, "a", "known", long].map(str::to_owned));
        let ids = [0, 0, 0, 0, 7, 0];
        counter.add(1, &chunk, &ids);
        counter.add(1, &chunk, &ids);
        let [none, some] = counter.counts()[..] else { panic!("two columns") };
        assert_eq!(none, UnknownCategories { distinct_values: Some(0), ..Default::default() });
        assert_eq!((some.distinct_values, some.lookups, some.distinct_values_are_more), (Some(3), 10, false));
        assert_eq!(some.to_string(), "3 distinct values, 10 look-ups");
        let one = UnknownCategories { distinct_values: Some(1), lookups: 1, ..Default::default() };
        assert_eq!(one.to_string(), "1 distinct value, 1 look-up");
    }

    #[test]
    fn beyond_the_bound_the_count_of_distinct_values_is_a_lower_bound() {
        let counter = UnknownCounter::new(1);
        let add = |values: std::ops::Range<usize>| {
            let ids = vec![0; values.len()];
            counter.add(0, &keys(values.map(|value| value.to_string())), &ids);
        };
        add(0..DISTINCT_VALUES_MAX);
        assert!(!counter.counts()[0].distinct_values_are_more, "the bound itself is exact");
        add(0..10);
        assert!(!counter.counts()[0].distinct_values_are_more, "values that were found before are not new");
        add(DISTINCT_VALUES_MAX..DISTINCT_VALUES_MAX + 1);
        let count = counter.counts()[0];
        assert_eq!(count.lookups, DISTINCT_VALUES_MAX as u64 + 11);
        let words = format!("at least {DISTINCT_VALUES_MAX} distinct values, 100011 look-ups");
        assert_eq!(count.to_string(), words);
    }

    #[test]
    fn threads_do_not_change_the_counts() {
        let counter = UnknownCounter::new(1);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let counter = &counter;
                scope.spawn(move || {
                    for first in 0..50 {
                        let values = (first..first + 20).map(|value| (value * (1 + thread % 2)).to_string());
                        counter.add(0, &keys(values), &[0; 20]);
                    }
                });
            }
        });
        // 0 to 68, and the even numbers up to 136.
        let count = counter.counts()[0];
        assert_eq!((count.distinct_values, count.lookups), (Some(69 + 34), 4 * 50 * 20));
    }

    #[test]
    fn a_total_has_no_distinct_values_if_a_column_has_none() {
        let of =
            |distinct_values, lookups| UnknownCategories { distinct_values, lookups, ..Default::default() };
        assert_eq!(UnknownCategories::total(&[of(Some(2), 5), of(Some(3), 3)]), of(Some(5), 8));
        assert_eq!(UnknownCategories::total(&[of(Some(2), 5), of(None, 3)]), of(None, 8));
    }
}
