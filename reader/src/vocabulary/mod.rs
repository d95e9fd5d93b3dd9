//! The mapping from raw categories to rows of a table: learnt by conversion, stored with the dataset, used again for
//! prediction. A fit also has an `index` of each vocabulary, which is looked up in where it is `mapped`.

mod index;
mod lookup;
mod mapped;

pub(crate) use index::index_name;
pub(crate) use lookup::Lookup;
pub(crate) use mapped::{ListedFile, MappedVocabulary};

use std::cmp::Reverse;

use rankine_base::error::Malformed;
use rankine_base::escape::{escape, unescape};
use xxhash_rust::xxh3::xxh3_64;

use crate::key::compact::{CompactKey, CompactTable};
use crate::key::rows::KeyRows;
use crate::key::{LongMap, ShortKey};

/// The row of every category that an exact vocabulary does not list.
pub const OUT_OF_VOCABULARY: u64 = 0;
/// Represents [`OUT_OF_VOCABULARY`] in a vocabulary file. No escaped category looks like this.
const OUT_OF_VOCABULARY_TEXT: &[u8] = b"\\*";
/// Counts from files are below this, so that sums with those of new rows do not overflow.
pub(crate) const COUNT_MAX: u64 = 1 << 62;
/// The size of the pieces in which a vocabulary's text is written.
const PIECE_BYTES: usize = 1 << 16;

/// The folder of a dataset that holds its vocabularies.
pub const FOLDER: &str = "vocabulary";

/// Returns the path of a column's vocabulary below the dataset's folder, with forward slashes.
pub fn file_name(column: &str) -> String {
    format!("{FOLDER}/{column}.tsv")
}

/// Returns the row of a category in a hashed table: `xxh3_64(category) % rows`, with seed 0.
///
/// # Panics
/// If `rows` is 0.
pub fn hash_row(category: &[u8], rows: u64) -> u64 {
    hash_key(category) % rows
}

/// Returns the key of a category in an open vocabulary: `xxh3_64(category)`, with seed 0. Each 64-bit number can be a
/// key, and two categories may have the same one.
pub fn hash_key(category: &[u8]) -> u64 {
    xxh3_64(category)
}

/// The categories of one column that have their own rows: 1, 2, ... by decreasing count, equal counts by their bytes.
/// Row 0 stands for all others. Categories that were added to the vocabulary of an older dataset come after all that it
/// had, in the same order among themselves.
///
/// Takes 40 to 56 bytes per category of up to 15 bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Vocabulary {
    /// Has the same rows as `counts`.
    short: KeyRows,
    long: LongMap,
    /// How often each row was looked up in training.
    counts: Vec<u64>,
}

/// What a row stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key<'a> {
    Others,
    Short(ShortKey),
    Long(&'a [u8]),
}

impl Key<'_> {
    /// Appends the text that a vocabulary file has for it.
    fn write(&self, text: &mut String) {
        match self {
            Self::Others => text.push_str("\\*"),
            Self::Short(key) => key.with_bytes(|bytes| escape(bytes, text)),
            Self::Long(bytes) => escape(bytes, text),
        }
    }
}

impl Vocabulary {
    /// Builds the vocabulary of distinct categories and their counts in training; those below `min_count` get no row.
    ///
    /// # Panics
    /// If a category occurs twice.
    pub fn from_counts<K: AsRef<[u8]>>(counts: impl IntoIterator<Item = (K, u64)>, min_count: u64) -> Self {
        let (mut short, mut long, mut rest) = (Vec::new(), Vec::new(), 0);
        for (category, count) in counts {
            let category = category.as_ref();
            if count < min_count {
                rest += count;
                continue;
            }
            match ShortKey::new(category) {
                Some(key) => short.push((key, count)),
                None => long.push((category.into(), count)),
            }
        }
        Self::from_kept(short, long, rest)
    }

