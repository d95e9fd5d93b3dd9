//! Raw rows in memory, column by column, for a model in the caller's process.

mod error;

use std::ops::Range;

use rankine_base::nearest::did_you_mean;

use crate::convert::BAG_MAX;
use crate::convert::formats::criteo;
use crate::convert::number;
use crate::convert::rows::source::largest_raw_number;
use crate::convert::rows::value_type::{ValueType, ValueUse};
use crate::convert::rows::{RawBags, RawCategories, RawRows, RawValues, UnequalColumn};
use crate::origin::{CategorySource, ColumnSources, LabelRule, LabelSource, RowFormat};
use crate::schema::{Categorical, Dense, Hotness, Label, Schema, VocabularyKind};

pub use error::RawColumnError;

/// Whether raw rows have labels, and weights if the schema has a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawLabels {
    /// Their columns may be there, and are not read.
    Ignored,
    /// Their columns must be there, and are read as those of a file are.
    Needed,
}

/// A raw column of some rows, as a file of raw rows would have it.
#[derive(Debug, Clone, Copy)]
pub struct RawColumn<'a> {
    /// The name, as in the files that the dataset was converted from; Criteo's are `I1` to `I13` and `C1` to `C26`.
    pub name: &'a str,
    /// The values of all rows.
    pub values: RawColumnValues<'a>,
    /// For categorical columns whose rows have any number of values: row `i` has the values from `offsets[i]` to
    /// `offsets[i + 1]`. `None`: one value per row.
    pub offsets: Option<&'a [u32]>,
}

/// The values of a raw column.
#[derive(Debug, Clone, Copy)]
pub enum RawColumnValues<'a> {
    /// Numbers; NaN where a number is missing.
    Numbers(&'a [f64]),
    /// Integers: numbers, or categories, which are the same as their decimal digits as text.
    Integers(&'a [i64]),
    /// Texts: categories, or numbers in decimal. A model of Parquet rows refuses texts as numbers. An empty text is a
    /// missing number, and a category of its own.
    Texts(&'a [&'a str]),
    /// Exact values of a type, such as decimals or dates: numbers, or categories; `None` is a missing number, and the
    /// empty category, or with offsets no category.
    Exact(ValueType, &'a [Option<i128>]),
}

impl RawRows {
    /// Appends rows by columns: in any order, but each exactly once. Each value is read as a file's would be.
    ///
    /// # Errors
    /// [`RawColumnError`]; the rows are then unchanged.
    pub fn append_columns(&mut self, columns: &RawColumns<'_>) -> Result<(), RawColumnError> {
        let before = self.len();
        let appended = columns.append_to(self);
        if appended.is_err() {
            self.truncate(before);
        }
        appended
    }
}

/// Checks that each column is one of those that are known, and given once.
///
/// # Errors
/// [`RawColumnError::Unknown`] and [`RawColumnError::Twice`].
pub fn check_column_names<'a>(
    known: &[&str],
    given: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), RawColumnError> {
    for (number, name) in given.clone().enumerate() {
        if !known.contains(&name) {
            let hint = did_you_mean(name, known.iter().copied());
            return Err(RawColumnError::Unknown { name: name.to_owned(), hint });
        }
        if given.clone().take(number).any(|earlier| earlier == name) {
            return Err(RawColumnError::Twice { name: name.to_owned() });
        }
    }
    Ok(())
}

impl RowFormat {
    /// Returns the raw columns that a schema's columns come from; those of formats without names have the names of the
    /// schema.
    pub fn sources(&self, schema: &Schema) -> ColumnSources {
        match self {
            Self::Csv(csv) => csv.sources.clone(),
            Self::Parquet(sources) => sources.clone(),
            Self::CriteoTsv | Self::HugectrRaw(_) => {
                let category = |column: &Categorical| CategorySource {
                    column: column.name.clone(),
                    separator: None,
                    weights: None,
                };
                let label = |label: &Label| LabelSource {
                    column: label.name.clone(),
                    rule: LabelRule::Binary,
                    mask_missing: false,
                };
                ColumnSources {
                    labels: schema.labels.iter().map(label).collect(),
                    weight: schema.weight.clone(),
                    dense: schema.dense.iter().map(|column| column.name.clone()).collect(),
                    categorical: schema.stored_categorical().iter().map(category).collect(),
                }
            }
        }
    }
}

/// The columns of some raw rows.
#[derive(Debug, Clone, Copy)]
pub struct RawColumns<'a> {
    /// The columns of the model.
    pub schema: &'a Schema,
    /// The format of the rows of the model's dataset.
    pub format: &'a RowFormat,
    /// Whether labels are read.
    pub labels: RawLabels,
    /// Number of rows.
    pub rows: usize,
    /// The columns.
    pub columns: &'a [RawColumn<'a>],
}

