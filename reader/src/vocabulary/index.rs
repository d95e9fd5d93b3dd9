//! The index of a vocabulary: a file that finds the rows of categories where it is mapped into memory.
//!
//! Its bytes depend on the categories and their order only. `docs/reference/dataset-format.md` specifies them.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use super::{Key, Vocabulary};
use crate::key::compact::{CompactKey, CompactTable};
use crate::key::rows::{TAG_BITS, tag};
use crate::key::{ShortKey, mask_for, use_large_pages};

// The words of the file are used where they are.
const _: () = assert!(cfg!(target_endian = "little"), "an index is little-endian");

const MAGIC: u64 = u64::from_le_bytes(*b"RKNVOCAB");
const VERSION: u64 = 1;
/// Words of the header: a cache line.
pub(super) const HEADER_WORDS: usize = 8;
/// In the first word of an entry, the row is above the length of the category, of 32 bits each.
pub(super) const ROW_SHIFT: u32 = 32;
/// The size of the pieces in which an index is written.
const PIECE_BYTES: usize = 1 << 20;

/// Returns the path of a column's index below the folder of its fit, with forward slashes.
pub(crate) fn index_name(column: &str) -> String {
    format!("{}/{column}.index", super::FOLDER)
}

/// Returns the slots of a table: of three of them, at most two are used.
const fn slots_for(keys: usize) -> usize {
    mask_for(keys + keys.div_ceil(2)) + 1
}

/// The lengths of the sections that follow the header, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Rows of the table; the first one stands for all categories that are not listed.
    pub(super) rows: u64,
    /// The highest row whose key, if it is compact, is in the first table.
    pub(super) compact_rows_max: u64,
    compact_slots: u64,
    other_slots: u64,
    entry_words: u64,
}

impl Header {
    fn to_words(self) -> [u64; HEADER_WORDS] {
        let Self { rows, compact_rows_max, compact_slots, other_slots, entry_words } = self;
        [MAGIC, VERSION, rows, compact_rows_max, compact_slots, other_slots, entry_words, 0]
    }

    /// Reads the header of a file of this length.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub(super) fn parse(file: &[u64]) -> Result<Self, String> {
        let words = file.first_chunk::<HEADER_WORDS>().ok_or("it is shorter than its header")?;
        let &[magic, version, rows, compact_rows_max, compact_slots, other_slots, entry_words, reserved] =
            words;
        if magic != MAGIC {
            return Err("it does not start with RKNVOCAB".into());
        }
        if version != VERSION {
            return Err(format!("it has version {version}, but this program reads {VERSION}"));
        }
        let header = Self { rows, compact_rows_max, compact_slots, other_slots, entry_words };
        let sections = [HEADER_WORDS as u64, compact_slots, other_slots, entry_words];
        let words = sections.into_iter().try_fold(0, u64::checked_add);
        let are_tables = compact_slots.is_power_of_two() && other_slots.is_power_of_two();
        if words != Some(file.len() as u64) || !are_tables || rows == 0 || reserved != 0 {
            return Err("its length does not fit its header".into());
        }
        Ok(header)
    }

    /// Returns the words of the table of compact keys.
    pub(super) fn compact(&self) -> Range<usize> {
        HEADER_WORDS..HEADER_WORDS + self.compact_slots as usize
    }

    /// Returns the words of the table of all other keys.
    pub(super) fn others(&self) -> Range<usize> {
        let start = self.compact().end;
        start..start + self.other_slots as usize
    }

    /// Returns whether the first table may lack a compact key that has a row.
    pub(super) fn has_other_compact_keys(&self) -> bool {
        self.rows - 1 > self.compact_rows_max
    }
}

/// A category that is looked up in the second table.
#[derive(Clone, Copy)]
pub(super) enum OtherKey<'a> {
    Short(ShortKey),
    Long(&'a [u8]),
}

impl OtherKey<'_> {
    pub(super) fn hash(self) -> u64 {
        match self {
            Self::Short(key) => key.mixed(),
            Self::Long(bytes) => xxh3_64(bytes),
        }
    }

    pub(super) fn with_bytes<R>(self, take: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Short(key) => key.with_bytes(take),
            Self::Long(bytes) => take(bytes),
        }
    }

    /// Returns the words of the entry: its row above the length of the category, and its bytes, padded with zeros.
    fn entry_words(self) -> usize {
        1 + self.with_bytes(<[u8]>::len).div_ceil(8)
    }
}

