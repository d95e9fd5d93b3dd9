//! Criteo's TSV: parses a line into a label, numbers and categories, or returns why it is bad.

use std::borrow::Cow;

use rankine_base::error::{Error, Result};
use rankine_base::escape::excerpt;

use crate::convert::number;
use crate::convert::rows::fault::{BadReason, Fault};
use crate::convert::rows::kept::KeptTexts;
use crate::convert::rows::{RawCategories, RawRows, RawValues};
use crate::convert::text::LineParser;
use crate::key::compact::CompactKey;
use crate::schema::{Hotness, Schema, VocabularyKind};

/// The maximum length of a category in hexadecimal digits.
pub(in crate::convert) const HEX_DIGITS_MAX: usize = 16;

/// The admitted categories of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CategoryRule {
    /// Empty, or up to 16 hexadecimal digits.
    Hex,
    /// Decimal digits of a number below `rows`.
    Row { rows: u64 },
}

/// A parser of lines with a schema's columns: label, numbers and categories, separated by tabs.
#[derive(Debug, Clone)]
pub(crate) struct CriteoParser {
    /// The names of label, numbers and categories.
    names: Vec<String>,
    dense_columns: usize,
    rules: Vec<CategoryRule>,
    line_bytes_max: usize,
    /// Whether lines have a label; otherwise they start with the numbers.
    labelled: bool,
}

impl CriteoParser {
    /// Creates a parser of rows with a schema's columns: its one label (unless lines are not `labelled`), its dense
    /// columns, its categorical columns.
    ///
    /// # Errors
    /// [`Error::Columns`] if the schema has more labels, weights, or bags of other than one category.
    pub(crate) fn new(schema: &Schema, labelled: bool, line_bytes_max: usize) -> Result<Self> {
        let one_hot = schema.categorical.iter().all(|column| column.hotness == Hotness::Fixed(1));
        if schema.labels.len() != 1 || schema.weight.is_some() || !one_hot {
            return Err(Error::columns(
                None,
                "Criteo's rows have one label, no weight and one category per column; this schema differs",
            ));
        }
        let rules = schema.categorical.iter().map(|column| match column.vocabulary {
            VocabularyKind::Identity | VocabularyKind::Buckets { .. } => {
                CategoryRule::Row { rows: column.rows.unwrap_or(0) }
            }
            VocabularyKind::Exact { .. } | VocabularyKind::Hash | VocabularyKind::Open => CategoryRule::Hex,
        });
        Ok(Self {
            names: schema.names().skip(usize::from(!labelled)).map(str::to_owned).collect(),
            dense_columns: schema.dense.len(),
            rules: rules.collect(),
            line_bytes_max,
            labelled,
        })
    }

    /// Returns whether the first line of a file has one field fewer than rows with a label have.
    pub(crate) fn lacks_label(schema: &Schema, line: &[u8]) -> bool {
        fields(line).count() + 1 == schema.names().count()
    }

    /// Returns the number of the first field after the label.
    fn first_dense(&self) -> usize {
        usize::from(self.labelled)
    }

    /// Appends a row of the usual form in one pass over its bytes. Returns `None`, with parts of a row appended, for
    /// all other rows; [`CriteoParser::push_general`] then decides.
    #[inline]
    fn push_fast(&self, line: &[u8], rows: &mut RawRows) -> Option<()> {
        let labels = rows.labels.first_mut()?;
        let mut rest = match (self.labelled, line) {
            (true, [digit @ (b'0' | b'1'), b'\t', rest @ ..]) => {
                labels.push(f32::from(digit - b'0'));
                rest
            }
            (true, _) => return None,
            (false, _) => {
                labels.push(f32::NAN);
                line
            }
        };
        for values in &mut rows.dense {
            let (value, after) = split_usual_number(rest)?;
            values.push(value);
            rest = after;
        }
        let (last, columns) = rows.categories.split_last_mut()?;
        let (last_rule, rules) = self.rules.split_last()?;
        for (column, rule) in columns.iter_mut().zip(rules) {
            if let (RawValues::Keys(keys), Some((&[first @ .., b'\t'], after))) =
                (&mut column.values, rest.split_first_chunk::<9>())
                && let Some(key) = CompactKey::of_eight(first)
            {
                keys.compact.push(key);
                rest = after;
            } else if let (RawValues::Keys(keys), [b'\t', after @ ..]) = (&mut column.values, rest) {
                keys.compact.push(CompactKey::EMPTY);
                rest = after;
            } else {
                let (category, after) = split_field(rest)?;
                push_category(*rule, category, column)?;
                rest = after;
            }
        }
        let eight = <[u8; 8]>::try_from(rest).ok();
        match (&mut last.values, eight.and_then(CompactKey::of_eight)) {
            (RawValues::Keys(keys), Some(key)) => keys.compact.push(key),
            _ if memchr::memchr(b'\t', rest).is_some() => return None,
            _ => push_category(*last_rule, rest, last)?,
        }
        rows.end_rows(1);
        Some(())
    }

