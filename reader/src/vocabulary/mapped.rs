//! A vocabulary whose categories are looked up in its index, where it is mapped into memory: all processes of a machine
//! share its pages, and none has a copy.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use memmap2::Mmap;
use rankine_base::error::{Error, IoContext, Result};
use rankine_base::files::open_regular;
use rankine_base::sealed::Checksum;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::index::{HEADER_WORDS, Header, OtherKey, ROW_SHIFT};
use super::{COUNT_MAX, Vocabulary};
use crate::key::compact::{CompactKey, CompactSlots};
use crate::key::rows::{TAG_BITS, tag};
use crate::key::{BATCH, ShortKey};

/// What is read of a file at a time, so that it stays in the cache while it is checked.
const PIECE_BYTES: usize = 1 << 18;

/// The bits of the length in the first word of an entry.
const LEN_MASK: u64 = (1 << ROW_SHIFT) - 1;

/// A file that a manifest lists.
#[derive(Debug, Clone)]
pub(crate) struct ListedFile {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) xxh3: Checksum,
}

impl ListedFile {
    /// Opens the file, and checks its length.
    fn open(&self) -> Result<File> {
        let Self { path, bytes: expected, .. } = self;
        let file = open_regular(path).context("open", path)?;
        let bytes = file.metadata().context("open", path)?.len();
        if bytes != *expected {
            return Err(self.damaged(&format!("it has {bytes} bytes but should have {expected}")));
        }
        Ok(file)
    }

    fn check(&self, found: u64) -> Result<()> {
        if found == self.xxh3.0 {
            return Ok(());
        }
        Err(self.damaged("its checksum does not match fit.json"))
    }

    fn damaged(&self, what: &str) -> Error {
        let way_out = "copy the fit again, or make it again with `rankine fit`";
        Error::damaged(&self.path, None, format!("{what}: {way_out}"))
    }

    /// Passes the bytes of the open file in pieces, and checks them after the last one.
    fn read(&self, file: &File, mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (mut hash, mut piece, mut offset) = (Xxh3Default::new(), vec![0; PIECE_BYTES], 0);
        loop {
            let bytes = file.read_at(&mut piece, offset).context("read", &self.path)?;
            if bytes == 0 {
                return self.check(hash.digest());
            }
            hash.update(&piece[..bytes]);
            put(&piece[..bytes])?;
            offset += bytes as u64;
        }
    }
}

/// A vocabulary of a fit. Look-ups read the mapped index.
#[derive(Debug, Clone)]
pub(crate) struct MappedVocabulary {
    map: Arc<Mmap>,
    header: Header,
    /// The vocabulary as text. It is open, so that it remains the one that was checked.
    text_file: Arc<File>,
    text: ListedFile,
}

impl MappedVocabulary {
    /// Maps the index of a vocabulary, and checks both files.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] for a file that is not what was written.
    pub(crate) fn open(index: &ListedFile, text: ListedFile) -> Result<Self> {
        let text_file = Arc::new(text.open()?);
        text.read(&text_file, |_| Ok(()))?;
        let file = index.open()?;
        // SAFETY: nothing changes the files of a fit; a new one replaces the folder.
        let map = unsafe { Mmap::map(&file) }.context("map", &index.path)?;
        let words = bytemuck::try_cast_slice(&map).map_err(|_| index.damaged("it ends within a word"))?;
        let header = Header::parse(words);
        let found = check(header.as_ref().ok(), words);
        // Damage is named as such rather than by what it has led to.
        index.check(found.xxh3)?;
        let header = header.map_err(|what| index.damaged(&what))?;
        if !found.is_sound {
            return Err(index.damaged("a table is full, or has rows beyond the last one"));
        }
        Ok(Self { map: Arc::new(map), header, text_file, text })
    }

    /// Loads the vocabulary.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`].
    pub(crate) fn load(&self) -> Result<Vocabulary> {
        let mut text = Vec::new();
        self.copy_text(|piece| {
            text.extend_from_slice(piece);
            Ok(())
        })?;
        let vocabulary = Vocabulary::from_tsv(&text).map_err(|what| self.text.damaged(&what.what))?;
        let sum = vocabulary.counts().iter().copied().try_fold(0, u64::checked_add);
        if sum.is_none_or(|sum| sum >= COUNT_MAX) || vocabulary.rows() != self.rows() {
            let what = "its counts are too large, or its index has other rows";
            return Err(self.text.damaged(what));
        }
        Ok(vocabulary)
    }

    /// Passes the text of the vocabulary in pieces, as [`Vocabulary::to_tsv`] does.
    ///
    /// # Errors
    /// The errors of `put`; [`Error::Io`]; [`Error::Damaged`].
    pub(crate) fn copy_text(&self, put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.text.read(&self.text_file, put)
    }

    /// Returns the rows of the table, as [`Vocabulary::rows`] does.
    pub(crate) fn rows(&self) -> u64 {
        self.header.rows
    }

    /// Returns the row of a category, or 0.
    pub(crate) fn row(&self, category: &[u8]) -> u64 {
        let Some(key) = ShortKey::new(category) else {
            return self.row_of_other(OtherKey::Long(category));
        };
        let row = CompactKey::of_short(key).map_or(0, |key| self.compact().get(key));
        if row == 0 { self.row_of_other(OtherKey::Short(key)) } else { row }
    }