/// Where a category is found.
enum Place<'a> {
    Compact(CompactKey),
    Other(OtherKey<'a>),
}

/// Returns the place of each category with its row, in row order.
fn places(vocabulary: &Vocabulary, compact_rows_max: u64) -> impl Iterator<Item = (u64, Place<'_>)> {
    (0..).zip(vocabulary.keys()).filter_map(move |(row, key)| {
        let place = match key {
            Key::Others => return None,
            Key::Long(bytes) => Place::Other(OtherKey::Long(bytes)),
            Key::Short(key) => match CompactKey::of_short(key).filter(|_| row <= compact_rows_max) {
                Some(key) => Place::Compact(key),
                None => Place::Other(OtherKey::Short(key)),
            },
        };
        Some((row, place))
    })
}

/// Returns the categories of the second table with their rows, in row order.
fn others(vocabulary: &Vocabulary, compact_rows_max: u64) -> impl Iterator<Item = (u64, OtherKey<'_>)> {
    places(vocabulary, compact_rows_max).filter_map(|(row, place)| match place {
        Place::Compact(_) => None,
        Place::Other(key) => Some((row, key)),
    })
}

/// Writes the index of a vocabulary in pieces; compact keys of rows beyond `compact_rows_max` are in the second table.
///
/// One table at a time is in memory, of 12 to 24 bytes per category.
pub(super) fn write<E>(
    vocabulary: &Vocabulary,
    compact_rows_max: u64,
    mut put: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut compact_keys, mut other_keys, mut entry_words) = (0, 0, 0);
    for (_, place) in places(vocabulary, compact_rows_max) {
        match place {
            Place::Compact(_) => compact_keys += 1,
            Place::Other(key) => {
                other_keys += 1;
                entry_words += key.entry_words() as u64;
            }
        }
    }
    let [compact_slots, other_slots] = [compact_keys, other_keys].map(slots_for);
    let header = Header {
        rows: vocabulary.rows(),
        compact_rows_max,
        compact_slots: compact_slots as u64,
        other_slots: other_slots as u64,
        entry_words,
    };
    put(bytemuck::cast_slice(&header.to_words()))?;
    let mut put_all = |words: &[u64]| bytemuck::cast_slice(words).chunks(PIECE_BYTES).try_for_each(&mut put);

    // In row order, so that frequent categories have the first slots of their hashes.
    let mut table = CompactTable::default();
    table.grow_to(compact_slots);
    for (row, place) in places(vocabulary, compact_rows_max) {
        if let Place::Compact(key) = place {
            table.insert(key, row);
        }
    }
    put_all(table.slots().words())?;
    drop(table);

    let mut slots = vec![0; other_slots];
    use_large_pages(slots.as_ptr(), slots.len());
    let mut position = header.others().end as u64;
    for (_, key) in others(vocabulary, compact_rows_max) {
        let (mask, hash) = (slots.len() - 1, key.hash());
        let mut at = hash as usize & mask;
        while slots[at] != 0 {
            at = (at + 1) & mask;
        }
        assert!(position < 1 << (u64::BITS - TAG_BITS), "a slot holds positions up to 2^40");
        slots[at] = position << TAG_BITS | tag(hash);
        position += key.entry_words() as u64;
    }
    put_all(&slots)?;
    drop(slots);

    let mut piece: Vec<u64> = Vec::with_capacity(PIECE_BYTES / 8);
    for (row, key) in others(vocabulary, compact_rows_max) {
        key.with_bytes(|bytes| {
            assert!(
                row.max(bytes.len() as u64) <= u64::from(u32::MAX),
                "schemas and formats have lower limits"
            );
            piece.push(row << ROW_SHIFT | bytes.len() as u64);
            piece.extend(bytes.chunks(8).map(|eight| {
                let mut padded = [0; 8];
                padded[..eight.len()].copy_from_slice(eight);
                u64::from_le_bytes(padded)
            }));
        });
        if piece.len() >= PIECE_BYTES / 8 {
            put_all(&piece)?;
            piece.clear();
        }
    }
    put_all(&piece)
}