    /// Returns the vocabulary that lists no category.
    pub(crate) fn empty() -> Self {
        let mut vocabulary = Self::without_rows();
        vocabulary.push_others(0);
        vocabulary
    }

    fn without_rows() -> Self {
        Self { short: KeyRows::default(), long: LongMap::default(), counts: Vec::new() }
    }

    /// Appends the first row, which stands for all categories that are not listed.
    fn push_others(&mut self, count: u64) {
        self.short.skip_row();
        self.counts.push(count);
    }

    /// Builds the vocabulary of exactly these categories; `rest` look-ups of training were of others.
    fn from_kept(short: Vec<(ShortKey, u64)>, long: Vec<(Box<[u8]>, u64)>, rest: u64) -> Self {
        let mut vocabulary = Self::empty();
        vocabulary.add_to(OUT_OF_VOCABULARY, rest);
        vocabulary.append(short, long);
        vocabulary
    }

    /// Adds look-ups of a row to its count.
    pub(crate) fn add_to(&mut self, row: u64, lookups: u64) {
        self.counts[row as usize] += lookups;
    }

    /// Gives rows after the last one to categories that have none yet, by decreasing count, equal counts by their
    /// bytes.
    pub(crate) fn append(&mut self, mut short: Vec<(ShortKey, u64)>, mut long: Vec<(Box<[u8]>, u64)>) {
        short.sort_unstable_by_key(|&(key, count)| (Reverse(count), key));
        long.sort_unstable_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
        self.short.reserve(&short, long.len());
        self.long.reserve(long.len());
        self.counts.reserve_exact(short.len() + long.len());
        let mut long = long.into_iter().peekable();
        for (key, count) in short {
            let comes_before = |(other, other_count): &(Box<[u8]>, u64)| {
                key.with_bytes(|bytes| (Reverse(*other_count), &other[..]) < (Reverse(count), bytes))
            };
            while let Some((other, count)) = long.next_if(comes_before) {
                self.append_long(other, count);
            }
            self.append_short(key, count);
        }
        for (key, count) in long {
            self.append_long(key, count);
        }
        assert_eq!(self.short.len() + self.long.len() + 1, self.counts.len(), "categories are distinct");
    }

    /// Gives a category the next row; returns false if it already had one.
    fn append_short(&mut self, key: ShortKey, count: u64) -> bool {
        self.counts.push(count);
        self.short.push(key)
    }

    fn append_long(&mut self, key: Box<[u8]>, count: u64) -> bool {
        let fresh = self.long.insert(key, self.rows()).is_none();
        self.short.skip_row();
        self.counts.push(count);
        fresh
    }

    /// Returns the rows of the table, including that of all other categories.
    pub fn rows(&self) -> u64 {
        self.counts.len() as u64
    }

    /// Returns the row of a category, or `None` if it has no row of its own and [`OUT_OF_VOCABULARY`] stands for it.
    pub fn row(&self, category: &[u8]) -> Option<u64> {
        match ShortKey::new(category) {
            Some(key) => self.short.get(&key),
            None => self.long.get(category).copied(),
        }
    }

    /// Returns the row of a short category, or `None` if it has no row of its own.
    pub(crate) fn own_row_of_short(&self, key: &ShortKey) -> Option<u64> {
        self.short.get(key)
    }

    /// Appends the row of each compact key to `rows`, [`OUT_OF_VOCABULARY`] for categories without one.
    pub(crate) fn rows_of_compact(&self, keys: &[CompactKey], rows: &mut Vec<u64>) {
        self.short.rows_of_compact(keys, rows);
    }

    /// Appends the row of each short key that is not compact to `rows`, [`OUT_OF_VOCABULARY`] for categories without
    /// one.
    pub(crate) fn rows_of_other(&self, keys: &[ShortKey], rows: &mut Vec<u64>) {
        self.short.rows_of_other(keys, rows);
    }