    /// Appends any row; this defines what a valid row is.
    #[cold]
    fn push_general(&self, line: &[u8], rows: &mut RawRows) -> Result<(), Fault> {
        let fault = |reason, field| Err(Fault { reason, field });
        if line.len() > self.line_bytes_max {
            return fault(BadReason::LineTooLong, None);
        }
        if fields(line).count() != self.names.len() {
            return fault(BadReason::FieldCount, None);
        }
        let before = rows.len();
        let first_dense = self.first_dense();
        if !self.labelled {
            rows.labels[0].push(f32::NAN);
        }
        for (number, field) in fields(line).enumerate() {
            let (accepted, reason) = if number < first_dense {
                let label = f32::from(u8::from(field == b"1"));
                let label = matches!(field, b"0" | b"1").then(|| rows.labels[0].push(label));
                (label, BadReason::Label)
            } else if number - first_dense < self.dense_columns {
                let value = parse_number(field);
                (value.map(|value| rows.dense[number - first_dense].push(value)), BadReason::Number)
            } else {
                let column = number - first_dense - self.dense_columns;
                let reason = match self.rules[column] {
                    CategoryRule::Hex => BadReason::Category,
                    CategoryRule::Row { .. } => BadReason::RowNumber,
                };
                (push_category(self.rules[column], field, &mut rows.categories[column]), reason)
            };
            if accepted.is_none() {
                rows.truncate(before);
                return fault(reason, Some(number as u32));
            }
        }
        rows.end_rows(1);
        Ok(())
    }
}

impl LineParser for CriteoParser {
    #[inline]
    fn push(&self, line: &[u8], rows: &mut RawRows) -> Result<(), Fault> {
        let before = rows.len();
        if line.len() <= self.line_bytes_max && self.push_fast(line, rows).is_some() {
            return Ok(());
        }
        rows.truncate(before);
        self.push_general(line, rows)
    }

    fn names(&self) -> &[String] {
        &self.names
    }

    fn copy_fields(&self, line: &[u8], kept: &[usize], out: &mut KeptTexts) {
        let all: Vec<_> = fields(line).collect();
        kept.iter().for_each(|&field| out.push(all.get(field).copied().unwrap_or_default()));
    }

    fn field<'l>(&self, line: &'l [u8], field: usize) -> Cow<'l, [u8]> {
        Cow::Borrowed(fields(line).nth(field).unwrap_or_default())
    }

    fn describe(&self, fault: Fault, line: &[u8]) -> String {
        let field = fault.field.map(|field| field as usize);
        let shown = excerpt(field.and_then(|field| fields(line).nth(field)).unwrap_or(line));
        let column = |field: usize| {
            field.checked_sub(self.first_dense() + self.dense_columns).map(|column| self.rules[column])
        };
        match fault.reason {
            BadReason::LineTooLong => {
                format!("the line is longer than {} bytes; it starts with {shown}", self.line_bytes_max)
            }
            BadReason::FieldCount => format!(
                "expected {} fields ({}{} numbers and {} categories, separated by tabs), found {}, in {shown}",
                self.names.len(),
                if self.labelled { "a label, " } else { "" },
                self.dense_columns,
                self.rules.len(),
                fields(line).count()
            ),
            BadReason::Label => format!("{shown} is not a label: it must be 0 or 1"),
            BadReason::Number => format!("{shown} is not a 64-bit integer (may be empty)"),
            BadReason::Category => {
                format!("{shown} is not a category: up to {HEX_DIGITS_MAX} hexadecimal digits (may be empty)")
            }
            BadReason::RowNumber => match field.and_then(column) {
                Some(CategoryRule::Row { rows }) => format!("{shown} is not a row number below {rows}"),
                _ => format!("{shown} is not a row number"),
            },
            BadReason::Quote
            | BadReason::Weight
            | BadReason::Bag
            | BadReason::BagWeight
            | BadReason::WeightCount
            | BadReason::SequenceLength => {
                unreachable!("Criteo's rows have no quotes, weights or bags")
            }
            BadReason::Split => unreachable!("the source describes it"),
        }
    }
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b'\t')
}

/// Returns the field before the first tab and the bytes after the tab.
fn split_field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let tab = line.iter().position(|&byte| byte == b'\t')?;
    Some((&line[..tab], &line[tab + 1..]))
}

/// Parses a number of up to 18 digits, which cannot overflow; returns it with the bytes after its tab.
#[inline]
fn split_usual_number(line: &[u8]) -> Option<(f64, &[u8])> {
    match line.first_chunk().and_then(|first| digits_before_tab(*first)) {
        Some((value, digits)) => {
            Some((if digits > 0 { f64::from(value) } else { f64::NAN }, &line[digits + 1..]))
        }
        None => split_long_number(line),
    }
}

