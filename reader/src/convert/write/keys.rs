//! Distinct categories of open vocabularies, and how many of them share a key, estimated in bounded memory.
//!
//! A key is a hash, so the keys below a bound are a random sample of the categories, and two categories with one key
//! are both in it or both not. A second hash tells them apart.

use std::collections::HashSet;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rankine_base::error::Result;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::convert::rows::RawKeys;
use crate::key::KeyHasher;
use crate::schema::Schema;

/// The most categories of a sample, which takes about 3 MiB. The estimate of all categories has a standard error of
/// less than 0.6%.
const SAMPLE_MAX: usize = 1 << 16;
/// The seed of the second hash; keys have seed 0.
const SECOND_SEED: u64 = 0x5ec0_4d5e_ed5e_c04d;

/// Distinct categories of an open vocabulary, in all rows that were converted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct KeyReport {
    /// Number of distinct categories: all columns that share the vocabulary have together so many.
    pub distinct_categories: u64,
    /// Whether that is an estimate, from a sample of the categories.
    pub is_estimate: bool,
    /// How many pairs of categories are expected to share a key, given their number n: `n^2 / 2^65`.
    pub expected_collisions: f64,
    /// Categories in the sample.
    pub sampled_categories: u64,
    /// Pairs of categories in the sample that share a key.
    pub sampled_collisions: u64,
}

impl fmt::Display for KeyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { distinct_categories, expected_collisions, sampled_categories, sampled_collisions, .. } =
            self;
        let about = if self.is_estimate { "about " } else { "" };
        write!(
            f,
            "{about}{distinct_categories} distinct categories; pairs that share a key: {expected_collisions:.1e} \
             expected, {sampled_collisions} among {sampled_categories} categories"
        )
    }
}

/// Samples the keys of open columns from any number of threads. The result does not depend on their order.
#[derive(Debug)]
pub(crate) struct KeyCounter {
    /// The sample of each categorical column that owns an open vocabulary.
    samples: Vec<Option<Sample>>,
    /// The number of the column whose vocabulary each column uses.
    owners: Vec<usize>,
}

/// The distinct categories whose keys begin with enough zeros.
#[derive(Debug, Default)]
struct Sample {
    /// How many zeros: it increases by one whenever the sample is too large.
    zeros: AtomicU32,
    /// The key and the second hash of each category.
    categories: Mutex<HashSet<Hashes, BuildHasherDefault<KeyHasher>>>,
}

/// The key of a category, and its second hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Hashes {
    key: u64,
    second: u64,
}

impl KeyCounter {
    /// Creates a counter for the columns of a schema.
    ///
    /// # Errors
    /// If a column shares a vocabulary that does not exist.
    pub(crate) fn new(schema: &Schema) -> Result<Self> {
        let columns = schema.stored_categorical();
        let owners =
            (0..columns.len()).map(|number| schema.vocabulary_owner(number)).collect::<Result<Vec<_>>>()?;
        let samples = columns
            .iter()
            .enumerate()
            .map(|(number, column)| (column.is_open() && owners[number] == number).then(Sample::default));
        Ok(Self { samples: samples.collect(), owners })
    }

    /// Counts the categories of a column whose keys are `ids`; does nothing if its vocabulary is not open.
    pub(crate) fn add(&self, column: usize, keys: &RawKeys, ids: &[u64]) {
        if let Some(sample) = &self.samples[self.owners[column]] {
            sample.add(keys, ids);
        }
    }

    /// Returns the report of each stored categorical column that owns an open vocabulary, `None` for all others.
    pub(crate) fn reports(&self) -> Vec<Option<KeyReport>> {
        self.samples.iter().map(|sample| sample.as_ref().map(Sample::report)).collect()
    }
}

impl Sample {
    fn add(&self, keys: &RawKeys, ids: &[u64]) {
        let zeros = self.zeros.load(Ordering::Relaxed);
        let is_sampled = |id: u64| id.leading_zeros() >= zeros;
        if !ids.iter().any(|&id| is_sampled(id)) {
            return;
        }
        let second = |category: &[u8]| xxh3_64_with_seed(category, SECOND_SEED);
        let short = keys.short().filter(|&(number, _)| is_sampled(ids[number]));
        let mut found: Vec<_> =
            short.map(|(number, key)| Hashes { key: ids[number], second: key.with_bytes(second) }).collect();
        let long = keys.long().filter(|&(number, _)| is_sampled(ids[number]));
        found.extend(long.map(|(number, category)| Hashes { key: ids[number], second: second(category) }));
        found.sort_unstable();
        found.dedup();
        // A panic elsewhere ends the work; the set is valid at every point where that can happen.
        let mut categories = self.categories.lock().unwrap_or_else(PoisonError::into_inner);
        let mut zeros = self.zeros.load(Ordering::Relaxed);
        for category in found {
            if category.key.leading_zeros() < zeros {
                continue;
            }
            categories.insert(category);
            // Whichever order they come in, it ends at the first number of zeros that at most so many have.
            while categories.len() > SAMPLE_MAX && zeros < u64::BITS {
                zeros += 1;
                categories.retain(|category| category.key.leading_zeros() >= zeros);
            }
        }
        self.zeros.store(zeros, Ordering::Relaxed);
    }

