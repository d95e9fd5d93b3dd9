//! Counts categories within a memory budget: hash maps that many threads add to, which are written to disk as sorted
//! runs when they exceed the budget.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rankine_base::error::Result;
use rankine_base::stop::Stop;

use crate::convert::learn::spill::{Run, SpillFile, merge_runs};
use crate::convert::rows::RawKeys;
use crate::key::compact::CompactKey;
use crate::key::counts::KeyCounts;
use crate::key::{LongMap, ShortKey};
use crate::vocabulary::{OUT_OF_VOCABULARY, Vocabulary};

/// Number of hash maps per column, selected by hash: threads seldom meet in one, and a growing map needs little
/// memory at once.
const SHARDS: usize = 16;
/// Assumed bytes of memory per long key in addition to its own bytes: map entry and allocation.
const LONG_ENTRY_BYTES: usize = 48;

/// Counts the categories of some columns from any number of threads. The sums do not depend on the order, nor on when
/// counts are written to disk.
#[derive(Debug)]
pub(crate) struct CategoryCounter {
    columns: Vec<Vec<Mutex<Shard>>>,
    /// Bytes of all maps.
    bytes: AtomicUsize,
    budget_bytes: usize,
    spill: SpillFile,
    /// Held while maps are written to disk, so that two threads do not both do it for the same excess.
    spilling: Mutex<()>,
    turn: AtomicUsize,
    stop: Stop,
}

#[derive(Debug, Default)]
struct Shard {
    short: KeyCounts,
    long: LongMap,
    short_runs: Vec<Run>,
    long_runs: Vec<Run>,
}

impl Shard {
    fn bytes(&self) -> usize {
        self.short.bytes() + self.long.allocation_size() + self.long.len() * LONG_ENTRY_BYTES
    }
}

/// Memory that one thread needs to add its keys, reused between chunks.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    compact: KeyBuckets<CompactKey>,
    other: KeyBuckets<ShortKey>,
    long: [Vec<(Box<[u8]>, u64)>; SHARDS],
}

/// Compact keys, or other short ones, with their counts.
#[derive(Debug)]
struct KeyBuckets<K> {
    /// Recent keys, each at the slot given by its hash, with their counts: most keys of click logs soon recur, and
    /// adding here takes a fraction of the time of a map.
    recent: Vec<(K, u64)>,
    /// Keys that others have replaced as recent ones, with their counts.
    replaced: Vec<(K, u64)>,
    shards: [Vec<(K, u64)>; SHARDS],
}

/// Number of recent keys: their memory is a part of a core's own first cache.
const RECENT_KEYS: usize = 1024;

impl<K: CountedKey> Default for KeyBuckets<K> {
    fn default() -> Self {
        let recent = vec![(K::NONE, 0); RECENT_KEYS];
        Self { recent, replaced: Vec::new(), shards: Default::default() }
    }
}

/// A key that is counted by its value.
trait CountedKey: Copy + Eq {
    /// A key that no bytes have.
    const NONE: Self;

    /// Returns a well-mixed hash.
    fn mixed(self) -> u64;
}

impl CountedKey for CompactKey {
    const NONE: Self = Self::NONE;

    #[inline]
    fn mixed(self) -> u64 {
        self.mixed()
    }
}

impl CountedKey for ShortKey {
    const NONE: Self = Self::NONE;

    #[inline]
    fn mixed(self) -> u64 {
        self.mixed()
    }
}

