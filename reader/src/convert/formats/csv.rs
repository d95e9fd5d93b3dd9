//! CSV: lines of named columns. A schema's columns are found by name. Fields may be quoted (RFC 4180).

use std::borrow::Cow;
use std::sync::Arc;

use memchr::memmem::Finder;
use rankine_base::error::{Error, Result};
use rankine_base::escape::excerpt;
use rankine_base::nearest::{no_column, quoted};

use crate::convert::BAG_MAX;
use crate::convert::number;
use crate::convert::rows::fault::{BadReason, Fault};
use crate::convert::rows::kept::KeptTexts;
use crate::convert::rows::source::{NamedTarget, RequiredColumns};
use crate::convert::rows::{RawRows, RawValues};
use crate::convert::text::lines::{Limits, LineRules, Source};
use crate::convert::text::quoting::{Quoting, closing_quote};
use crate::convert::text::{LineParser, TextSource};
use crate::origin::{ColumnSources, CsvFormat, LabelRule};
use crate::schema::{Hotness, Schema, VocabularyKind};

/// A parser for the lines of one file.
#[derive(Debug)]
struct CsvParser {
    /// All columns of the file.
    names: Vec<String>,
    fields: FieldRules,
    line_bytes_max: usize,
    /// The targets of each field; a field may be used more than once.
    targets: Vec<Vec<Target>>,
    /// The numbers of the labels that the file lacks.
    labels_absent: Vec<usize>,
    /// Whether the schema has a weight but the file does not.
    weight_absent: bool,
}