/// Returns the number of up to seven digits before a tab, and how many these are. All bytes are looked at at once:
/// lengths of numbers are as good as random, so a loop over the digits would end with a mispredicted branch.
#[inline]
fn digits_before_tab(bytes: [u8; 8]) -> Option<(u32, usize)> {
    const fn each(byte: u8) -> u64 {
        u64::from_ne_bytes([byte; 8])
    }
    // The first byte of the text is the lowest one. Digits become 0 to 9; the top bit of other bytes is set.
    let values = u64::from_le_bytes(bytes) ^ each(b'0');
    let others = (((values & each(0x7f)) + each(0x80 - 10)) | values) & each(0x80);
    let digits = others.trailing_zeros() as usize / 8;
    if bytes.get(digits) != Some(&b'\t') {
        return None;
    }
    // The digits become the highest bytes, after zeros; then pairs, fours and all eight of them are joined.
    let values = values.unbounded_shl(64 - 8 * digits as u32);
    let pairs = (values.wrapping_mul(10 << 8 | 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100 << 16 | 1) >> 16) & 0x0000_ffff_0000_ffff;
    Some((((fours.wrapping_mul(10_000 << 32 | 1)) >> 32) as u32, digits))
}

/// As [`split_usual_number`], for numbers that are negative, have more digits, or come last in their line.
fn split_long_number(line: &[u8]) -> Option<(f64, &[u8])> {
    const DIGITS_MAX: usize = 18;
    let negative = line.first() == Some(&b'-');
    let digits = if negative { &line[1..] } else { line };
    let mut value = 0_i64;
    for (count, &byte) in digits.iter().enumerate().take(DIGITS_MAX + 1) {
        let digit = byte.wrapping_sub(b'0');
        if digit < 10 {
            // The last round is only wasted on a number that is too long, and may wrap.
            value = i64::wrapping_add(i64::wrapping_mul(value, 10), i64::from(digit));
        } else if byte == b'\t' && (count > 0 || !negative) {
            let value = if negative { -value } else { value };
            return Some((if count > 0 { value as f64 } else { f64::NAN }, &digits[count + 1..]));
        } else {
            return None;
        }
    }
    None
}

/// Parses an empty field, which is NaN, or an integer: an optional `-` and digits.
pub(in crate::convert) fn parse_number(field: &[u8]) -> Option<f64> {
    match field {
        [] => Some(f64::NAN),
        [b'+', ..] => None,
        _ => std::str::from_utf8(field).ok()?.parse().ok().map(|value: i64| value as f64),
    }
}

/// Returns whether a field is a category: up to 16 hexadecimal digits.
pub(in crate::convert) fn is_category(field: &[u8]) -> bool {
    field.len() <= HEX_DIGITS_MAX && field.iter().all(u8::is_ascii_hexdigit)
}