/// A panic in another thread ends the conversion anyway; counts are valid at every point where it could happen.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CategoryCounter {
    /// Creates counters of `columns` columns that together take `budget_bytes` plus the growth of one chunk per
    /// thread. Larger counts are written to a file in `dir`, which is removed with the counter.
    pub(crate) fn new(columns: usize, budget_bytes: usize, dir: &Path, stop: &Stop) -> Result<Self> {
        let shards = || (0..SHARDS).map(|_| Mutex::default()).collect();
        Ok(Self {
            columns: (0..columns).map(|_| shards()).collect(),
            bytes: AtomicUsize::new(0),
            budget_bytes,
            spill: SpillFile::create(dir)?,
            spilling: Mutex::new(()),
            turn: AtomicUsize::new(0),
            stop: stop.clone(),
        })
    }

    /// Adds a column, and returns its number.
    pub(crate) fn add_column(&mut self) -> usize {
        self.columns.push((0..SHARDS).map(|_| Mutex::default()).collect());
        self.columns.len() - 1
    }

    /// Leaves these columns, in this order.
    pub(crate) fn select(&mut self, columns: &[usize]) {
        self.columns = columns.iter().map(|&column| std::mem::take(&mut self.columns[column])).collect();
    }

    /// Adds counts of categories of a column.
    pub(crate) fn add_counts(&self, column: usize, counts: &[(&[u8], u64)]) -> Result<()> {
        let mut buckets = Buckets::default();
        counts.iter().for_each(|&(key, count)| buckets.push(key, count));
        self.add_buckets(&self.columns[column], &buckets);
        self.spill_excess()
    }

    /// Counts a chunk's keys; each list has the number of its column.
    pub(crate) fn add(&self, keys: &[(usize, &RawKeys)], buckets: &mut Buckets) -> Result<()> {
        // Threads start with different columns.
        let turn = self.turn.fetch_add(5, Ordering::Relaxed);
        for number in 0..keys.len() {
            let (column, keys) = keys[(turn + number) % keys.len()];
            buckets.fill(keys);
            self.add_buckets(&self.columns[column], buckets);
        }
        self.spill_excess()
    }

    /// Writes counts to disk if they exceed the budget.
    fn spill_excess(&self) -> Result<()> {
        if self.bytes.load(Ordering::Relaxed) > self.budget_bytes {
            let _alone = lock(&self.spilling);
            if self.bytes.load(Ordering::Relaxed) > self.budget_bytes {
                self.spill_all()?;
            }
        }
        Ok(())
    }

    fn add_buckets(&self, shards: &[Mutex<Shard>], buckets: &Buckets) {
        let mut taken = [0; SHARDS];
        let mut taken_count = 0;
        for (number, shard) in shards.iter().enumerate() {
            match shard.try_lock() {
                Ok(mut shard) => self.add_shard(&mut shard, buckets, number),
                Err(TryLockError::WouldBlock) => {
                    taken[taken_count] = number;
                    taken_count += 1;
                }
                Err(TryLockError::Poisoned(shard)) => {
                    self.add_shard(&mut shard.into_inner(), buckets, number);
                }
            }
        }
        for &number in &taken[..taken_count] {
            self.add_shard(&mut lock(&shards[number]), buckets, number);
        }
    }

    fn add_shard(&self, shard: &mut Shard, buckets: &Buckets, number: usize) {
        let before = shard.bytes();
        shard.short.add_compact(&buckets.compact.shards[number]);
        shard.short.add_other(&buckets.other.shards[number]);
        for (key, count) in &buckets.long[number] {
            match shard.long.get_mut(key) {
                Some(sum) => *sum += count,
                None => {
                    shard.long.insert(key.clone(), *count);
                }
            }
        }
        // Done under the shard's lock, so that a spill subtracts what was added; maps only grow here.
        self.bytes.fetch_add(shard.bytes() - before, Ordering::Relaxed);
    }

    /// Writes every map to disk. Other threads continue to count meanwhile: each map is locked only while it is
    /// written.
    fn spill_all(&self) -> Result<()> {
        for shard in self.columns.iter().flatten() {
            self.stop.check()?;
            let mut shard = lock(shard);
            let bytes = shard.bytes();
            let (short, long) = (std::mem::take(&mut shard.short), std::mem::take(&mut shard.long));
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            if !short.is_empty() {
                shard.short_runs.push(self.spill.write_run(short.into_counts().collect())?);
            }
            if !long.is_empty() {
                shard.long_runs.push(self.spill.write_run(long.into_iter().collect())?);
            }
        }
        Ok(())
    }

    /// Adds the counts of a column to a vocabulary, with new rows for the categories that it lacks if they were counted
    /// `min_count` times or more. Discards the counts.
    pub(crate) fn add_to(&self, vocabulary: &mut Vocabulary, column: usize, min_count: u64) -> Result<()> {
        let (mut short, mut long) = (Vec::new(), Vec::new());
        self.take(column, |key, count| {
            let row = match &key {
                Key::Short(key) => vocabulary.own_row_of_short(key),
                Key::Long(key) => vocabulary.row(key),
            };
            match (row, key) {
                (None, Key::Short(key)) if count >= min_count => short.push((key, count)),
                (None, Key::Long(key)) if count >= min_count => long.push((key, count)),
                (row, _) => vocabulary.add_to(row.unwrap_or(OUT_OF_VOCABULARY), count),
            }
            Ok(())
        })?;
        vocabulary.append(short, long);
        Ok(())
    }

    /// Passes every category of a column with its count to `put`, once, and discards the counts.
    ///
    /// # Errors
    /// The errors of `put`.
    pub(crate) fn take(&self, column: usize, mut put: impl FnMut(Key, u64) -> Result<()>) -> Result<()> {
        for shard in &self.columns[column] {
            let shard = std::mem::take(&mut *lock(shard));
            self.bytes.fetch_sub(shard.bytes(), Ordering::Relaxed);
            let short = |key, count| put(Key::Short(key), count);
            merge_runs(&self.spill, &shard.short_runs, shard.short.into_counts(), &self.stop, short)?;
            let long = |key, count| put(Key::Long(key), count);
            merge_runs(&self.spill, &shard.long_runs, shard.long, &self.stop, long)?;
        }
        Ok(())
    }
}

