//! Which row of a table each short key has.

use crate::key::compact::{CompactKey, CompactTable};
use crate::key::{BATCH, ShortKey, mask_for, use_large_pages};

/// Short keys in row order, and tables that find the row of a key. Frequent keys have the first rows, so that what
/// most look-ups read lies close together.
#[derive(Debug, Clone)]
pub(crate) struct KeyRows {
    /// The key of each row; [`ShortKey::NONE`] for the rows of other keys.
    keys: Vec<ShortKey>,
    /// The rows of compact keys, up to `compact_rows_max`.
    compact: CompactTable,
    compact_rows_max: u64,
    /// The rows of all other keys. Linear probing from the lowest bits of the hash: 0 if the slot is empty, otherwise a
    /// row, which is never 0, and the highest bits of its key's hash.
    slots: Vec<u64>,
    /// Keys in `slots`.
    len: usize,
}

/// Bits of the hash in a slot, so that a look-up seldom has to read another key than its own.
pub(crate) const TAG_BITS: u32 = 24;

/// Returns the highest bits of a hash, which a slot has.
pub(crate) const fn tag(hash: u64) -> u64 {
    hash >> (u64::BITS - TAG_BITS)
}

impl PartialEq for KeyRows {
    fn eq(&self, other: &Self) -> bool {
        self.keys == other.keys
    }
}

impl Default for KeyRows {
    fn default() -> Self {
        Self::with_compact_rows_max(CompactTable::NUMBER_MAX)
    }
}

impl KeyRows {
    fn with_compact_rows_max(compact_rows_max: u64) -> Self {
        let mut compact = CompactTable::default();
        compact.grow_to(1);
        Self { keys: Vec::new(), compact, compact_rows_max, slots: vec![0; mask_for(0) + 1], len: 0 }
    }

    /// Returns the number of short keys.
    pub(crate) fn len(&self) -> usize {
        self.compact.len() + self.len
    }

    /// Returns the key of each row; [`ShortKey::NONE`] for the rows of other keys.
    pub(crate) fn keys(&self) -> &[ShortKey] {
        &self.keys
    }

    /// Reserves memory for further rows: those of these short keys and `others`.
    pub(crate) fn reserve(&mut self, short: &[(ShortKey, u64)], others: usize) {
        self.keys.reserve_exact(short.len() + others);
        let unused = self.keys.spare_capacity_mut();
        use_large_pages(unused.as_ptr(), unused.len());
        let compact = short.iter().filter(|(key, _)| CompactKey::of_short(*key).is_some()).count();
        self.compact.grow_to(2 * (self.compact.len() + compact));
        self.grow_for(self.len + short.len() - compact);
    }

    /// Gives the next row to a key that is no short key.
    pub(crate) fn skip_row(&mut self) {
        self.keys.push(ShortKey::NONE);
    }

    /// Gives the next row to a key; returns false if the key already has one, which it keeps.
    pub(crate) fn push(&mut self, key: ShortKey) -> bool {
        let row = self.keys.len() as u64;
        let fresh = match CompactKey::of_short(key) {
            Some(compact) if row <= self.compact_rows_max => {
                self.compact.grow_to(2 * (self.compact.len() + 1));
                self.compact.insert(compact, row)
            }
            Some(_) if self.get(&key).is_some() => false,
            _ => {
                self.grow_for(self.len + 1);
                let fresh = self.place(row, key);
                self.len += usize::from(fresh);
                fresh
            }
        };
        self.keys.push(key);
        fresh
    }

    /// Returns the row of a key.
    #[inline]
    pub(crate) fn get(&self, key: &ShortKey) -> Option<u64> {
        let row = CompactKey::of_short(*key).map_or(0, |key| self.compact.slots().get(key));
        let row = if row == 0 { self.get_other(key) } else { row };
        (row != 0).then_some(row)
    }

    /// Returns the row of a key that the table of compact keys does not have, or 0.
    fn get_other(&self, key: &ShortKey) -> u64 {
        let hash = key.mixed();
        self.find(key, hash, self.slots[hash as usize & (self.slots.len() - 1)])
    }

    /// Appends the row of each compact key to `rows`, 0 for keys without one.
    pub(crate) fn rows_of_compact(&self, keys: &[CompactKey], rows: &mut Vec<u64>) {
        let before = rows.len();
        self.compact.slots().numbers_of(keys, rows);
        if self.keys.len() as u64 > self.compact_rows_max {
            for (row, key) in rows[before..].iter_mut().zip(keys).filter(|(row, _)| **row == 0) {
                *row = self.get_other(&key.to_short());
            }
        }
    }

    /// Appends the row of each short key that is not compact to `rows`, 0 for keys without one.
    pub(crate) fn rows_of_other(&self, keys: &[ShortKey], rows: &mut Vec<u64>) {
        let mask = self.slots.len() - 1;
        let (mut hashes, mut slots, mut found) = ([0; BATCH], [0; BATCH], [ShortKey::NONE; BATCH]);
        for keys in keys.chunks(BATCH) {
            // In each of these loops no load depends on another one, so the processor does not wait for each.
            for ((hash, slot), key) in hashes.iter_mut().zip(&mut slots).zip(keys) {
                *hash = key.mixed();
                *slot = self.slots[*hash as usize & mask];
            }
            for (found, slot) in found.iter_mut().zip(&slots).take(keys.len()) {
                *found = self.keys.get((slot >> TAG_BITS) as usize).copied().unwrap_or(ShortKey::NONE);
            }
            rows.extend((0..keys.len()).map(|number| match found[number] == keys[number] {
                true => slots[number] >> TAG_BITS,
                false => self.find(&keys[number], hashes[number], slots[number]),
            }));
        }
    }