/// Appends a category if it follows its column's rule.
fn push_category(rule: CategoryRule, category: &[u8], column: &mut RawCategories) -> Option<()> {
    match (rule, &mut column.values) {
        (CategoryRule::Hex, RawValues::Keys(keys)) => is_category(category).then(|| keys.push(category)),
        (CategoryRule::Row { rows }, RawValues::Rows(ids)) => {
            ids.push(number::parse_row(category, rows)?);
            Some(())
        }
        // The rows were created for another parser.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::LINE_BYTES_MAX;
    use crate::convert::tests::{GOOD_LINE, schema, with_field};
    use proptest::prelude::*;

    fn fault_of(line: &[u8], parser: &CriteoParser) -> Option<(BadReason, Option<u32>, String)> {
        let mut rows = RawRows::new(&schema());
        parser.push(GOOD_LINE.as_bytes(), &mut rows).unwrap();
        let good = format!("{rows:?}");
        let fault = parser.push(line, &mut rows).err()?;
        assert_eq!(format!("{rows:?}"), good, "nothing of a bad row may remain");
        Some((fault.reason, fault.field, parser.describe(fault, line)))
    }

    proptest! {
        #[test]
        fn digits_at_once_are_digits_one_by_one(
            bytes in prop::array::uniform8(prop::sample::select(&b"0123456789999\t\t/:-\x80\xb9\xff"[..])),
        ) {
            let tab = bytes.iter().position(|&byte| byte == b'\t');
            let digits = tab.map(|tab| &bytes[..tab]).filter(|digits| digits.iter().all(u8::is_ascii_digit));
            let value = |digits: &[u8]| digits.iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
            prop_assert_eq!(digits_before_tab(bytes), digits.map(|digits| (value(digits), digits.len())));
        }
    }

    #[test]
    fn every_fault_has_its_name_and_column() {
        let mut schema = schema();
        schema.categorical[25].vocabulary = VocabularyKind::Identity;
        schema.categorical[25].rows = Some(64);
        let parser = CriteoParser::new(&schema, true, 4000).unwrap();
        let good = with_field(GOOD_LINE, 39, "63");
        let parser_hex = CriteoParser::new(&crate::convert::tests::schema(), true, LINE_BYTES_MAX).unwrap();
        assert_eq!(fault_of(GOOD_LINE.as_bytes(), &parser_hex), None);
        let check = |field: u32, value: &str, expected: Option<(BadReason, &str)>| {
            let line = with_field(&good, field as usize, value);
            let mut rows = RawRows::new(&schema);
            let fault = parser.push(line.as_bytes(), &mut rows).err();
            let found = fault.map(|fault| {
                assert_eq!(fault.field, Some(field));
                (fault.reason, parser.describe(fault, line.as_bytes()))
            });
            match (found, expected) {
                (None, None) => {}
                (Some((reason, why)), Some((expected, text))) if reason == expected && why.contains(text) => {
                }
                (found, expected) => panic!("{value:?} in {field}: {found:?}, not {expected:?}"),
            }
        };
        check(0, "2", Some((BadReason::Label, "'2' is not a label")));
        check(0, "", Some((BadReason::Label, "''")));
        check(1, "1.5", Some((BadReason::Number, "'1.5' is not a 64-bit integer")));
        check(1, "-", Some((BadReason::Number, "'-'")));
        check(1, "+1", Some((BadReason::Number, "'+1'")));
        check(1, "9223372036854775808", Some((BadReason::Number, "64-bit integer")));
        check(1, "-9223372036854775808", None);
        check(1, "9223372036854775807", None);
        check(13, "", None);
        check(14, "", None);
        check(14, "0123456789abcdeF", None);
        check(14, "0123456789abcdef0", Some((BadReason::Category, "up to 16")));
        check(14, "68fd1e6g", Some((BadReason::Category, "'68fd1e6g'")));
        check(38, " 8fd1e64", Some((BadReason::Category, "' 8fd1e64'")));
        check(39, "0", None);
        check(39, "64", Some((BadReason::RowNumber, "'64' is not a row number below 64")));
        check(39, "", Some((BadReason::RowNumber, "''")));
        check(39, "+1", Some((BadReason::RowNumber, "'+1'")));
        check(39, "99999999999999999999999", Some((BadReason::RowNumber, "below 64")));
        let (reason, field, why) = fault_of(b"", &parser_hex).unwrap();
        assert_eq!((reason, field), (BadReason::FieldCount, None));
        assert!(why.starts_with("expected 40 fields (") && why.contains("), found 1, in "), "{why}");
        for (line_bytes_max, expected) in [(good.len(), None), (good.len() - 1, Some(BadReason::LineTooLong))]
        {
            let parser = CriteoParser::new(&schema, true, line_bytes_max).unwrap();
            let fault = parser.push(good.as_bytes(), &mut RawRows::new(&schema)).err();
            assert_eq!(fault.map(|fault| fault.reason), expected);
        }
    }

    fn any_field() -> impl Strategy<Value = String> {
        prop_oneof![
            "[0-9a-f]{8}",
            "-?[0-9]{0,20}",
            "[0-9a-fA-F]{0,17}",
            Just(String::new()),
            "[01]",
            "[ -~\t]{0,9}"
        ]
    }

    proptest! {
        /// The fast parser reads exactly what the general parser reads.
        #[test]
        fn both_parsers_agree(
            changes in prop::collection::vec((0..40usize, any_field()), 0..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut line = GOOD_LINE.to_owned();
            for (field, value) in changes {
                line = with_field(&line, field, &value);
            }
            if let Some(cut) = cut {
                line.truncate(cut.index(line.len() + 1));
            }
            let parser = CriteoParser::new(&schema(), true, LINE_BYTES_MAX).unwrap();
            let (mut quick, mut plain) = (RawRows::new(&schema()), RawRows::new(&schema()));
            let verdicts = (parser.push(line.as_bytes(), &mut quick), parser.push_general(line.as_bytes(), &mut plain));
            prop_assert_eq!(verdicts.0, verdicts.1);
            if parser.push_fast(line.as_bytes(), &mut RawRows::new(&schema())).is_some() {
                prop_assert!(verdicts.1.is_ok());
            }
            prop_assert_eq!(format!("{quick:?}"), format!("{plain:?}"));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let parser = CriteoParser::new(&schema(), true, LINE_BYTES_MAX).unwrap();
            let mut rows = RawRows::new(&schema());
            if let Err(fault) = parser.push(&line, &mut rows) {
                prop_assert!(rows.is_empty() && !parser.describe(fault, &line).is_empty());
            }
        }
    }
}