/// A category that was counted.
pub(crate) enum Key {
    Short(ShortKey),
    Long(Box<[u8]>),
}

impl Key {
    pub(crate) fn with_bytes<R>(&self, take: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Short(key) => key.with_bytes(take),
            Self::Long(bytes) => take(bytes),
        }
    }
}

/// Returns the shard of a key with this hash, by bits that neither choose a map's bucket (the lowest) nor distinguish
/// its entries (the highest seven).
fn shard_of(hash: u64) -> usize {
    (hash >> 48) as usize % SHARDS
}

impl Buckets {
    fn push(&mut self, key: &[u8], count: u64) {
        let short = ShortKey::new(key);
        match (short.and_then(CompactKey::of_short), short) {
            (Some(key), _) => self.compact.push(key, count),
            (None, Some(key)) => self.other.push(key, count),
            (None, None) => self.push_long(key, count),
        }
    }

    fn push_long(&mut self, key: &[u8], count: u64) {
        self.long[shard_of(xxhash_rust::xxh3::xxh3_64(key))].push((key.into(), count));
    }

    /// Sorts a column's keys by shard.
    fn fill(&mut self, keys: &RawKeys) {
        self.compact.fill(&keys.compact);
        self.other.fill(&keys.other);
        self.long.iter_mut().for_each(Vec::clear);
        for (_, key) in keys.long() {
            self.push_long(key, 1);
        }
    }
}

impl<K: CountedKey> KeyBuckets<K> {
    fn push(&mut self, key: K, count: u64) {
        self.shards[shard_of(key.mixed())].push((key, count));
    }