impl RawColumns<'_> {
    fn append_to(&self, raw: &mut RawRows) -> Result<(), RawColumnError> {
        let Self { schema, rows, .. } = *self;
        let sources = self.format.sources(schema);
        let known: Vec<_> = sources.columns().collect();
        check_column_names(&known, self.columns.iter().map(|column| column.name))?;
        for (number, (name, column)) in sources.dense.iter().zip(&schema.dense).enumerate() {
            self.append_numbers(self.find(name, &sources)?, column, &mut raw.dense[number])?;
        }
        for (number, (source, column)) in sources.categorical.iter().zip(&schema.categorical).enumerate() {
            let to = CategoriesOf {
                column,
                source,
                // Rules for ids out of range apply to records.
                rows: match (self.format, column.rows) {
                    (RowFormat::HugectrRaw(_), _) | (_, None) => u64::MAX,
                    (_, Some(rows)) => rows,
                },
                hexadecimal: self.is_criteo(),
                trim: matches!(self.format, RowFormat::Csv(csv) if csv.trim),
                is_sequence: schema.sequence_of(&column.name).is_some(),
            };
            let categories = &mut raw.categories[number];
            to.append(self.find(&source.column, &sources)?, rows, categories)?;
            if let Some(weights) = &source.weights {
                to.append_weights(self.find(weights, &sources)?, rows, categories)?;
            }
        }
        let first = raw.len();
        for row in 0..rows {
            if let Some(UnequalColumn { column, found, of, expected }) = raw.unequal_column(first + row) {
                let [column, of] = [column, of].map(|number| sources.categorical[number].column.clone());
                return Err(RawColumnError::SequenceLength { column, row, of, expected, found });
            }
        }
        match self.labels {
            RawLabels::Ignored => {
                raw.labels.iter_mut().for_each(|labels| labels.resize(labels.len() + rows, f32::NAN));
                let weights = if schema.weight.is_some() { rows } else { 0 };
                raw.weights.resize(raw.weights.len() + weights, 1.0);
            }
            RawLabels::Needed => {
                for (number, source) in sources.labels.iter().enumerate() {
                    self.append_labels(
                        self.find(&source.column, &sources)?,
                        source,
                        &mut raw.labels[number],
                    )?;
                }
                if let Some(name) = &sources.weight {
                    self.append_weights(self.find(name, &sources)?, &mut raw.weights)?;
                }
            }
        }
        raw.end_rows(rows);
        Ok(())
    }

    fn is_criteo(&self) -> bool {
        *self.format == RowFormat::CriteoTsv
    }

    fn find(&self, name: &str, sources: &ColumnSources) -> Result<&RawColumn<'_>, RawColumnError> {
        self.columns.iter().find(|column| column.name == name).ok_or_else(|| {
            let known: Vec<_> = sources.columns().collect();
            let unused = self.columns.iter().map(|column| column.name).filter(|name| !known.contains(name));
            RawColumnError::Missing { name: name.to_owned(), hint: did_you_mean(name, unused) }
        })
    }

    fn append_numbers(
        &self,
        raw: &RawColumn<'_>,
        column: &Dense,
        to: &mut Vec<f64>,
    ) -> Result<(), RawColumnError> {
        let transform = column.transform;
        let largest =
            largest_raw_number(transform.function, transform.standardizes(), self.schema.dense_dtype);
        // Criteo's numbers are integers of 64 bits.
        let criteo = self.is_criteo();
        let admits =
            |number: f64| number.is_nan() || number.abs() <= largest && (!criteo || number.fract() == 0.0);
        let expected = || match criteo {
            true => "a 64-bit integer".into(),
            false => format!("a number of at most {:e}", largest as f32),
        };
        self.append_one_each(raw, ValueUse::Number, expected, to, |row| {
            let number = match raw.values {
                RawColumnValues::Numbers(numbers) => Some(numbers[row]),
                RawColumnValues::Integers(integers) => Some(integers[row] as f64),
                RawColumnValues::Exact(values, exact) => Some(number_of(values, exact[row])),
                RawColumnValues::Texts(texts) if criteo => criteo::parse_number(texts[row].as_bytes()),
                RawColumnValues::Texts(texts) if texts[row].is_empty() => Some(f64::NAN),
                RawColumnValues::Texts(texts) => number::parse(texts[row].as_bytes()),
            };
            number.filter(|number| admits(*number))
        })
    }

    fn append_labels(
        &self,
        raw: &RawColumn<'_>,
        LabelSource { rule, mask_missing, .. }: &LabelSource,
        to: &mut Vec<f32>,
    ) -> Result<(), RawColumnError> {
        let missing = mask_missing.then_some(f32::NAN);
        let number = |number: f64| if number.is_nan() { missing } else { rule.of_number(number) };
        let wanted = match rule {
            LabelRule::EqualsText(_) => ValueUse::Text,
            LabelRule::Binary | LabelRule::AtLeast(_) | LabelRule::EqualsNumber(_) => ValueUse::Number,
        };
        self.append_one_each(
            raw,
            wanted,
            || format!("a label: it must be {}", rule.admits()),
            to,
            |row| match (raw.values, rule) {
                (RawColumnValues::Exact(_, exact), _) if exact[row].is_none() => missing,
                (RawColumnValues::Exact(values, exact), LabelRule::EqualsText(text)) => {
                    Some(f32::from(u8::from(text_of(values, exact[row]) == *text)))
                }
                (RawColumnValues::Exact(values, exact), _) => number(number_of(values, exact[row])),
                (RawColumnValues::Texts(texts), _) if texts[row].is_empty() => missing,
                (RawColumnValues::Texts(texts), LabelRule::EqualsText(text)) => {
                    Some(f32::from(u8::from(texts[row] == text)))
                }
                (RawColumnValues::Texts(texts), _) => number::parse(texts[row].as_bytes()).and_then(number),
                (RawColumnValues::Integers(integers), LabelRule::EqualsText(text)) => {
                    Some(f32::from(u8::from(integers[row].to_string() == *text)))
                }
                (RawColumnValues::Integers(integers), _) => number(integers[row] as f64),
                (RawColumnValues::Numbers(numbers), _) => number(numbers[row]),
            },
        )
    }

    fn append_weights(&self, raw: &RawColumn<'_>, to: &mut Vec<f32>) -> Result<(), RawColumnError> {
        self.append_one_each(
            raw,
            ValueUse::Number,
            || number::WEIGHT.into(),
            to,
            |row| raw.values.number(row).and_then(number::weight),
        )
    }

    /// Appends the value of each row; `value` returns `None` for one that is not `expected`.
    fn append_one_each<T>(
        &self,
        raw: &RawColumn<'_>,
        wanted: ValueUse,
        expected: impl Fn() -> String,
        to: &mut Vec<T>,
        value: impl Fn(usize) -> Option<T>,
    ) -> Result<(), RawColumnError> {
        let column = || raw.name.to_owned();
        if raw.offsets.is_some() {
            let (found, expected) = ("several values per row".to_owned(), "one value per row");
            return Err(RawColumnError::Type { column: column(), found, expected });
        }
        let values = raw.values.value_type();
        // Files of text have no types.
        if matches!(self.format, RowFormat::Parquet(_)) && !values.fits(wanted) {
            let (found, expected) = (values.describe().to_owned(), wanted.expects());
            return Err(RawColumnError::Type { column: column(), found, expected });
        }
        let found = raw.values.len();
        if found != self.rows {
            return Err(RawColumnError::Rows { column: column(), expected: self.rows, found });
        }
        for row in 0..self.rows {
            let shown = || raw.values.text(row);
            to.push(value(row).ok_or_else(|| RawColumnError::Value {
                column: column(),
                row,
                value: shown(),
                expected: expected(),
            })?);
        }
        Ok(())
    }
}

