//! CSV: lines of named columns. A schema's columns are found by name. Fields may be quoted (RFC 4180).

use std::borrow::Cow;
use std::sync::Arc;

use memchr::memmem::Finder;
use rankine_base::error::{Error, Result};
use rankine_base::escape::excerpt;
use rankine_base::nearest::{no_column, quoted};

use crate::convert::BAG_MAX;
use crate::convert::number;
use crate::convert::rows::fault::{BadReason, Fault, unequal_lengths};
use crate::convert::rows::kept::KeptTexts;
use crate::convert::rows::source::{NamedTarget, RequiredColumns};
use crate::convert::rows::weights::{WeightedColumn, count_parts, wrong_weight};
use crate::convert::rows::{RawRows, RawValues};
use crate::convert::text::fields::{FieldRules, Fields, Plain};
use crate::convert::text::lines::{Limits, LineRules, Source};
use crate::convert::text::quoting::Quoting;
use crate::convert::text::{LineParser, TextSource};
use crate::origin::{CategorySource, ColumnSources, CsvFormat, LabelRule};
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
    /// The categorical columns with weights, and the fields of these.
    weighted: Vec<WeightedColumn<Finder<'static>>>,
    /// The columns of each sequence.
    sequences: Vec<Vec<SequenceColumn>>,
    /// The numbers of the labels that the file lacks.
    labels_absent: Vec<usize>,
    /// Whether the schema has a weight but the file does not.
    weight_absent: bool,
}

#[derive(Debug)]
enum Target {
    Label {
        number: usize,
        rule: LabelRule,
        may_be_missing: bool,
    },
    Weight,
    Dense {
        number: usize,
        largest: f64,
    },
    Keys {
        number: usize,
        separator: Option<Finder<'static>>,
    },
    Rows {
        number: usize,
        rows: u64,
        separator: Option<Finder<'static>>,
    },
    /// The weights of a column's categories.
    Weights {
        number: usize,
        separator: Finder<'static>,
    },
}

/// A column of a sequence.
#[derive(Debug)]
struct SequenceColumn {
    number: usize,
    /// The field of its categories, and its name.
    field: usize,
    name: String,
    separator: Finder<'static>,
}

impl SequenceColumn {
    /// Returns the columns of each sequence of a schema; `fields` has the field of each categorical column.
    fn all(schema: &Schema, sources: &ColumnSources, fields: &[usize]) -> Vec<Vec<Self>> {
        let column = |&number: &usize| {
            let CategorySource { column, separator, .. } = &sources.categorical[number];
            let separator = Finder::new(separator.as_ref()?).into_owned();
            Some(Self { number, field: fields[number], name: column.clone(), separator })
        };
        let columns_of = |columns: &Vec<usize>| columns.iter().filter_map(column).collect();
        schema.columns_of_sequences().iter().map(columns_of).collect()
    }
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
    let one_or_ragged = |(source, column): (&CategorySource, &crate::schema::Categorical)| match (
        &source.separator,
        column.hotness,
    ) {
        (None, hotness) => hotness == Hotness::Fixed(1) && source.weights.is_none(),
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
        let (mut weighted, mut fields_of_categories) = (Vec::new(), Vec::new());
        for (number, source) in format.sources.categorical.iter().enumerate() {
            let (column, separator) = (&schema.categorical[number], source.separator.as_ref());
            let separator = separator.map(|separator| Finder::new(separator).into_owned());
            let of = feature(&source.column)?;
            fields_of_categories.push(of);
            if let (Some(weights), Some(separator)) = (&source.weights, &separator) {
                let (field, name, separator) = (feature(weights)?, column.name.clone(), separator.clone());
                targets[field].push(Target::Weights { number, separator: separator.clone() });
                weighted.push(WeightedColumn { number, name, weights: field, categories: of, separator });
            }
            let target = match column.vocabulary {
                VocabularyKind::Identity | VocabularyKind::Buckets { .. } => {
                    Target::Rows { number, rows: column.rows.unwrap_or(0), separator }
                }
                _ => Target::Keys { number, separator },
            };
            targets[of].push(target);
        }
        let Limits { line_bytes_max, .. } = limits;
        let sequences = SequenceColumn::all(schema, &format.sources, &fields_of_categories);
        Ok(Self { names, fields, line_bytes_max, targets, weighted, sequences, labels_absent, weight_absent })
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
            None => match self.weighted.iter().find(|of| !rows.categories[of.number].is_weighted()) {
                None => match rows.unequal_column(rows.len()) {
                    None => Ok(()),
                    Some(unequal) => {
                        let mut columns = self.sequences.iter().flatten();
                        let own = columns.find(|own| own.number == unequal.column);
                        fault(BadReason::SequenceLength, own.map(|own| own.field as u32))
                    }
                },
                Some(of) => fault(BadReason::WeightCount, Some(of.weights as u32)),
            },
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
                let weight = number::parse_weight(field);
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
            Target::Weights { number, separator } => {
                let weights = &mut rows.categories[*number].weights;
                self.each_category(field, separator, |weight| {
                    weights.push(number::parse_weight(weight).ok_or(BadReason::BagWeight)?);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Returns the first part of a field that is not a weight.
    fn wrong_weight(&self, field: Option<u32>, fields: &[Cow<'_, [u8]>]) -> Option<String> {
        let text = fields.get(field? as usize)?;
        let mut columns = WeightedColumn::with_weights_in(&self.weighted, field.map(|field| field as usize));
        columns.find_map(|column| wrong_weight(|take| self.each_category(text, &column.separator, take)))
    }

    /// Returns the number of categories, or weights, in a field.
    fn count(&self, field: usize, fields: &[Cow<'_, [u8]>], separator: &Finder<'static>) -> usize {
        let text = fields.get(field).map_or(&b""[..], |text| text);
        count_parts(|take| self.each_category(text, separator, take))
    }

    /// Describes a row in which a column of a sequence, in `field`, has another number of categories than the first.
    fn describe_sequence(&self, field: Option<u32>, fields: &[Cow<'_, [u8]>]) -> String {
        let count = |column: &SequenceColumn| self.count(column.field, fields, &column.separator);
        let mut pairs = self.sequences.iter().filter_map(|columns| columns.split_first());
        let differs = pairs.find_map(|(of, others)| {
            let own = others.iter().find(|own| Some(own.field as u32) == field && count(own) != count(of))?;
            Some(unequal_lengths((count(own), count(of)), &of.name))
        });
        differs.unwrap_or_default()
    }

    /// Describes a row with another number of weights, which are in `field`, than of categories.
    fn describe_weight_count(&self, field: Option<u32>, fields: &[Cow<'_, [u8]>]) -> String {
        let count = |field: usize, separator: &Finder<'static>| self.count(field, fields, separator);
        let mut columns = WeightedColumn::with_weights_in(&self.weighted, field.map(|field| field as usize));
        columns.find_map(|column| column.describe_count(count)).unwrap_or_default()
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
            BadReason::BagWeight => {
                let wrong = self.wrong_weight(fault.field, &fields);
                format!("{} is not {}", wrong.unwrap_or(shown), number::WEIGHT)
            }
            BadReason::WeightCount => self.describe_weight_count(fault.field, &fields),
            BadReason::SequenceLength => self.describe_sequence(fault.field, &fields),
            BadReason::Split => unreachable!("the source describes it"),
        }
    }
}