    fn report(&self) -> KeyReport {
        let categories = self.categories.lock().unwrap_or_else(PoisonError::into_inner);
        let zeros = self.zeros.load(Ordering::Relaxed);
        let sampled_categories = categories.len() as u64;
        let mut keys: Vec<_> = categories.iter().map(|category| category.key).collect();
        keys.sort_unstable();
        let pairs = |of_key: &[u64]| (of_key.len() * (of_key.len() - 1) / 2) as u64;
        let distinct_categories = u64::try_from(u128::from(sampled_categories) << zeros).unwrap_or(u64::MAX);
        KeyReport {
            distinct_categories,
            is_estimate: zeros > 0,
            expected_collisions: (distinct_categories as f64).powi(2) / 2_f64.powi(65),
            sampled_categories,
            sampled_collisions: keys.chunk_by(|a, b| a == b).map(pairs).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::hash_key;

    fn keys(values: impl IntoIterator<Item = String>) -> RawKeys {
        let mut keys = RawKeys::default();
        values.into_iter().for_each(|value| keys.push(value.as_bytes()));
        keys
    }

    fn add(sample: &Sample, users: impl Iterator<Item = u64>) {
        // Short and long ones.
        let name = |user: u64| {
            if user.is_multiple_of(3) { format!("a user of a long name, {user}") } else { format!("u{user}") }
        };
        let names: Vec<_> = users.map(name).collect();
        let ids: Vec<_> = names.iter().map(|name| hash_key(name.as_bytes())).collect();
        sample.add(&keys(names), &ids);
    }

    #[test]
    fn few_categories_are_counted_exactly() {
        let sample = Sample::default();
        add(&sample, (0..1000).map(|row| row % 700));
        add(&sample, 500..900);
        let report = sample.report();
        assert_eq!((report.distinct_categories, report.is_estimate), (900, false));
        assert_eq!((report.sampled_categories, report.sampled_collisions), (900, 0));
        // 900^2 / 2^65
        assert!((report.expected_collisions / 2.195e-14 - 1.0).abs() < 1e-3, "{report}");
        let text =
            "900 distinct categories; pairs that share a key: 2.2e-14 expected, 0 among 900 categories";
        assert_eq!(report.to_string(), text);
    }

    #[test]
    fn many_categories_are_estimated_from_a_bounded_sample() {
        const USERS: u64 = 1_000_000;
        let sample = Sample::default();
        for first in (0..USERS).step_by(10_000) {
            add(&sample, first..first + 10_000);
            add(&sample, first / 2..first / 2 + 100);
        }
        let report = sample.report();
        assert!(report.is_estimate && report.sampled_categories <= SAMPLE_MAX as u64, "{report}");
        // More than half of the limit, unless the last halving left less by chance: five standard deviations of 181.
        assert!(report.sampled_categories > SAMPLE_MAX as u64 / 2 - 905, "{report}");
        // Five standard deviations: sqrt(16 - 1) * 1000, since each of 16 categories is sampled independently.
        assert!(report.distinct_categories.abs_diff(USERS) < 5 * 3873, "{report}");
        assert!(report.to_string().starts_with("about "), "{report}");
    }

    #[test]
    fn categories_that_share_a_key_are_counted() {
        let sample = Sample::default();
        let three = || keys(["a", "a category of more than fifteen bytes", "b"].map(str::to_owned));
        sample.add(&three(), &[7, 7, 7]);
        sample.add(&three(), &[7, 7, 7]);
        sample.add(&keys(["c", "d", "d"].map(str::to_owned)), &[u64::MAX, u64::MAX, u64::MAX]);
        sample.add(&keys(["e"].map(str::to_owned)), &[0]);
        let report = sample.report();
        assert_eq!((report.sampled_categories, report.sampled_collisions), (6, 3 + 1));
    }

    #[test]
    fn threads_and_order_do_not_change_the_report() {
        let with = |threads: u64| {
            let sample = Sample::default();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let sample = &sample;
                    scope.spawn(move || {
                        for piece in (0..200).filter(|piece| piece % threads == thread) {
                            let piece = if threads > 1 { 199 - piece } else { piece };
                            add(sample, piece * 900..piece * 900 + 1000);
                        }
                    });
                }
            });
            (sample.report(), sample.zeros.into_inner())
        };
        let (report, zeros) = with(1);
        assert!(zeros == 2 && report.is_estimate, "{zeros}: {report}");
        assert_eq!(with(4), (report, zeros));
        assert_eq!(with(3), (report, zeros));
    }
}
