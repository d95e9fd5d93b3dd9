//! What the values of a raw column look like, in the rows that were read.

use std::collections::{HashMap, HashSet};

use xxhash_rust::xxh3::xxh3_64;

use crate::convert::number;
use crate::convert::rows::raw_type::{RawColumnType, RawType};

/// Texts that may separate the categories of a field.
pub(super) const SEPARATORS: [&str; 4] = ["|", ";", ",", " "];
/// Whole numbers from here on may be rounded.
pub(super) const WHOLE_MAX: f64 = 1e15;
/// Distinct values of which the texts are kept.
const TEXTS_KEPT: usize = 32;
/// Longer texts are not kept.
const TEXT_BYTES_MAX: usize = 200;
/// Distinct pieces of a field are counted up to this number.
const PIECES_MAX: usize = 1 << 16;

/// Counts over the values of one column.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) column: RawColumnType,
    pub(super) rows: u64,
    /// Rows without a value.
    pub(super) empty: u64,
    /// The values that are numbers, in the order of the rows.
    pub(super) numbers: Vec<f64>,
    /// Values that are whole numbers below [`WHOLE_MAX`].
    pub(super) whole: u64,
    /// Values that begin like a date.
    pub(super) dates: u64,
    /// Values in brackets.
    pub(super) bracketed: u64,
    /// How often each distinct value occurs, by its hash.
    counts: HashMap<u64, u32>,
    /// The texts of the first distinct values.
    texts: Vec<Box<[u8]>>,
    /// One entry per separator.
    pub(super) pieces: [Pieces; SEPARATORS.len()],
    /// Categories in the lists of a list column.
    pub(super) listed: u64,
}

/// The pieces of fields that contain a separator.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// Fields that contain it.
    pub(super) fields: u64,
    /// Pieces that are empty, or begin or end with white space.
    pub(super) odd: u64,
    distinct: HashSet<u64>,
}

impl Pieces {
    /// Returns the number of distinct pieces; `None` if there are too many.
    pub(super) fn distinct(&self) -> Option<usize> {
        Some(self.distinct.len()).filter(|&count| count < PIECES_MAX)
    }
}

impl Observed {
    pub(super) fn new(column: RawColumnType) -> Self {
        Self {
            column,
            rows: 0,
            empty: 0,
            numbers: Vec::new(),
            whole: 0,
            dates: 0,
            bracketed: 0,
            counts: HashMap::new(),
            texts: Vec::new(),
            pieces: Default::default(),
            listed: 0,
        }
    }

    /// Adds the value of a row, which is empty if the row has none.
    pub(super) fn add(&mut self, text: &[u8]) {
        self.rows += 1;
        if text.is_empty() {
            self.empty += 1;
            return;
        }
        self.count(text);
        let number = match text {
            // Booleans of Parquet.
            b"true" if self.column.values == RawType::Number => Some(1.0),
            b"false" if self.column.values == RawType::Number => Some(0.0),
            text if self.column.values != RawType::Text => number::parse(text),
            _ => None,
        };
        if let Some(number) = number {
            self.numbers.push(number);
            self.whole += u64::from(number.fract() == 0.0 && number.abs() < WHOLE_MAX);
            return;
        }
        self.dates += u64::from(is_date(text));
        self.bracketed += u64::from(matches!(text, [b'[', .., b']'] | [b'{', .., b'}'] | [b'(', .., b')']));
        for (separator, pieces) in SEPARATORS.iter().zip(&mut self.pieces) {
            pieces.add(text, separator);
        }
    }

    /// Adds the list of a row, given the number of its categories. They are counted by [`Observed::count`].
    pub(super) fn add_list(&mut self, categories: u64) {
        self.rows += 1;
        self.empty += u64::from(categories == 0);
        self.listed += categories;
    }

    /// Counts an occurrence of a value.
    pub(super) fn count(&mut self, text: &[u8]) {
        let known = self.counts.len();
        *self.counts.entry(xxh3_64(text)).or_default() += 1;
        if self.counts.len() > known && self.texts.len() < TEXTS_KEPT && text.len() <= TEXT_BYTES_MAX {
            self.texts.push(text.into());
        }
    }

    /// Rows with a value.
    pub(super) fn values(&self) -> u64 {
        self.rows - self.empty
    }

    /// Distinct values, or distinct categories of a list column.
    pub(super) fn distinct(&self) -> u64 {
        self.counts.len() as u64
    }

    /// Distinct values that occur once.
    pub(super) fn once(&self) -> u64 {
        self.counts.values().filter(|&&count| count == 1).count() as u64
    }

    /// Returns the first distinct values with their counts, most frequent first.
    pub(super) fn frequent(&self) -> Vec<(&[u8], u32)> {
        let mut found: Vec<_> =
            self.texts.iter().map(|text| (&**text, self.counts[&xxh3_64(text)])).collect();
        found.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        found
    }

    /// Whether all values are numbers.
    pub(super) fn is_numeric(&self) -> bool {
        !self.numbers.is_empty() && self.numbers.len() as u64 == self.values()
    }
}

impl Pieces {
    fn add(&mut self, text: &[u8], separator: &str) {
        let separated = memchr::memmem::find(text, separator.as_bytes()).is_some();
        self.fields += u64::from(separated);
        let mut from = 0;
        let ends = memchr::memmem::find_iter(text, separator).chain(std::iter::once(text.len()));
        for end in ends {
            let piece = &text[from..end];
            from = end + separator.len();
            self.odd += u64::from(separated && (piece.is_empty() || piece.trim_ascii() != piece));
            if self.distinct.len() < PIECES_MAX {
                self.distinct.insert(xxh3_64(piece));
            }
        }
    }
}

/// Whether a text begins like `2024-01-31`, `31.01.2024`, `1/31/2024` or `01-Jan-1995`.
fn is_date(text: &[u8]) -> bool {
    let end = text.iter().position(|byte| matches!(byte, b' ' | b'T')).unwrap_or(text.len());
    let mut parts = text[..end].split(|byte| matches!(byte, b'-' | b'/' | b'.'));
    let (Some(first), Some(middle), Some(last), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let digits =
        |part: &[u8], lengths: &[usize]| lengths.contains(&part.len()) && part.iter().all(u8::is_ascii_digit);
    let month = digits(middle, &[1, 2]) || middle.len() == 3 && middle.iter().all(u8::is_ascii_alphabetic);
    month && (digits(first, &[4]) && digits(last, &[1, 2]) || digits(first, &[1, 2]) && digits(last, &[2, 4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_recognized() {
        for date in ["2024-01-31", "2024-01-31T10:00:00Z", "31.1.2024 10:00", "1/31/24", "01-Jan-1995"] {
            assert!(is_date(date.as_bytes()), "{date}");
        }
        for other in ["", "10.0.0.1", "1.5", "2024", "a-b-c", "555-12-12345", "one-two-three"] {
            assert!(!is_date(other.as_bytes()), "{other}");
        }
    }
}
