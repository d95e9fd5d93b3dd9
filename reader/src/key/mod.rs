//! Categories as keys of hash maps. Keys of up to 15 bytes, which nearly all categories have, need no allocation.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) mod compact;
pub(crate) mod counts;
pub(crate) mod rows;

/// A map from keys of any length.
pub(crate) type LongMap = HashMap<Box<[u8]>, u64, BuildHasherDefault<KeyHasher>>;

/// Short keys looked up at a time: enough loads from memory for a processor to have as many in flight as it can.
pub(crate) const BATCH: usize = 32;

/// Returns the highest index of a table with at least this number of slots: a power of two, minus one.
pub(crate) const fn mask_for(slots: usize) -> usize {
    const LEAST: usize = 16;
    (if slots > LEAST { slots.next_power_of_two() } else { LEAST }) - 1
}

/// Asks the system to use large pages for a table, before its memory is first used. In pages of 4 KiB, finding the page
/// takes most of the time of a random access.
pub(crate) fn use_large_pages<T>(table: *const T, len: usize) {
    const PAGE_BYTES: usize = 2 << 20;
    let end = table.addr() + len * size_of::<T>();
    let first = table.addr().next_multiple_of(PAGE_BYTES);
    let bytes = (end & !(PAGE_BYTES - 1)).saturating_sub(first);
    if bytes > 0 {
        let pages = table.with_addr(first).cast_mut().cast();
        // SAFETY: all pages are inside the table, whose contents this advice does not change. Without large pages, the
        // table is slower and otherwise the same.
        let _ = unsafe { rustix::mm::madvise(pages, bytes, rustix::mm::Advice::LinuxHugepage) };
    }
}

/// Up to 15 bytes and their length, big-endian, so that keys sort like their bytes. Two words instead of one `u128`,
/// whose alignment would make a key with its count 32 bytes instead of 24.
#[derive(Debug, Clone, Copy, Eq, PartialOrd, Ord)]
pub(crate) struct ShortKey {
    head: u64,
    /// Bytes 8 to 14, then the length.
    tail: u64,
}

/// Without a branch on the first word, which would be as good as random in most tables.
impl PartialEq for ShortKey {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        (self.head ^ other.head) | (self.tail ^ other.tail) == 0
    }
}

impl ShortKey {
    /// The longest short key.
    pub(crate) const BYTES_MAX: usize = 15;
    /// A key that no bytes have.
    pub(crate) const NONE: Self = Self { head: 0, tail: 0xff };

    /// Returns the key, or `None` if `bytes` is too long. Overlapping loads replace a copy byte by byte, which took
    /// as long as all other work on a field.
    #[inline]
    pub(crate) fn new(bytes: &[u8]) -> Option<Self> {
        fn eight(bytes: &[u8; 8]) -> u64 {
            u64::from_be_bytes(*bytes)
        }
        fn four(bytes: &[u8; 4]) -> u64 {
            u64::from(u32::from_be_bytes(*bytes))
        }
        let len = bytes.len();
        if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            if len > Self::BYTES_MAX {
                return None;
            }
            // The last eight bytes end with those after the head; the bytes before those are shifted out.
            let after = if len == 8 { 0 } else { eight(last) << (8 * (16 - len)) };
            return Some(Self { head: eight(first), tail: after | len as u64 });
        }
        let head = match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
            (Some(first), Some(last)) => four(first) << 32 | four(last) << (8 * (8 - len)),
            _ => {
                bytes.iter().zip([56, 48, 40]).fold(0, |head, (&byte, shift)| head | u64::from(byte) << shift)
            }
        };
        Some(Self { head, tail: len as u64 })
    }

    /// Returns the bytes, padded with zeros to 15, and the length as the sixteenth.
    pub(crate) fn to_padded(self) -> [u8; 16] {
        (u128::from(self.head) << 64 | u128::from(self.tail)).to_be_bytes()
    }

    /// Restores a key from the result of [`ShortKey::to_padded`].
    pub(crate) fn from_padded(padded: [u8; 16]) -> Self {
        let both = u128::from_be_bytes(padded);
        Self { head: (both >> 64) as u64, tail: both as u64 }
    }

    /// Calls `take` with the bytes.
    pub(crate) fn with_bytes<R>(self, take: impl FnOnce(&[u8]) -> R) -> R {
        let padded = self.to_padded();
        take(&padded[..usize::from(padded[Self::BYTES_MAX]).min(Self::BYTES_MAX)])
    }

    /// Returns the number of bytes, beyond [`ShortKey::BYTES_MAX`] for [`ShortKey::NONE`].
    #[inline]
    pub(crate) fn len(self) -> u64 {
        self.tail & 0xff
    }

    /// Returns the bytes as two little-endian words, padded with zeros.
    #[inline]
    pub(crate) fn little_endian(self) -> [u64; 2] {
        [self.head.swap_bytes(), (self.tail & !0xff).swap_bytes()]
    }

    /// Returns a well-mixed hash: the XOR of the two halves of a 128-bit product.
    #[inline]
    pub(crate) fn mixed(self) -> u64 {
        const HEAD: u64 = 0x9e37_79b9_7f4a_7c15;
        const TAIL: u64 = 0xd6e8_feb8_6659_fd93;
        let product = u128::from(self.head ^ HEAD) * u128::from(self.tail.wrapping_mul(HEAD) ^ TAIL);
        product as u64 ^ (product >> 64) as u64
    }
}

/// A hasher that hashes bytes with xxh3 and uses numbers, which are hashes already, unchanged.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    #[inline]
    fn write_u64(&mut self, mixed: u64) {
        self.0 ^= mixed;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Up to this number of keys, many of them equal, half of them compact.
    pub(super) fn any_keys(most: usize) -> impl Strategy<Value = Vec<ShortKey>> {
        let text = |number: u16| match number % 4 {
            0 if number.is_multiple_of(100) => String::new(),
            0 => format!("{:x}", number % 700),
            1 => format!("{:08x}", number % 300),
            2 => format!("number {}", number % 300),
            _ => format!("{:08X}f", number % 300),
        };
        let key = move |number| ShortKey::new(text(number).as_bytes()).expect("it is short");
        prop::collection::vec(any::<u16>().prop_map(key), 0..most)
    }

    proptest! {
        #[test]
        fn short_keys_keep_bytes_and_their_order(
            one in prop::collection::vec(any::<u8>(), 0..20),
            other in prop::collection::vec(0..3u8, 0..20),
        ) {
            for bytes in [&one, &other] {
                let key = ShortKey::new(bytes);
                prop_assert_eq!(key.is_some(), bytes.len() <= ShortKey::BYTES_MAX);
                if let Some(key) = key {
                    prop_assert_ne!(key, ShortKey::NONE);
                    key.with_bytes(|back| assert_eq!(back, bytes));
                    prop_assert_eq!(ShortKey::from_padded(key.to_padded()), key);
                }
            }
            if let (Some(a), Some(b)) = (ShortKey::new(&one), ShortKey::new(&other)) {
                prop_assert_eq!(a.cmp(&b), one.cmp(&other));
            }
        }
    }
}