#[derive(Debug)]
enum Target {
    Label { number: usize, rule: LabelRule, may_be_missing: bool },
    Weight,
    Dense { number: usize, largest: f64 },
    Keys { number: usize, separator: Option<Finder<'static>> },
    Rows { number: usize, rows: u64, separator: Option<Finder<'static>> },
}

/// How a line is divided into fields.
#[derive(Debug, Clone, Copy)]
struct FieldRules {
    delimiter: u8,
    quote: bool,
    trim: bool,
}

/// A column that a file lacks.
#[derive(Debug)]
pub(crate) struct MissingColumn {
    /// Its name.
    pub(crate) column: String,
    /// The file, its existing columns, and a suggestion.
    pub(crate) why: String,
}

/// Opens files of CSV. `refuse` turns a missing column into an error.
///
/// # Errors
/// [`Error::Io`]; [`Error::Setting`] or [`Error::Columns`] for an impossible format; [`Error::Unsuitable`] for a
/// file without a header; the errors of `refuse`.
pub(crate) fn csv_source(
    format: &CsvFormat,
    target: NamedTarget<'_>,
    files: Vec<Source>,
    limits: Limits,
    refuse: impl Fn(MissingColumn) -> Error,
) -> Result<TextSource> {
    check(format, target.schema)?;
    let fields = FieldRules { delimiter: format.delimiter as u8, quote: format.quote, trim: format.trim };
    let quoting = Quoting { delimiter: fields.delimiter, trim: fields.trim };
    let rules = LineRules {
        quoting: fields.quote.then_some(quoting),
        header: format.columns.is_none(),
        byte_order_mark: true,
    };
    let mut parsers: Vec<Arc<CsvParser>> = Vec::with_capacity(files.len());
    for file in &files {
        let names = column_names(format, file, rules, fields, limits, target.needed)?;
        let same = parsers.last().filter(|last| last.names == names).map(Arc::clone);
        parsers.push(match same {
            Some(same) => same,
            None => {
                let parser = CsvParser::new(format, target, names, fields, limits);
                let lacking = |what: MissingColumn| {
                    let why = format!("{}{}", file.path.display(), what.why);
                    refuse(MissingColumn { why, ..what })
                };
                Arc::new(parser.map_err(lacking)?)
            }
        });
    }
    Ok(TextSource {
        files,
        parsers: parsers.into_iter().map(|parser| parser as Arc<dyn LineParser>).collect(),
        kept: Vec::new(),
        split: None,
        rules,
        limits,
        expects: "CSV as the schema file's [format] describes it (delimiter, header, quotes)".into(),
        quarantine_name: "quarantine.csv",
    })
}

/// Returns the fields of a file's first line.
///
/// # Errors
/// [`Error::Io`]; [`Error::Setting`] for an impossible delimiter; [`Error::Unsuitable`] if the file is empty;
/// [`Error::TooLarge`] if the line is.
pub(crate) fn first_fields(file: &Source, delimiter: char, trim: bool) -> Result<Vec<String>> {
    check_delimiter(delimiter)?;
    let fields = FieldRules { delimiter: delimiter as u8, quote: true, trim };
    let quoting = Some(Quoting { delimiter: fields.delimiter, trim });
    let rules = LineRules { quoting, header: false, byte_order_mark: true };
    let empty = || Error::unsuitable(&file.path, format!("{} is empty", file.path.display()));
    let line = file.first_row(rules, Limits::default())?.ok_or_else(empty)?;
    let fields = Fields::new(&line, fields).map_while(|field| field);
    Ok(fields.map(|field| String::from_utf8_lossy(&field).into_owned()).collect())
}

fn check_delimiter(delimiter: char) -> Result<()> {
    if !delimiter.is_ascii() || matches!(delimiter, '"' | '\n' | '\r') {
        return Err(Error::setting("delimiter", format!("{delimiter:?} cannot separate fields of CSV")));
    }
    Ok(())
}

/// Checks a format, which may come from an untrusted file.
fn check(format: &CsvFormat, schema: &Schema) -> Result<()> {
    let categorical = &format.sources.categorical;
    let one_or_ragged =
        |(source, column): (&crate::convert::CategorySource, &crate::schema::Categorical)| match (
            &source.separator,
            column.hotness,
        ) {
            (None, hotness) => hotness == Hotness::Fixed(1),
            (Some(separator), Hotness::Ragged { .. }) => !separator.is_empty(),
            (Some(_), Hotness::Fixed(_)) => false,
        };
    check_delimiter(format.delimiter)?;
    if !format.sources.fits(schema) || !categorical.iter().zip(&schema.categorical).all(one_or_ragged) {
        return Err(Error::columns(None, "the CSV format does not match the columns of the schema"));
    }
    Ok(())
}

/// Returns the names of a file's columns.
fn column_names(
    format: &CsvFormat,
    file: &Source,
    rules: LineRules,
    fields: FieldRules,
    limits: Limits,
    needed: RequiredColumns,
) -> Result<Vec<String>> {
    let first = || file.first_row(rules, limits);
    let Some(columns) = &format.columns else {
        let header = first()?.ok_or_else(|| {
            let what = format!(
                "{} is empty: expected a first line that names the columns (without a header, set header = false in \
                 [format])",
                file.path.display()
            );
            Error::unsuitable(&file.path, what)
        })?;
        let Some(names) = fields.all(&header) else {
            let what = format!(
                "the first line of {}, which names its columns, has a quote that is not closed, or text \
                 after a closing quote",
                file.path.display()
            );
            return Err(Error::unsuitable(&file.path, what));
        };
        return Ok(names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect());
    };
    if needed == RequiredColumns::Features {
        let sources = &format.sources;
        let targets: Vec<&String> =
            sources.labels.iter().map(|label| &label.column).chain(&sources.weight).collect();
        let features = columns.iter().filter(|&name| !targets.contains(&name));
        let first = first()?;
        let count = first.as_ref().and_then(|line| fields.all(line)).map(|fields| fields.len());
        if count == Some(features.clone().count()) {
            return Ok(features.cloned().collect());
        }
    }
    Ok(columns.clone())
}

/// Returns whether the first line of a file, which should name its columns, may be a data row. Numbers are rarely
/// column names, and a header has at least one of the needed columns.
fn looks_like_a_row(names: &[String], sources: &ColumnSources) -> bool {
    names.iter().any(|name| number::parse(name.as_bytes()).is_some())
        || !sources.columns().any(|column| names.iter().any(|name| name == column))
}

impl CsvParser {
    /// # Errors
    /// Fails with the first needed column that the file lacks or has twice; the message is appended to the file's
    /// name.
    fn new(
        format: &CsvFormat,
        named: NamedTarget<'_>,
        names: Vec<String>,
        fields: FieldRules,
        limits: Limits,
    ) -> std::result::Result<Self, MissingColumn> {
        let NamedTarget { schema, needed, .. } = named;
        let find = |column: &String| -> std::result::Result<Option<usize>, MissingColumn> {
            let mut matches = (0..names.len()).filter(|&field| names[field] == *column);
            let first = matches.next();
            if let (Some(_), Some(second)) = (first, matches.next()) {
                let column_named = quoted(column);
                let why =
                    format!(" has two columns named {column_named}; the second is field {}", second + 1);
                return Err(MissingColumn { column: column.clone(), why });
            }
            Ok(first)
        };
        let lacks = |column: &String| {
            let used = |name: &str| format.sources.columns().any(|column| column == name);
            let mut why = format!(" {}", no_column(column, "", &names, used));
            if format.columns.is_none() && looks_like_a_row(&names, &format.sources) {
                why += ". If the file has no header and its first line is a row, write header = false and \
                        columns = [...] in [format]";
            }
            MissingColumn { column: column.clone(), why }
        };
        let feature = |column: &String| find(column)?.ok_or_else(|| lacks(column));
        let target = |column: &String| match find(column)? {
            None if needed == RequiredColumns::All => Err(lacks(column)),
            field => Ok(field),
        };

        let mut targets: Vec<Vec<Target>> = names.iter().map(|_| Vec::new()).collect();
        let mut labels_absent = Vec::new();
        for (number, label) in format.sources.labels.iter().enumerate() {
            let may_be_missing = label.mask_missing || needed == RequiredColumns::Features;
            match target(&label.column)? {
                Some(field) => {
                    let rule = label.rule.clone();
                    targets[field].push(Target::Label { number, rule, may_be_missing });
                }
                None => labels_absent.push(number),
            }
        }
        let mut weight_absent = false;
        if let Some(column) = &format.sources.weight {
            match target(column)? {
                Some(field) => targets[field].push(Target::Weight),
                None => weight_absent = true,
            }
        }
        for (number, column) in format.sources.dense.iter().enumerate() {
            let largest = named.largest_number(number);
            targets[feature(column)?].push(Target::Dense { number, largest });
        }
        for (number, source) in format.sources.categorical.iter().enumerate() {
            let (column, separator) = (&schema.categorical[number], source.separator.as_ref());
            let separator = separator.map(|separator| Finder::new(separator).into_owned());
            let target = match column.vocabulary {
                VocabularyKind::Exact { .. } | VocabularyKind::Hash => Target::Keys { number, separator },
                VocabularyKind::Identity | VocabularyKind::Buckets { .. } => {
                    Target::Rows { number, rows: column.rows, separator }
                }
            };
            targets[feature(&source.column)?].push(target);
        }
        let line_bytes_max = limits.line_bytes_max;
        Ok(Self { names, fields, line_bytes_max, targets, labels_absent, weight_absent })
    }

    /// Appends a row, or the part before its first fault.
    #[inline]
    fn push_fields<F: AsRef<[u8]>>(
        &self,
        line: &[u8],
        mut fields: impl Iterator<Item = Option<F>>,
        rows: &mut RawRows,
    ) -> Result<(), Fault> {
        let fault = |reason, field| Err(Fault { reason, field });
        for (number, targets) in self.targets.iter().enumerate() {
            let Some(field) = fields.next() else { return fault(BadReason::FieldCount, None) };
            let Some(field) = field else { return fault(BadReason::Quote, None) };
            for target in targets {
                if let Err(reason) = self.push_field(target, field.as_ref(), rows) {
                    return match self.fields.all(line) {
                        None => fault(BadReason::Quote, None),
                        Some(all) if all.len() != self.targets.len() => fault(BadReason::FieldCount, None),
                        Some(_) => fault(reason, Some(number as u32)),
                    };
                }
            }
        }
        match fields.next() {
            None => Ok(()),
            Some(_) if self.fields.all(line).is_none() => fault(BadReason::Quote, None),
            Some(_) => fault(BadReason::FieldCount, None),
        }
    }

    #[inline(always)]
    fn push_field(&self, target: &Target, field: &[u8], rows: &mut RawRows) -> Result<(), BadReason> {
        match target {
            Target::Label { number, rule, may_be_missing } => {
                let label = match rule {
                    _ if field.is_empty() => may_be_missing.then_some(f32::NAN),
                    LabelRule::EqualsText(text) => Some(f32::from(u8::from(field == text.as_bytes()))),
                    LabelRule::Binary if matches!(field, b"0" | b"1") => Some(f32::from(field[0] - b'0')),
                    rule => number::parse(field).and_then(|number| rule.of_number(number)),
                };
                rows.labels[*number].push(label.ok_or(BadReason::Label)?);
            }
            Target::Weight => {
                let weight = number::parse(field).and_then(number::weight);
                rows.weights.push(weight.ok_or(BadReason::Weight)?);
            }
            Target::Dense { number, largest } => {
                let value = match field.is_empty() {
                    true => Some(f64::NAN),
                    false => number::parse(field).filter(|value| value.abs() <= *largest),
                };
                rows.dense[*number].push(value.ok_or(BadReason::Number)?);
            }
            Target::Keys { number, separator } => {
                let column = &mut rows.categories[*number];
                let RawValues::Keys(keys) = &mut column.values else {
                    unreachable!("rows are created for the schema of the parser")
                };
                match separator {
                    None => keys.push(field),
                    Some(separator) => {
                        self.each_category(field, separator, |category| {
                            keys.push(category);
                            Ok(())
                        })?;
                        column.end_bag();
                    }
                }
            }
            Target::Rows { number, rows: below, separator } => {
                let column = &mut rows.categories[*number];
                let RawValues::Rows(ids) = &mut column.values else {
                    unreachable!("rows are created for the schema of the parser")
                };
                let mut push = |category: &[u8]| {
                    ids.push(number::parse_row(category, *below).ok_or(BadReason::RowNumber)?);
                    Ok(())
                };
                match separator {
                    None => push(field)?,
                    Some(separator) => {
                        self.each_category(field, separator, push)?;
                        column.end_bag();
                    }
                }
            }
        }
        Ok(())
    }

    /// Calls `take` with each category of a field.
    fn each_category(
        &self,
        field: &[u8],
        separator: &Finder<'static>,
        mut push: impl FnMut(&[u8]) -> Result<(), BadReason>,
    ) -> Result<(), BadReason> {
        if field.is_empty() {
            return Ok(());
        }
        let mut from = 0;
        for (count, end) in (0..).zip(separator.find_iter(field).chain(std::iter::once(field.len()))) {
            if count == BAG_MAX {
                return Err(BadReason::Bag);
            }
            let category = &field[from..end];
            push(if self.fields.trim { category.trim_ascii() } else { category })?;
            from = end + separator.needle().len();
        }
        Ok(())
    }
}

impl LineParser for CsvParser {
    fn push(&self, line: &[u8], rows: &mut RawRows) -> Result<(), Fault> {
        if line.len() > self.line_bytes_max {
            return Err(Fault { reason: BadReason::LineTooLong, field: None });
        }
        let before = rows.len();
        self.labels_absent.iter().for_each(|&label| rows.labels[label].push(f32::NAN));
        if self.weight_absent {
            rows.weights.push(1.0);
        }
        let pushed = match self.fields.is_plain(line) {
            true => {
                let fields = Plain::new(line, self.fields.delimiter);
                self.push_fields(line, fields.map(Some), rows)
            }
            false => self.push_fields(line, Fields::new(line, self.fields), rows),
        };
        match pushed {
            Ok(()) => rows.end_rows(1),
            Err(_) => rows.truncate(before),
        }
        pushed
    }

    fn names(&self) -> &[String] {
        &self.names
    }

    fn copy_fields(&self, line: &[u8], fields: &[usize], out: &mut KeptTexts) {
        let all = self.fields.all(line).unwrap_or_default();
        fields.iter().for_each(|&field| out.push(all.get(field).map_or(b"", |text| text)));
    }

    fn field<'l>(&self, line: &'l [u8], field: usize) -> Cow<'l, [u8]> {
        let text = match self.fields.is_plain(line) {
            true => Plain::new(line, self.fields.delimiter).nth(field).map(Cow::Borrowed),
            false => Fields::new(line, self.fields).nth(field).flatten(),
        };
        text.unwrap_or_default()
    }

