//! How often each short key occurs.

use std::collections::BTreeMap;

use crate::key::compact::{CompactKey, CompactTable};
use crate::key::{BATCH, ShortKey, mask_for, use_large_pages};

/// Counts of compact and of other short keys. Keys are added in batches.
#[derive(Debug, Default)]
pub(crate) struct KeyCounts {
    compact: CompactTable,
    /// What the counts of compact keys are more than the table holds.
    carried: BTreeMap<CompactKey, u64>,
    other: OtherCounts,
}

impl KeyCounts {
    /// Returns whether no key was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.compact.len() == 0 && self.other.len == 0
    }

    /// Returns the bytes of memory that the counts take.
    pub(crate) fn bytes(&self) -> usize {
        self.compact.bytes() + size_of_val(&*self.other.slots)
    }

    /// Adds to the counts of compact keys, which may repeat.
    pub(crate) fn add_compact(&mut self, counts: &[(CompactKey, u64)]) {
        self.compact.add(counts, |key, count| *self.carried.entry(key).or_default() += count);
    }

    /// Adds to the counts of short keys that are not compact, which may repeat.
    pub(crate) fn add_other(&mut self, counts: &[(ShortKey, u64)]) {
        self.other.add(counts);
    }

    /// Returns every key with its count, in any order.
    pub(crate) fn into_counts(self) -> impl Iterator<Item = (ShortKey, u64)> {
        let carried = self.carried;
        let compact = self
            .compact
            .into_numbers()
            .map(move |(key, count)| (key.to_short(), count + carried.get(&key).copied().unwrap_or(0)));
        compact.chain(self.other.slots.into_iter().filter(|&(key, _)| key != ShortKey::NONE))
    }
}

/// Counts of short keys, in a table with linear probing from the lowest bits of the hash.
#[derive(Debug, Default)]
struct OtherCounts {
    /// Keys with their counts; [`ShortKey::NONE`] in empty slots.
    slots: Vec<(ShortKey, u64)>,
    len: usize,
}

impl OtherCounts {
    fn add(&mut self, counts: &[(ShortKey, u64)]) {
        let mut first = [0; BATCH];
        for counts in counts.chunks(BATCH) {
            self.grow_for(self.len + counts.len());
            let mask = self.slots.len() - 1;
            // None of these loads depends on another one, so the processor does not wait for each.
            let mut is_first = 0_u64;
            for (number, (first, (key, _))) in first.iter_mut().zip(counts).enumerate() {
                *first = key.mixed() as usize & mask;
                is_first |= u64::from(self.slots[*first].0 == *key) << number;
            }
            for (number, (&at, &(key, count))) in first.iter().zip(counts).enumerate() {
                if is_first >> number & 1 == 1 {
                    self.slots[at].1 += count;
                } else {
                    self.add_from(at, key, count);
                }
            }
        }
    }

    /// Adds to the count of a key whose slot is this one or a later one.
    fn add_from(&mut self, mut at: usize, key: ShortKey, count: u64) {
        let mask = self.slots.len() - 1;
        loop {
            let (found, sum) = &mut self.slots[at];
            if *found == key {
                *sum += count;
                return;
            }
            if *found == ShortKey::NONE {
                (*found, *sum) = (key, count);
                self.len += 1;
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Makes room for this number of keys, with at least a quarter of all slots free.
    fn grow_for(&mut self, len: usize) {
        let mask = mask_for(len + len / 3 + 1);
        if mask < self.slots.len() {
            return;
        }
        let mut empty = Vec::with_capacity(mask + 1);
        use_large_pages(empty.as_ptr(), mask + 1);
        empty.resize(mask + 1, (ShortKey::NONE, 0));
        let old = std::mem::replace(&mut self.slots, empty);
        self.len = 0;
        for (key, count) in old.into_iter().filter(|&(key, _)| key != ShortKey::NONE) {
            self.add_from(key.mixed() as usize & mask, key, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::tests::any_keys;

    proptest! {
        #[test]
        fn counts_add_up(
            batches in prop::collection::vec((any_keys(120), 1..1_u64 << 29), 0..8),
        ) {
            let (mut counts, mut expected) = (KeyCounts::default(), BTreeMap::new());
            prop_assert_eq!((counts.is_empty(), counts.bytes()), (true, 0));
            for (keys, number) in &batches {
                let (mut compact, mut other) = (Vec::new(), Vec::new());
                for &key in keys {
                    match CompactKey::of_short(key) {
                        Some(key) => compact.push((key, *number)),
                        None => other.push((key, *number)),
                    }
                    *expected.entry(key).or_insert(0) += number;
                }
                counts.add_compact(&compact);
                counts.add_other(&other);
                let (compact, other) = (&counts.compact, &counts.other);
                prop_assert_eq!(compact.len() + other.len, expected.len());
                prop_assert_eq!(counts.is_empty(), expected.is_empty());
                // A quarter of all slots are free, so that every probe ends soon.
                prop_assert!(compact.bytes() / 8 >= compact.len() + compact.len() / 3);
                prop_assert!(other.slots.len() >= other.len + other.len / 3);
            }
            let mut listed: Vec<_> = counts.into_counts().collect();
            listed.sort_unstable();
            prop_assert_eq!(listed, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
