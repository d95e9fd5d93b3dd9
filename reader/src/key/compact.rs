//! Keys that fit into 35 bits, as nearly all categories of click logs do, and tables of one word per key: a cache line
//! holds eight of them, and a look-up reads one.

use crate::key::{BATCH, ShortKey, mask_for, use_large_pages};

/// A key of up to four bytes, or of eight lowercase hexadecimal digits: the value of bytes or digits in the lowest 32
/// bits, the length above it, which is 5 for digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CompactKey(u64);

/// Returns a word with this byte in each place.
const fn each(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

impl CompactKey {
    /// The key of the empty string.
    pub(crate) const EMPTY: Self = Self(0);
    /// A key that no bytes have.
    pub(crate) const NONE: Self = Self(7 << 32);
    /// The length that digits have.
    const HEX: u64 = 5;

    /// Returns the key of a short key, or `None` if it does not fit.
    #[inline]
    pub(crate) fn of_short(key: ShortKey) -> Option<Self> {
        match key.tail {
            8 => Self::of_eight(key.head.to_be_bytes()),
            len @ 0..=4 => Some(Self(len << 32 | key.head >> 32)),
            _ => None,
        }
    }

    /// Returns the key of eight lowercase hexadecimal digits, or `None` for other bytes. All bytes are looked at at
    /// once.
    #[inline]
    pub(crate) fn of_eight(bytes: [u8; 8]) -> Option<Self> {
        // The top bit of each byte of a sum shows whether that byte reached a bound: no sum carries into the next byte.
        const fn at_least(word: u64, bound: u8) -> u64 {
            (word & each(0x7f)) + each(0x80 - bound)
        }
        let word = u64::from_be_bytes(bytes);
        let digit = at_least(word, b'0') & !at_least(word, b'9' + 1);
        let letter = at_least(word, b'a') & !at_least(word, b'f' + 1);
        if (digit | letter) & !word & each(0x80) != each(0x80) {
            return None;
        }
        // Letters have bit 6 and start with 1 in the lowest four bits.
        let values = (word & each(0x0f)) + (word >> 6 & each(1)) * 9;
        let pairs = (values | values >> 4) & 0x00ff_00ff_00ff_00ff;
        let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
        Some(Self(Self::HEX << 32 | (fours | fours >> 16) & 0xffff_ffff))
    }

    /// Returns the short key of the same bytes.
    pub(crate) fn to_short(self) -> ShortKey {
        let value = self.0 & 0xffff_ffff;
        match self.0 >> 32 {
            Self::HEX => {
                let fours = (value | value << 16) & 0x0000_ffff_0000_ffff;
                let pairs = (fours | fours << 8) & 0x00ff_00ff_00ff_00ff;
                let values = (pairs | pairs << 4) & each(0x0f);
                let letters = (values + each(6)) >> 4 & each(1);
                let head = values + each(b'0') + letters * u64::from(b'a' - b'0' - 10);
                ShortKey { head, tail: 8 }
            }
            len @ 0..=4 => ShortKey { head: value << 32, tail: len },
            _ => ShortKey::NONE,
        }
    }

    /// Returns a well-mixed hash: the XOR of the two halves of a 128-bit product.
    #[inline]
    pub(crate) fn mixed(self) -> u64 {
        let product = u128::from(self.0 ^ 0xd6e8_feb8_6659_fd93) * 0x9e37_79b9_7f4a_7c15;
        product as u64 ^ (product >> 64) as u64
    }
}

/// Starts to load a slot into the nearest cache.
#[inline]
fn prefetch(slots: &[u64], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: this has no effect that the program can see, at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(slots.as_ptr().wrapping_add(at).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slots, at);
}

/// A number for each of some compact keys, in a table with linear probing from the lowest bits of the hash.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompactTable {
    /// Keys above their numbers, which are not 0; 0 if the slot is empty. No slots until the table grows.
    slots: Vec<u64>,
    len: usize,
}

const NUMBER_BITS: u32 = 29;

impl CompactTable {
    /// The largest number of a key.
    pub(crate) const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