    /// Counts keys, except for `NONE`, and sorts them by shard.
    fn fill(&mut self, keys: &[K]) {
        self.shards.iter_mut().for_each(Vec::clear);
        if keys.is_empty() {
            return;
        }
        // Whether a key is the recent one is as good as random, so no branch depends on it: the recent key is always
        // copied, and the copy is kept if it was replaced.
        self.replaced.resize(keys.len() + RECENT_KEYS, (K::NONE, 0));
        let mut kept = 0;
        for &key in keys {
            let (recent, count) = &mut self.recent[key.mixed() as usize % RECENT_KEYS];
            let same = *recent == key;
            self.replaced[kept] = (*recent, *count);
            kept += usize::from(!same);
            (*recent, *count) = (key, *count * u64::from(same) + 1);
        }
        for recent in &mut self.recent {
            self.replaced[kept] = std::mem::replace(recent, (K::NONE, 0));
            kept += usize::from(self.replaced[kept].0 != K::NONE);
        }
        for &(key, count) in self.replaced[..kept].iter().filter(|(key, _)| *key != K::NONE) {
            self.shards[shard_of(key.mixed())].push((key, count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn reverse(key: &[u8]) -> Vec<u8> {
        key.iter().rev().copied().collect()
    }

    fn raw(keys: &[Vec<u8>]) -> RawKeys {
        let mut raw = RawKeys::default();
        keys.iter().for_each(|key| raw.push(key));
        raw
    }

    proptest! {
        #[test]
        fn counts_are_right_however_much_is_written_to_disk(
            chunks in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(prop::sample::select(&b"ab\0"[..]), 0..20), 0..40), 1..8),
            budget_bytes in prop::sample::select(&[0, 20_000, 1 << 30][..]),
            min_count in 1..4u64,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let counter = CategoryCounter::new(2, budget_bytes, dir.path(), &Stop::default()).unwrap();
            std::thread::scope(|scope| {
                for chunks in chunks.chunks(3) {
                    let counter = &counter;
                    scope.spawn(move || {
                        let mut buckets = Buckets::default();
                        for chunk in chunks {
                            let reversed: Vec<_> = chunk.iter().map(|key| reverse(key)).collect();
                            counter.add(&[(0, &raw(chunk)), (1, &raw(&reversed))], &mut buckets).unwrap();
                        }
                    });
                }
            });
            let mut counts = BTreeMap::new();
            chunks.iter().flatten().for_each(|key| *counts.entry(key.clone()).or_insert(0) += 1);
            let reversed = counts.iter().map(|(key, &count)| (reverse(key), count));
            let learnt = |column| {
                let mut vocabulary = Vocabulary::empty();
                counter.add_to(&mut vocabulary, column, min_count).unwrap();
                vocabulary
            };
            prop_assert_eq!(learnt(1), Vocabulary::from_counts(reversed, min_count));
            prop_assert_eq!(learnt(0), Vocabulary::from_counts(counts, min_count));
            prop_assert_eq!(counter.bytes.load(Ordering::Relaxed), 0);
            drop(counter);
            prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn counts_are_written_to_disk_only_beyond_the_budget() {
        let keys: Vec<_> =
            (0..2000).map(|n: u32| format!("{n}{}", "x".repeat(n as usize % 30)).into_bytes()).collect();
        let long_bytes = keys.iter().filter(|key| key.len() > ShortKey::BYTES_MAX).count() * LONG_ENTRY_BYTES;
        let dir = tempfile::tempdir().unwrap();
        let added = |budget_bytes| {
            let counter = CategoryCounter::new(1, budget_bytes, dir.path(), &Stop::default()).unwrap();
            counter.add(&[(0, &raw(&keys))], &mut Buckets::default()).unwrap();
            let file = std::fs::metadata(dir.path().join("counts.tmp")).unwrap();
            (counter.bytes.load(Ordering::Relaxed), file.len())
        };
        let (held, on_disk) = added(usize::MAX);
        assert_eq!(on_disk, 0);
        // A map entry takes at least eight bytes.
        assert!(held >= long_bytes + keys.len() * 8, "{held}");
        assert_eq!(added(held), (held, 0));
        let (held, on_disk) = added(held - 1);
        assert_eq!(held, 0);
        assert!(on_disk >= keys.iter().map(|key| key.len() as u64 + 8).sum::<u64>(), "{on_disk}");
    }
}