    /// Returns how often each row was looked up in training.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the key of each row in row order.
    fn keys(&self) -> impl Iterator<Item = Key<'_>> {
        let mut long: Vec<_> = self.long.iter().map(|(key, &row)| (row, &key[..])).collect();
        long.sort_unstable_by_key(|&(row, _)| row);
        let mut long = long.into_iter().peekable();
        (0..).zip(self.short.keys()).map(move |(row, &key)| match long.next_if(|&(of, _)| of == row) {
            Some((_, bytes)) => Key::Long(bytes),
            None if key == ShortKey::NONE => Key::Others,
            None => Key::Short(key),
        })
    }

    /// Returns the first row, from 1, whose category differs in `longer`, which has as many rows or more, with both
    /// categories as a vocabulary file shows them.
    pub(crate) fn first_difference(&self, longer: &Self) -> Option<(u64, [String; 2])> {
        let mut keys = (0..).zip(self.keys().zip(longer.keys()));
        let (row, (mine, theirs)) = keys.find(|(_, (mine, theirs))| mine != theirs)?;
        let text = |key: Key<'_>| {
            let mut text = String::new();
            key.write(&mut text);
            text
        };
        Some((row, [text(mine), text(theirs)]))
    }

    /// Writes the text of the vocabulary in pieces, one line per row in row order: category, tab, count. The first
    /// line, of category `\*`, stands for all others. Categories are escaped: `\\`, `\t`, `\n`, `\r`, and `\xNN` for
    /// control characters and bytes that are not UTF-8.
    ///
    /// # Errors
    /// The first error of `put`.
    pub fn to_tsv<E>(&self, mut put: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut text = String::with_capacity(PIECE_BYTES + 1024);
        for (key, count) in self.keys().zip(&self.counts) {
            key.write(&mut text);
            text.push('\t');
            text.push_str(&count.to_string());
            text.push('\n');
            if text.len() >= PIECE_BYTES {
                put(text.as_bytes())?;
                text.clear();
            }
        }
        put(text.as_bytes())
    }

    /// Writes the index of the vocabulary in pieces. Its bytes depend on the categories and their order only.
    ///
    /// Takes 12 to 24 bytes of memory per category.
    ///
    /// # Errors
    /// The first error of `put`.
    pub(crate) fn to_index<E>(&self, put: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        index::write(self, CompactTable::NUMBER_MAX, put)
    }

    /// Parses the output of [`Vocabulary::to_tsv`]; `text` may be arbitrary bytes.
    ///
    /// # Errors
    /// A description of what is wrong, with the line.
    pub fn from_tsv(text: &[u8]) -> Result<Self, Malformed> {
        let mut vocabulary = Self::without_rows();
        let text = text.strip_suffix(b"\n").ok_or("it does not end with a line feed")?;
        let mut bytes = Vec::new();
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let refuse = |what: &str| Malformed::from(format!("line {}: {what}", number + 1));
            let tab = memchr::memrchr(b'\t', line).ok_or_else(|| refuse("no tab before the count"))?;
            let (key, count) = (&line[..tab], &line[tab + 1..]);
            let count = std::str::from_utf8(count).ok().and_then(|count| count.parse().ok());
            let count = count.ok_or_else(|| refuse("no count after the tab"))?;
            if number == 0 {
                if key != OUT_OF_VOCABULARY_TEXT {
                    return Err(refuse(
                        "the first row must be \\*, which stands for all categories not listed",
                    ));
                }
                vocabulary.push_others(count);
                continue;
            }
            bytes.clear();
            unescape(key, &mut bytes).map_err(|escape| refuse(&escape.what))?;
            let fresh = match ShortKey::new(&bytes) {
                Some(key) => vocabulary.append_short(key, count),
                None => vocabulary.append_long(bytes.as_slice().into(), count),
            };
            if !fresh {
                return Err(refuse("the category is listed twice"));
            }
        }
        Ok(vocabulary)
    }
}

#[cfg(test)]
mod tests;