/// How the categories of a column are appended.
struct CategoriesOf<'a> {
    column: &'a Categorical,
    source: &'a CategorySource,
    /// Row numbers must be below this.
    rows: u64,
    /// Whether texts must be hexadecimal, as Criteo's are.
    hexadecimal: bool,
    /// Whether white space around a category is removed after its row is divided at separators.
    trim: bool,
    /// Whether a null of a list is an error, since later categories would be at other positions.
    is_sequence: bool,
}

/// Returns where the values of a row are.
fn values_of(raw: &RawColumn<'_>, row: usize) -> Range<usize> {
    raw.offsets.map_or(row..row + 1, |offsets| offsets[row] as usize..offsets[row + 1] as usize)
}

impl CategoriesOf<'_> {
    /// Checks that a column has as many rows, divided by valid offsets.
    fn check_rows(raw: &RawColumn<'_>, rows: usize) -> Result<(), RawColumnError> {
        let values = raw.values.len();
        let found = raw.offsets.map_or(values, |offsets| offsets.len().saturating_sub(1));
        if found != rows {
            return Err(RawColumnError::Rows { column: raw.name.to_owned(), expected: rows, found });
        }
        if let Some(offsets) = raw.offsets
            && !(offsets.first() == Some(&0) && offsets.is_sorted() && offsets[rows] as usize == values)
        {
            return Err(RawColumnError::Offsets { column: raw.name.to_owned(), values });
        }
        Ok(())
    }

    /// Returns the text between separators.
    fn parts<'t>(&self, text: &'t str, separator: &'t str) -> impl Iterator<Item = &'t str> {
        let is_space = |char: char| self.trim && char.is_ascii_whitespace();
        text.split(separator).filter(|_| !text.is_empty()).map(move |part| part.trim_matches(is_space))
    }

    fn append(&self, raw: &RawColumn<'_>, rows: usize, to: &mut RawCategories) -> Result<(), RawColumnError> {
        Self::check_rows(raw, rows)?;
        let separator = self.source.separator.as_deref().filter(|_| raw.offsets.is_none());
        for row in 0..rows {
            let mut count = 0;
            match (separator, raw.values) {
                (Some(separator), RawColumnValues::Texts(texts)) => {
                    for category in self.parts(texts[row], separator) {
                        self.push(raw, row, category, to)?;
                        count += 1;
                    }
                }
                _ => {
                    for at in values_of(raw, row) {
                        match raw.is_null_in_list(at) {
                            true if self.is_sequence => {
                                return Err(RawColumnError::null_in_sequence(raw.name, row));
                            }
                            true => continue,
                            false => self.push_value(raw, (row, at), to)?,
                        }
                        count += 1;
                    }
                }
            }
            let admitted = match self.column.hotness {
                Hotness::Fixed(expected) => count == expected as usize,
                Hotness::Ragged { .. } => count <= BAG_MAX as usize,
            };
            if !admitted {
                let expected = match self.column.hotness {
                    Hotness::Fixed(expected) => format!("{expected}, as in training"),
                    Hotness::Ragged { .. } => format!("at most {BAG_MAX}"),
                };
                let column = raw.name.to_owned();
                return Err(RawColumnError::BagSize { column, row, expected, found: count });
            }
            to.end_bag();
        }
        Ok(())
    }

    /// Appends the weights of the categories of the last `rows` rows.
    fn append_weights(
        &self,
        raw: &RawColumn<'_>,
        rows: usize,
        to: &mut RawCategories,
    ) -> Result<(), RawColumnError> {
        Self::check_rows(raw, rows)?;
        let RawBags::Ends(ends) = &to.bags else {
            let (found, expected) =
                ("weights".to_owned(), "bags of any number of categories, which can have weights");
            return Err(RawColumnError::Type { column: raw.name.to_owned(), found, expected });
        };
        let separator = self.source.separator.as_deref().filter(|_| raw.offsets.is_none());
        for (row, &end) in ends[ends.len() - rows..].iter().enumerate() {
            let before = to.weights.len();
            let mut push = |weight: Option<f64>, value: &dyn Fn() -> String| {
                let weight = weight.and_then(number::weight).ok_or_else(|| RawColumnError::Value {
                    column: raw.name.to_owned(),
                    row,
                    value: value(),
                    expected: number::WEIGHT.into(),
                })?;
                to.weights.push(weight);
                Ok(())
            };
            match (separator, raw.values) {
                (Some(separator), RawColumnValues::Texts(texts)) => {
                    for weight in self.parts(texts[row], separator) {
                        push(number::parse(weight.as_bytes()), &|| format!("{weight:?}"))?;
                    }
                }
                (_, RawColumnValues::Texts(_)) => {
                    let (found, expected) = (raw.values.value_type().describe().to_owned(), "numbers");
                    return Err(RawColumnError::Type { column: raw.name.to_owned(), found, expected });
                }
                _ => {
                    for at in values_of(raw, row) {
                        let shown = || match raw.is_null_in_list(at) {
                            true => "null".into(),
                            false => raw.values.text(at),
                        };
                        push(raw.values.number(at), &shown)?;
                    }
                }
            }
            let (expected, found) = (end as usize - before, to.weights.len() - before);
            if found != expected {
                let (column, of) = (raw.name.to_owned(), self.source.column.clone());
                return Err(RawColumnError::WeightCount { column, row, of, expected, found });
            }
        }
        Ok(())
    }

    fn push_value(
        &self,
        raw: &RawColumn<'_>,
        (row, at): (usize, usize),
        to: &mut RawCategories,
    ) -> Result<(), RawColumnError> {
        match raw.values {
            RawColumnValues::Texts(texts) => self.push(raw, row, texts[at], to),
            RawColumnValues::Integers(integers) => match &mut to.values {
                RawValues::Keys(keys) if !self.hexadecimal => {
                    keys.push(integers[at].to_string().as_bytes());
                    Ok(())
                }
                RawValues::Rows(ids) => match u64::try_from(integers[at]) {
                    Ok(id) if id < self.rows => {
                        ids.push(id);
                        Ok(())
                    }
                    _ => Err(self.not_a_category(raw, row, integers[at].to_string())),
                },
                RawValues::Keys(_) => Err(self.wrong_type(raw, "integers")),
            },
            RawColumnValues::Exact(values, exact) if !self.hexadecimal && values.fits(ValueUse::Category) => {
                self.push(raw, row, &text_of(values, exact[at]), to)
            }
            RawColumnValues::Exact(..) | RawColumnValues::Numbers(_) => {
                Err(self.wrong_type(raw, raw.values.value_type().describe()))
            }
        }
    }

    fn push(
        &self,
        raw: &RawColumn<'_>,
        row: usize,
        category: &str,
        to: &mut RawCategories,
    ) -> Result<(), RawColumnError> {
        let bytes = category.as_bytes();
        match &mut to.values {
            RawValues::Keys(keys) if !self.hexadecimal || criteo::is_category(bytes) => keys.push(bytes),
            RawValues::Rows(ids) => match number::parse_row(bytes, self.rows) {
                Some(id) => ids.push(id),
                None => return Err(self.not_a_category(raw, row, format!("{category:?}"))),
            },
            RawValues::Keys(_) => return Err(self.not_a_category(raw, row, format!("{category:?}"))),
        }
        Ok(())
    }

    fn wrong_type(&self, raw: &RawColumn<'_>, found: &str) -> RawColumnError {
        let expected =
            if self.hexadecimal { "strings of hexadecimal digits" } else { ValueUse::Category.expects() };
        RawColumnError::Type { column: raw.name.to_owned(), found: found.to_owned(), expected }
    }

    fn not_a_category(&self, raw: &RawColumn<'_>, row: usize, value: String) -> RawColumnError {
        let expected = match self.column.vocabulary {
            VocabularyKind::Identity | VocabularyKind::Buckets { .. } => {
                format!("the number of one of its table's {} rows", self.column.rows.unwrap_or(self.rows))
            }
            VocabularyKind::Exact { .. } | VocabularyKind::Hash | VocabularyKind::Open => {
                format!("a category of at most {} hexadecimal digits", criteo::HEX_DIGITS_MAX)
            }
        };
        RawColumnError::Value { column: raw.name.to_owned(), row, value, expected }
    }
}