    /// Returns how many keys have a number.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of memory that the table takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Returns the slots, in which keys are looked up. The table must have a free one.
    #[inline]
    pub(crate) fn slots(&self) -> CompactSlots<'_> {
        CompactSlots(&self.slots)
    }

    /// Returns the keys with their numbers, in any order.
    pub(crate) fn into_numbers(self) -> impl Iterator<Item = (CompactKey, u64)> {
        let entry = |slot: u64| (CompactKey(slot >> NUMBER_BITS), slot & Self::NUMBER_MAX);
        self.slots.into_iter().filter(|&slot| slot != 0).map(entry)
    }

    /// Makes room so that the table has at least this number of slots.
    pub(crate) fn grow_to(&mut self, slots: usize) {
        let mask = mask_for(slots);
        if mask < self.slots.len() {
            return;
        }
        // Zeroed memory is not used yet.
        let empty = vec![0; mask + 1];
        use_large_pages(empty.as_ptr(), empty.len());
        for slot in std::mem::replace(&mut self.slots, empty).into_iter().filter(|&slot| slot != 0) {
            let key = CompactKey(slot >> NUMBER_BITS);
            let at = self.slots().slot_of(key, self.slots().first_slot_of(key));
            self.slots[at] = slot;
        }
    }

    /// Sets the number of a key that has none; returns false if it has one, which it keeps. The table must have two
    /// free slots.
    pub(crate) fn insert(&mut self, key: CompactKey, number: u64) -> bool {
        assert!((1..=Self::NUMBER_MAX).contains(&number), "a slot holds numbers from 1 to 2^29 - 1");
        let at = self.slots().slot_of(key, self.slots().first_slot_of(key));
        let is_fresh = self.slots[at] == 0;
        if is_fresh {
            self.slots[at] = key.0 << NUMBER_BITS | number;
            self.len += 1;
        }
        is_fresh
    }

    /// Adds to the numbers of keys, which may repeat. If a sum is too large for a slot, calls `carry` with all of it
    /// but 1.
    pub(crate) fn add(&mut self, counts: &[(CompactKey, u64)], mut carry: impl FnMut(CompactKey, u64)) {
        for counts in counts.chunks(BATCH) {
            let len = self.len + counts.len();
            // At least a quarter of all slots are free.
            self.grow_to(len + len / 3 + 1);
            let first = self.slots().first_slots_of(counts.iter().map(|&(key, _)| key));
            for (at, &(key, count)) in first.into_iter().zip(counts) {
                let at = self.slots().slot_of(key, at);
                let before = self.slots[at] & Self::NUMBER_MAX;
                self.len += usize::from(before == 0);
                let sum = before + count;
                self.slots[at] = key.0 << NUMBER_BITS
                    | if sum <= Self::NUMBER_MAX {
                        sum
                    } else {
                        carry(key, sum - 1);
                        1
                    };
            }
        }
    }
}

/// The slots of a [`CompactTable`], in memory or in a file: a power of two, of which at least one is free.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompactSlots<'a>(&'a [u64]);

impl<'a> CompactSlots<'a> {
    /// Takes the slots of a table in a file, of which there must be a power of two, with a free one.
    pub(crate) fn of(slots: &'a [u64]) -> Self {
        Self(slots)
    }

