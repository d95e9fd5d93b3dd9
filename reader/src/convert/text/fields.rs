//! The fields of a line of CSV, quoted or not.

use std::borrow::Cow;

use crate::convert::text::quoting::closing_quote;

/// How a line is divided into fields.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldRules {
    pub(crate) delimiter: u8,
    pub(crate) quote: bool,
    pub(crate) trim: bool,
}

impl FieldRules {
    /// Returns whether a line is split at every delimiter without trimming its fields.
    pub(crate) fn is_plain(self, line: &[u8]) -> bool {
        !(self.trim || self.quote && memchr::memchr(b'"', line).is_some())
    }

    /// Returns all fields of a line; `None` if a quoted one is not closed or has text after its closing quote.
    pub(crate) fn all(self, line: &[u8]) -> Option<Vec<Cow<'_, [u8]>>> {
        Fields::new(line, self).collect()
    }
}

/// The fields of any line. `None` is a field that is not closed or has text after its closing quote; it is the last.
pub(crate) struct Fields<'l> {
    /// The rest of the line; `None` after the last field.
    rest: Option<&'l [u8]>,
    rules: FieldRules,
}

impl<'l> Fields<'l> {
    pub(crate) fn new(line: &'l [u8], rules: FieldRules) -> Self {
        Self { rest: Some(line), rules }
    }
}

impl<'l> Iterator for Fields<'l> {
    type Item = Option<Cow<'l, [u8]>>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.take()?;
        let FieldRules { delimiter, quote, trim } = self.rules;
        let blank = |byte: u8| (byte == b' ' || byte == b'\t') && byte != delimiter;
        let start = match trim {
            true => rest.iter().position(|&byte| !blank(byte)).unwrap_or(rest.len()),
            false => 0,
        };
        if quote && rest.get(start) == Some(&b'"') {
            let Some(closing) = closing_quote(rest, start + 1) else { return Some(None) };
            let after = &rest[closing + 1..];
            let blanks = match trim {
                true => after.iter().position(|&byte| !blank(byte)).unwrap_or(after.len()),
                false => 0,
            };
            match after.get(blanks) {
                None => {}
                Some(&byte) if byte == delimiter => self.rest = Some(&after[blanks + 1..]),
                Some(_) => return Some(None),
            }
            return Some(Some(without_doubled_quotes(&rest[start + 1..closing])));
        }
        let end = memchr::memchr(delimiter, rest);
        self.rest = end.map(|end| &rest[end + 1..]);
        let mut field = &rest[start.min(end.unwrap_or(rest.len()))..end.unwrap_or(rest.len())];
        while let ([kept @ .., last], true) = (field, trim) {
            if !blank(*last) {
                break;
            }
            field = kept;
        }
        Some(Some(Cow::Borrowed(field)))
    }
}

fn without_doubled_quotes(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'"', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'"', rest) {
        out.extend_from_slice(&rest[..=at]);
        // The second quote of the pair.
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    Cow::Owned(out)
}

/// The fields of a line that is split at every delimiter. Delimiters are found eight bytes at a time: most fields of
/// click logs are that short.
pub(crate) struct Plain<'l> {
    line: &'l [u8],
    /// The start of the next field; past the end of the line after the last field.
    start: usize,
    /// The start of the current word.
    word_at: usize,
    /// The top bit of each byte of the word that is a delimiter and was not returned yet.
    found: u64,
    pattern: u64,
}

const LOW_BITS: u64 = u64::from_ne_bytes([0x7f; 8]);

impl<'l> Plain<'l> {
    pub(crate) fn new(line: &'l [u8], delimiter: u8) -> Self {
        let pattern = u64::from_ne_bytes([delimiter; 8]);
        let mut plain = Self { line, start: 0, word_at: 0, found: 0, pattern };
        plain.look();
        plain
    }

    /// Loads the word at `word_at` and finds its delimiters.
    #[inline]
    fn look(&mut self) {
        let rest = self.line.get(self.word_at..).unwrap_or_default();
        let word = match rest.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => {
                // The bytes that pad the line's end are not delimiters.
                let mut word = (!self.pattern).to_le_bytes();
                word[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(word)
            }
        };
        // A byte of `differs` is 0 at a delimiter. Adding 127 to its low bits carries into its top bit for any other
        // value, and never beyond.
        let differs = word ^ self.pattern;
        self.found = !(((differs & LOW_BITS) + LOW_BITS) | differs | LOW_BITS);
    }
}

impl<'l> Iterator for Plain<'l> {
    type Item = &'l [u8];

    #[inline]
    fn next(&mut self) -> Option<&'l [u8]> {
        while self.found == 0 {
            self.word_at += 8;
            if self.word_at >= self.line.len() {
                let last = self.line.get(self.start..);
                self.start = self.line.len() + 1;
                return last;
            }
            self.look();
        }
        let end = self.word_at + (self.found.trailing_zeros() / 8) as usize;
        self.found &= self.found - 1;
        let field = &self.line[self.start..end];
        self.start = end + 1;
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn plain_fields_are_the_text_between_delimiters(
            line in prop::collection::vec(prop::sample::select(&b",,ab\x2b\x2d\xac\xff\0"[..]), 0..60),
            delimiter in prop::sample::select(&b",\0a"[..]),
        ) {
            let fields: Vec<_> = Plain::new(&line, delimiter).collect();
            prop_assert_eq!(fields, line.split(|&byte| byte == delimiter).collect::<Vec<_>>());
        }
    }
}