    fn describe(&self, fault: Fault, line: &[u8]) -> String {
        let fields = self.fields.all(line).unwrap_or_default();
        let field = fault.field.and_then(|field| fields.get(field as usize));
        let shown = excerpt(field.map_or(line, |field| field));
        let targets = || {
            let own = fault.field.and_then(|field| self.targets.get(field as usize));
            own.into_iter().flatten()
        };
        match fault.reason {
            BadReason::LineTooLong => {
                format!("the row is longer than {} bytes; it starts with {shown}", self.line_bytes_max)
            }
            BadReason::FieldCount => {
                let (have, want) = (fields.len(), self.names.len());
                format!("expected {want} fields, found {have}, in {shown}")
            }
            BadReason::Quote => format!("a quote is not closed, or text follows a closing quote, in {shown}"),
            BadReason::Label => {
                let rule = targets().find_map(|target| match target {
                    Target::Label { rule, .. } => Some(rule),
                    _ => None,
                });
                format!("{shown} is not a label: it must be {}", rule.map_or("0 or 1", LabelRule::admits))
            }
            BadReason::Weight => format!("{shown} is not {}", number::WEIGHT),
            BadReason::Number => {
                let least = targets().filter_map(|target| match target {
                    Target::Dense { largest, .. } => Some(*largest),
                    _ => None,
                });
                match least.fold(f64::MAX, f64::min) {
                    largest if largest < f64::from(f32::MAX) => format!(
                        "{shown} is not a number that f16 can store: it must be empty or within {largest} of 0; \
                         --dense-dtype f32 or a transform allows larger ones"
                    ),
                    _ => format!("{shown} is not a number: it must be empty or within 3.4e38 of 0"),
                }
            }
            BadReason::RowNumber => {
                let rows = targets().filter_map(|target| match target {
                    Target::Rows { rows, .. } => Some(*rows),
                    _ => None,
                });
                format!("{shown} is not a row number below {}", rows.min().unwrap_or_default())
            }
            BadReason::Bag => format!("more than {BAG_MAX} categories in {shown}"),
            BadReason::Category => format!("{shown} is not a category"),
            BadReason::Split => unreachable!("the source describes it"),
        }
    }
}

impl FieldRules {
    /// Returns whether a line is split at every delimiter without trimming its fields.
    fn is_plain(self, line: &[u8]) -> bool {
        !(self.trim || self.quote && memchr::memchr(b'"', line).is_some())
    }

    /// Returns all fields of a line; `None` if a quoted one is not closed or has text after its closing quote.
    fn all(self, line: &[u8]) -> Option<Vec<Cow<'_, [u8]>>> {
        Fields::new(line, self).collect()
    }
}

/// The fields of any line. `None` is a field that is not closed or has text after its closing quote; it is the last.
struct Fields<'l> {
    /// The rest of the line; `None` after the last field.
    rest: Option<&'l [u8]>,
    rules: FieldRules,
}

impl<'l> Fields<'l> {
    fn new(line: &'l [u8], rules: FieldRules) -> Self {
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
struct Plain<'l> {
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
    fn new(line: &'l [u8], delimiter: u8) -> Self {
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