/// Returns the number of an exact value; NaN if it is missing.
fn number_of(values: ValueType, exact: Option<i128>) -> f64 {
    exact.map_or(f64::NAN, |exact| values.number(exact))
}

/// Returns the text of an exact value; empty if it is missing.
fn text_of(values: ValueType, exact: Option<i128>) -> String {
    let mut text = Vec::new();
    exact.inspect(|&exact| values.write_text(exact, &mut text));
    String::from_utf8(text).expect("texts of exact values are ASCII")
}

impl RawColumn<'_> {
    /// Returns whether a value is a null of a list, which is no category.
    fn is_null_in_list(&self, at: usize) -> bool {
        let is_null = |exact: &[Option<i128>]| exact[at].is_none();
        self.offsets.is_some() && matches!(self.values, RawColumnValues::Exact(_, exact) if is_null(exact))
    }
}

impl RawColumnValues<'_> {
    /// Returns a number; NaN if it is missing, and `None` for a text that is none.
    fn number(&self, at: usize) -> Option<f64> {
        match *self {
            Self::Numbers(numbers) => Some(numbers[at]),
            Self::Integers(integers) => Some(integers[at] as f64),
            Self::Exact(values, exact) => Some(number_of(values, exact[at])),
            Self::Texts(texts) => number::parse(texts[at].as_bytes()),
        }
    }

    fn value_type(&self) -> ValueType {
        match self {
            Self::Numbers(_) => ValueType::Float,
            Self::Integers(_) => ValueType::Integer,
            Self::Texts(_) => ValueType::Text,
            Self::Exact(values, _) => *values,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Numbers(values) => values.len(),
            Self::Integers(values) => values.len(),
            Self::Texts(values) => values.len(),
            Self::Exact(_, values) => values.len(),
        }
    }

    fn text(&self, row: usize) -> String {
        match self {
            Self::Numbers(values) => values[row].to_string(),
            Self::Integers(values) => values[row].to_string(),
            Self::Texts(values) => format!("{:?}", values[row]),
            Self::Exact(values, exact) => text_of(*values, exact[row]),
        }
    }
}