    /// Returns the slots as numbers: keys above their numbers, or 0.
    pub(crate) fn words(self) -> &'a [u64] {
        self.0
    }

    /// Returns the number in a slot; 0 if the slot is free.
    pub(crate) const fn number_in(slot: u64) -> u64 {
        slot & CompactTable::NUMBER_MAX
    }

    #[inline]
    fn first_slot_of(self, key: CompactKey) -> usize {
        key.mixed() as usize & (self.0.len() - 1)
    }

    /// Returns the slot that a key has, or else the one to put it into: this one or a later one.
    #[inline]
    fn slot_of(self, key: CompactKey, mut at: usize) -> usize {
        while self.0[at] != 0 && self.0[at] >> NUMBER_BITS != key.0 {
            at = (at + 1) & (self.0.len() - 1);
        }
        at
    }

    /// Returns the number of a key, or 0.
    #[inline]
    pub(crate) fn get(self, key: CompactKey) -> u64 {
        Self::number_in(self.0[self.slot_of(key, self.first_slot_of(key))])
    }

    /// Returns the first slot of each key, and starts to load these slots: the processor then waits for none of them.
    #[inline]
    fn first_slots_of(self, keys: impl Iterator<Item = CompactKey>) -> [usize; BATCH] {
        let mut first = [0; BATCH];
        for (first, key) in first.iter_mut().zip(keys) {
            *first = self.first_slot_of(key);
            prefetch(self.0, *first);
        }
        first
    }

    /// Appends the number of each key to `numbers`, 0 for keys without one.
    pub(crate) fn numbers_of(self, keys: &[CompactKey], numbers: &mut Vec<u64>) {
        let before = numbers.len();
        numbers.resize(before + keys.len(), 0);
        let mut found = numbers[before..].chunks_mut(BATCH);
        let mut batches = keys.chunks(BATCH).peekable();
        let mut next = batches.peek().map(|keys| self.first_slots_of(keys.iter().copied()));
        while let (Some(first), Some(keys), Some(found)) = (next, batches.next(), found.next()) {
            next = batches.peek().map(|keys| self.first_slots_of(keys.iter().copied()));
            // No branch depends on what the first slots hold.
            let mut is_later = 0_u64;
            for (number, (found, (&at, key))) in found.iter_mut().zip(first.iter().zip(keys)).enumerate() {
                let slot = self.0[at];
                let is_first = slot >> NUMBER_BITS == key.0;
                *found = Self::number_in(slot) * u64::from(is_first);
                is_later |= u64::from(!is_first & (slot != 0)) << number;
            }
            while is_later != 0 {
                let number = is_later.trailing_zeros() as usize;
                found[number] = Self::number_in(self.0[self.slot_of(keys[number], first[number])]);
                is_later &= is_later - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn compact_keys_are_exactly_the_keys_that_fit(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..10),
                "[0-9a-f]{8}".prop_map(String::into_bytes),
                prop::collection::vec(prop::sample::select(&b"09afAF/:`g@G\0\x80\xb0\xe1"[..]), 8),
            ],
        ) {
            let is_hex = bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            let short = ShortKey::new(&bytes).unwrap();
            let key = CompactKey::of_short(short);
            prop_assert_eq!(key.is_some(), bytes.len() <= 4 || bytes.len() == 8 && is_hex);
            if let Some(key) = key {
                prop_assert_eq!(key.to_short(), short);
                prop_assert_ne!(key, CompactKey::NONE);
                prop_assert_eq!(key == CompactKey::EMPTY, bytes.is_empty());
            }
        }
    }

    #[test]
    fn every_byte_is_a_digit_or_not_at_every_place() {
        for at in 0..8 {
            for byte in 0..=255 {
                let mut bytes = *b"09af5c1e";
                bytes[at] = byte;
                let digits =
                    std::str::from_utf8(&bytes).ok().and_then(|text| u32::from_str_radix(text, 16).ok());
                let value = digits.filter(|_| !byte.is_ascii_uppercase() && byte != b'+');
                let key = CompactKey::of_eight(bytes);
                assert_eq!(key, value.map(|value| CompactKey(5 << 32 | u64::from(value))), "{byte} at {at}");
            }
        }
        assert_eq!(CompactKey::of_short(ShortKey::NONE), None);
        assert_eq!(CompactKey::NONE.to_short(), ShortKey::NONE);
    }

    #[test]
    fn sums_that_are_too_large_for_a_slot_are_carried() {
        let (mut table, mut carried) = (CompactTable::default(), Vec::new());
        let key = CompactKey::EMPTY;
        let mut add = |count| table.add(&[(key, count)], |of, count| carried.push((of, count)));
        add(CompactTable::NUMBER_MAX - 1);
        add(1);
        add(1);
        add(7);
        add(1 << 40);
        assert_eq!((table.len(), table.slots().get(key)), (1, 1));
        let all_but_one = [CompactTable::NUMBER_MAX, (1 << 40) + 7];
        assert_eq!(carried, all_but_one.map(|count| (key, count)));
    }
}