    /// Returns the row of a key, given its hash and the content of the first slot of this hash; 0 if it has none.
    #[inline]
    fn find(&self, key: &ShortKey, hash: u64, mut slot: u64) -> u64 {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize;
        while slot != 0 && !self.is_of(slot, key, hash) {
            at += 1;
            slot = self.slots[at & mask];
        }
        slot >> TAG_BITS
    }

    /// Returns whether a slot has the row of a key with this hash.
    #[inline]
    fn is_of(&self, slot: u64, key: &ShortKey, hash: u64) -> bool {
        slot & ((1 << TAG_BITS) - 1) == tag(hash) && self.keys[(slot >> TAG_BITS) as usize] == *key
    }

    /// Writes a row into the first free slot for its key; returns false if the key has a row.
    fn place(&mut self, row: u64, key: ShortKey) -> bool {
        assert!((1..1 << (u64::BITS - TAG_BITS)).contains(&row), "a slot holds rows from 1 to 2^40");
        let (mask, hash) = (self.slots.len() - 1, key.mixed());
        let mut at = hash as usize & mask;
        while self.slots[at] != 0 {
            if self.is_of(self.slots[at], &key, hash) {
                return false;
            }
            at = (at + 1) & mask;
        }
        self.slots[at] = row << TAG_BITS | tag(hash);
        true
    }

    /// Makes room for this number of keys in `slots`, with at least one free slot for each.
    fn grow_for(&mut self, len: usize) {
        let mask = mask_for(2 * len);
        if mask < self.slots.len() {
            return;
        }
        self.slots = Vec::new();
        // Zeroed memory is not used yet.
        self.slots = vec![0; mask + 1];
        use_large_pages(self.slots.as_ptr(), self.slots.len());
        // In row order: frequent keys get the first slots of their hashes.
        let keys = std::mem::take(&mut self.keys);
        let compact_rows_max = self.compact_rows_max;
        let is_compact = |row, key| row <= compact_rows_max && CompactKey::of_short(key).is_some();
        let others = (0..).zip(&keys).filter(|&(row, &key)| key != ShortKey::NONE && !is_compact(row, key));
        for (row, &key) in others {
            self.place_distinct(row, key);
        }
        self.keys = keys;
    }

    /// Writes the row of a key that has none into the first free slot.
    fn place_distinct(&mut self, row: u64, key: ShortKey) {
        let (mask, hash) = (self.slots.len() - 1, key.mixed());
        let mut at = hash as usize & mask;
        while self.slots[at] != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = row << TAG_BITS | tag(hash);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::tests::any_keys;

    proptest! {
        #[test]
        fn rows_are_found_one_by_one_and_in_batches(
            keys in any_keys(500),
            others in any_keys(100),
            is_reserved in any::<bool>(),
            skipped in 0..5usize,
            compact_rows_max in prop::sample::select(&[CompactTable::NUMBER_MAX, 100, 0][..]),
        ) {
            let mut rows = KeyRows::with_compact_rows_max(compact_rows_max);
            if is_reserved {
                rows.reserve(&keys.iter().map(|&key| (key, 1)).collect::<Vec<_>>(), 3);
            }
            rows.skip_row();
            let mut expected = std::collections::BTreeMap::new();
            for (number, &key) in keys.iter().enumerate() {
                let next = rows.keys().len() as u64;
                prop_assert_eq!(rows.push(key), !expected.contains_key(&key));
                expected.entry(key).or_insert(next);
                if skipped > 0 && number % skipped == 0 {
                    rows.skip_row();
                }
            }
            prop_assert_eq!(rows.len(), expected.len());
            let asked: Vec<_> = keys.iter().chain(&others).chain(&[ShortKey::NONE]).copied().collect();
            let (compact, other): (Vec<_>, Vec<_>) =
                asked.iter().partition(|&&key| CompactKey::of_short(key).is_some());
            let mut found = vec![77];
            rows.rows_of_other(&other, &mut found);
            let keys: Vec<_> = compact.iter().map(|&key| CompactKey::of_short(key).unwrap()).collect();
            rows.rows_of_compact(&keys, &mut found);
            rows.rows_of_compact(&[CompactKey::NONE], &mut found);
            prop_assert_eq!((found[0], found.pop()), (77, Some(0)));
            for (key, &row) in other.iter().chain(&compact).zip(&found[1..]) {
                prop_assert_eq!(rows.get(key), expected.get(key).copied());
                prop_assert_eq!(row, expected.get(key).copied().unwrap_or(0));
            }
            // Half of all slots are free, so that every probe ends soon.
            prop_assert!(rows.slots.len() >= 2 * rows.len && rows.slots.len().is_power_of_two());
            prop_assert!(rows.compact.bytes() / 8 >= 2 * rows.compact.len());
        }
    }

    /// Keys whose first slot and whose bits in a slot are the same differ only in the key itself.
    #[test]
    fn keys_with_the_same_bits_of_their_hashes_are_told_apart() {
        let key = |number: u32| ShortKey::new(&number.to_le_bytes()).expect("it is short");
        let of = |number: u32| {
            let hash = key(number).mixed();
            (hash & 15, tag(hash))
        };
        let mut seen = std::collections::HashMap::new();
        let (one, other) = (0..1 << 20)
            .find_map(|number| seen.insert(of(number), number).map(|before| (before, number)))
            .expect("there are only 2^28 of these bits");
        let mut rows = KeyRows::default();
        rows.skip_row();
        assert!(rows.push(key(one)) && rows.get(&key(other)).is_none());
        assert!(rows.push(key(other)) && !rows.push(key(one)));
        assert_eq!((rows.get(&key(one)), rows.get(&key(other))), (Some(1), Some(2)));
    }
}