    /// Appends the row of each compact key to `rows`, 0 for categories without one.
    pub(crate) fn rows_of_compact(&self, keys: &[CompactKey], rows: &mut Vec<u64>) {
        let before = rows.len();
        self.compact().numbers_of(keys, rows);
        if self.header.has_other_compact_keys() {
            let others = rows[before..].iter_mut().zip(keys);
            for (row, key) in others.filter(|(row, key)| **row == 0 && **key != CompactKey::NONE) {
                *row = self.row_of_other(OtherKey::Short(key.to_short()));
            }
        }
    }

    /// Appends the row of each short key that is not compact to `rows`, 0 for categories without one.
    pub(crate) fn rows_of_other(&self, keys: &[ShortKey], rows: &mut Vec<u64>) {
        let (words, slots) = (self.words(), &self.words()[self.header.others()]);
        let mask = slots.len() - 1;
        let (mut hashes, mut firsts, mut found) = ([0; BATCH], [0; BATCH], [0; BATCH]);
        for keys in keys.chunks(BATCH) {
            // In each of these loops no load depends on another one, so the processor does not wait for each.
            for ((hash, first), key) in hashes.iter_mut().zip(&mut firsts).zip(keys) {
                *hash = key.mixed();
                *first = slots[*hash as usize & mask];
            }
            for ((found, slot), key) in found.iter_mut().zip(&firsts).zip(keys) {
                let (position, [one, two]) = ((slot >> TAG_BITS) as usize, key.little_endian());
                *found = match words.get(position..).and_then(<[u64]>::first_chunk) {
                    // The second word of a shorter key belongs to the next entry.
                    Some(&[head, first, second])
                        if (head & LEN_MASK ^ key.len())
                            | (first ^ one)
                            | ((second ^ two) * u64::from(key.len() > 8))
                            == 0 =>
                    {
                        head >> ROW_SHIFT
                    }
                    _ => 0,
                };
            }
            let of = |(number, key): (usize, &ShortKey)| match found[number] {
                row if row != 0 && row < self.rows() => row,
                _ => self.find(OtherKey::Short(*key), hashes[number]),
            };
            rows.extend(keys.iter().enumerate().map(of));
        }
    }

    fn words(&self) -> &[u64] {
        bytemuck::cast_slice(&self.map)
    }

    fn compact(&self) -> CompactSlots<'_> {
        CompactSlots::of(&self.words()[self.header.compact()])
    }

    fn row_of_other(&self, key: OtherKey<'_>) -> u64 {
        self.find(key, key.hash())
    }

    /// Returns the row of a key with this hash in the second table, or 0.
    fn find(&self, key: OtherKey<'_>, hash: u64) -> u64 {
        let slots = &self.words()[self.header.others()];
        let mask = slots.len() - 1;
        let mut at = hash as usize & mask;
        // One slot is free.
        while slots[at] != 0 {
            if slots[at] & ((1 << TAG_BITS) - 1) == tag(hash)
                && let Some(row) = self.row_at((slots[at] >> TAG_BITS) as usize, key)
            {
                return row;
            }
            at = (at + 1) & mask;
        }
        0
    }

    /// Returns the row in the entry at a position, if the entry has this key.
    fn row_at(&self, position: usize, key: OtherKey<'_>) -> Option<u64> {
        let (head, rest) = self.words().get(position..)?.split_first()?;
        let (row, len) = (head >> ROW_SHIFT, head & LEN_MASK);
        let bytes: &[u8] = bytemuck::cast_slice(rest);
        let is_same = key.with_bytes(|own| own.len() as u64 == len && bytes.get(..own.len()) == Some(own));
        // A row beyond the table would be no row of the column.
        (is_same && row < self.rows()).then_some(row)
    }
}

/// What was found in an index.
struct Found {
    xxh3: u64,
    /// Whether every search for a key ends, and gives a row of the table.
    is_sound: bool,
}

/// Reads all of an index once.
fn check(header: Option<&Header>, words: &[u64]) -> Found {
    let Some(header) = header else {
        return Found { xxh3: xxh3_64(bytemuck::cast_slice(words)), is_sound: false };
    };
    let mut hash = Xxh3Default::new();
    let mut largest = 0;
    let mut has_free = [false; 2];
    let mut scan = |section: &[u64], look: &mut dyn FnMut(&[u64])| {
        for piece in section.chunks(PIECE_BYTES / 8) {
            hash.update(bytemuck::cast_slice(piece));
            look(piece);
        }
    };
    let (compact, others) = (header.compact(), header.others());
    scan(&words[..HEADER_WORDS], &mut |_| ());
    scan(&words[compact], &mut |slots| {
        largest = slots.iter().fold(largest, |max, &slot| max.max(CompactSlots::number_in(slot)));
        has_free[0] |= slots.contains(&0);
    });
    scan(&words[others.clone()], &mut |slots| has_free[1] |= slots.contains(&0));
    scan(&words[others.end..], &mut |_| ());
    Found { xxh3: hash.digest(), is_sound: largest < header.rows && has_free == [true; 2] }
}
