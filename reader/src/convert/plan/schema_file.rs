//! The schema file: which raw columns become which columns of a dataset, and how. Every error names its position.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde::de::{self, Deserializer};
use toml::Spanned;

use crate::convert::plan::Plan;
use crate::convert::{BAG_MAX, TABLE_ROWS_MAX};
use crate::error::{Error, Result};
use crate::excerpt::Excerpt;
use crate::files::read_text;
use crate::nearest;
use crate::origin::{CategorySource, ColumnSources, CsvFormat, LabelRule, LabelSource, RowFormat};
use crate::schema::{
    Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, Hotness, Label, Pooling, Schema,
    VocabularyKind,
};

/// A schema file, parsed and checked.
#[derive(Debug, Clone)]
pub struct SchemaFile {
    text: Text,
    csv: Option<Spanned<CsvEntry>>,
    sources: ColumnSources,
    draft: Schema,
    /// The names of the dataset's columns.
    names: HashSet<String>,
    /// The numbers of its categorical columns by name.
    numbers: HashMap<String, usize>,
    standardized: Vec<bool>,
    /// The exact columns without a minimum count, in order.
    min_count_open: Vec<usize>,
    /// The spans in which raw columns are named.
    columns: Vec<Spanned<String>>,
}

/// The file's text, for messages that show a position in it.
#[derive(Debug, Clone)]
struct Text {
    name: String,
    text: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: Option<Spanned<CsvEntry>>,
    label: Option<OneOrMany<LabelEntry>>,
    weight: Option<WeightEntry>,
    #[serde(default)]
    dense: Vec<DenseEntry>,
    #[serde(default)]
    categorical: Vec<CategoricalEntry>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CsvEntry {
    delimiter: Option<Spanned<String>>,
    header: Option<bool>,
    columns: Option<Spanned<Vec<String>>>,
    trim: Option<bool>,
    quote: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelEntry {
    column: Spanned<String>,
    name: Option<String>,
    at_least: Option<f64>,
    equals: Option<Spanned<toml::Value>>,
    missing: Option<Missing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Missing {
    Bad,
    Mask,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightEntry {
    column: Spanned<String>,
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DenseEntry {
    column: Spanned<String>,
    name: Option<String>,
    transform: Option<Spanned<Words>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CategoricalEntry {
    column: Spanned<String>,
    name: Option<String>,
    vocabulary: Option<Spanned<VocabularyEntry>>,
    separator: Option<Spanned<String>>,
    pooling: Option<Pooling>,
}

/// The keys of all kinds, so that a key of another kind is reported with its position.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VocabularyEntry {
    kind: Spanned<String>,
    min_count: Option<Spanned<u64>>,
    rows: Option<Spanned<u64>>,
    with: Option<Spanned<String>>,
}

/// One value or a list of values.
#[derive(Debug)]
struct OneOrMany<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one table, or a list of tables")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> std::result::Result<Self::Value, A::Error> {
                let one = T::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(OneOrMany(vec![one]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut many = Vec::new();
                while let Some(one) = list.next_element()? {
                    many.push(one);
                }
                Ok(OneOrMany(many))
            }
        }
        deserializer.deserialize_any(Visitor(PhantomData))
    }
}

/// A word or a list of words, each with its span.
#[derive(Debug)]
enum Words {
    One(String),
    Many(Vec<Spanned<String>>),
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or a list of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Self::Value, E> {
                Ok(Words::One(text.to_owned()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> std::result::Result<Self::Value, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(list)).map(Words::Many)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Text {
    /// Returns an error with the position, the message, and the line with carets below it.
    fn problem(&self, span: Range<usize>, message: impl fmt::Display) -> Error {
        let excerpt = Excerpt::of(&self.text, span);
        Error::Invalid(format!(
            "{}:{}:{}: {message}\n{}",
            self.name,
            excerpt.line,
            excerpt.column,
            excerpt.numbered()
        ))
    }
}

impl SchemaFile {
    /// Loads a schema file.
    ///
    /// # Errors
    /// As [`read_text`]; [`Error::Invalid`] for the first mistake, with its position.
    pub fn load(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        Self::parse(&path.to_string_lossy(), &text)
    }

    /// Parses the text of a schema file that is called `name` in messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the first mistake, with its position.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let text = Text { name: name.to_owned(), text: text.to_owned() };
        let file: File = toml::from_str(&text.text).map_err(|error| {
            text.problem(error.span().unwrap_or(0..0), with_nearest_key(error.message().trim_end()))
        })?;
        let mut made = Self {
            csv: file.format,
            sources: ColumnSources::default(),
            draft: Schema {
                labels: Vec::new(),
                weight: None,
                dense: Vec::new(),
                dense_dtype: DenseDtype::F32,
                categorical: Vec::new(),
            },
            names: HashSet::new(),
            numbers: HashMap::new(),
            standardized: Vec::new(),
            min_count_open: Vec::new(),
            columns: Vec::new(),
            text,
        };
        if let Some(csv) = made.csv.clone() {
            made.check_csv(&csv)?;
        }
        let labels = file.label.map(|labels| labels.0).unwrap_or_default();
        if labels.is_empty() {
            let message = "the schema has no label: add [label] with column = \"...\"";
            return Err(made.text.problem(0..0, message));
        }
        labels.into_iter().try_for_each(|entry| made.add_label(entry))?;
        if let Some(weight) = file.weight {
            made.draft.weight = Some(made.name(weight.name, &weight.column)?);
            made.sources.weight = Some(made.column(weight.column));
        }
        file.dense.into_iter().try_for_each(|entry| made.add_dense(entry))?;
        file.categorical.into_iter().try_for_each(|entry| made.add_categorical(entry))?;
        Ok(made)
    }

    /// Records where a raw column is named.
    fn column(&mut self, column: Spanned<String>) -> String {
        let name = column.get_ref().clone();
        self.columns.push(column);
        name
    }

    /// Returns the name of a dataset's column, which must be unused.
    fn name(&mut self, own: Option<String>, column: &Spanned<String>) -> Result<String> {
        let name = own.unwrap_or_else(|| column.get_ref().clone());
        if !self.names.insert(name.clone()) {
            let message = format!(
                "the name {name:?} is already used: give one of the columns another name, such as name = \"{name}_2\""
            );
            return Err(self.text.problem(column.span(), message));
        }
        if !crate::schema::is_column_name(&name) {
            let message = format!(
                "{name:?} is not a valid file name, as column names must be: no slash, tab or line break, and no dot \
                 at the start; choose another with name = \"...\""
            );
            return Err(self.text.problem(column.span(), message));
        }
        Ok(name)
    }

    fn check_csv(&self, csv: &Spanned<CsvEntry>) -> Result<()> {
        let problem = |span, message: &str| Err(self.text.problem(span, message));
        let entry = csv.get_ref();
        if let Some(delimiter) = &entry.delimiter {
            let text = delimiter.get_ref();
            let quoted = entry.quote != Some(false) && text == "\"";
            if text.len() != 1 || text == "\n" || text == "\r" || quoted || !text.is_ascii() {
                return problem(
                    delimiter.span(),
                    "a delimiter must be one ASCII character, not a line end or a quote: \",\" or \"\\t\", for \
                     example",
                );
            }
        }
        match (entry.header, &entry.columns) {
            (None | Some(true), Some(columns)) => problem(
                columns.span(),
                "columns is for files without a header: add header = false, or remove it",
            ),
            (Some(false), None) => problem(
                csv.span(),
                "files without a header need columns = [\"...\", \"...\"], which names all columns in order",
            ),
            (Some(false), Some(columns)) => {
                let mut seen = HashSet::new();
                match columns.get_ref().iter().find(|&name| !seen.insert(name)) {
                    Some(name) => Err(self.text.problem(columns.span(), format!("{name:?} is listed twice"))),
                    None => Ok(()),
                }
            }
            (None | Some(true), None) => Ok(()),
        }
    }

    fn add_label(&mut self, entry: LabelEntry) -> Result<()> {
        let rule = match (entry.at_least, &entry.equals) {
            (Some(_), Some(equals)) => {
                let message = "at_least and equals cannot be combined: keep one";
                return Err(self.text.problem(equals.span(), message));
            }
            (None, None) => LabelRule::Binary,
            (Some(least), None) if least.is_finite() => LabelRule::AtLeast(least),
            (Some(_), None) => {
                return Err(self.text.problem(entry.column.span(), "at_least must be a finite number"));
            }
            (None, Some(equals)) => match equals.get_ref() {
                toml::Value::String(text) if !text.is_empty() => LabelRule::EqualsText(text.clone()),
                toml::Value::Integer(number) => LabelRule::EqualsNumber(*number as f64),
                toml::Value::Float(number) if number.is_finite() => LabelRule::EqualsNumber(*number),
                _ => {
                    let message = "equals must be a number or the text of the field: \"buy\", for example";
                    return Err(self.text.problem(equals.span(), message));
                }
            },
        };
        let name = self.name(entry.name, &entry.column)?;
        self.draft.labels.push(Label { name });
        let column = self.column(entry.column);
        let mask_missing = entry.missing == Some(Missing::Mask);
        self.sources.labels.push(LabelSource { column, rule, mask_missing });
        Ok(())
    }

    fn add_dense(&mut self, entry: DenseEntry) -> Result<()> {
        let (mut function, mut standardize) = (None, false);
        let steps = entry.transform.map(|steps| match (steps.span(), steps.into_inner()) {
            (span, Words::One(word)) => vec![Spanned::new(span, word)],
            (_, Words::Many(words)) => words,
        });
        let steps = steps.unwrap_or_default();
        for step in &steps {
            let problem = |message: String| Err(self.text.problem(step.span(), message));
            let word = step.get_ref().as_str();
            let own = match word {
                "none" => DenseFunction::None,
                "log1p" => DenseFunction::SignedLog1p,
                "mlperf-log" => DenseFunction::MlperfLog,
                "standardize" if standardize => return problem("standardize is listed twice".into()),
                "standardize" => {
                    standardize = true;
                    continue;
                }
                _ => return problem(unknown_word("transform", word, &TRANSFORMS)),
            };
            if standardize {
                return problem(format!(
                    "{word} after standardize would take logarithms of numbers around 0: write it before standardize"
                ));
            }
            if function.is_some() {
                return problem(format!("{word} follows another function: keep one of them"));
            }
            function = Some(own);
        }
        if let (Some(DenseFunction::None), true) = (function, steps.len() > 1) {
            return Err(self.text.problem(
                steps[0].span(),
                "none cannot be combined with other transforms: remove it, or the other \
                one",
            ));
        }
        let name = self.name(entry.name, &entry.column)?;
        let transform = DenseTransform::plain(function.unwrap_or(DenseFunction::None));
        self.draft.dense.push(Dense { name, transform });
        self.standardized.push(standardize);
        let column = self.column(entry.column);
        self.sources.dense.push(column);
        Ok(())
    }

    fn add_categorical(&mut self, entry: CategoricalEntry) -> Result<()> {
        let number = self.draft.categorical.len();
        let name = self.name(entry.name, &entry.column)?;
        let (rows, vocabulary, shares) = match &entry.vocabulary {
            Some(vocabulary) => self.vocabulary(vocabulary)?,
            None => {
                self.min_count_open.push(number);
                (0, VocabularyKind::Exact { min_count: 1 }, None)
            }
        };
        if let Some(separator) = entry.separator.as_ref().filter(|separator| separator.get_ref().is_empty()) {
            let message = "separator must not be empty: write a character, or remove separator";
            return Err(self.text.problem(separator.span(), message));
        }
        let separator = entry.separator.map(Spanned::into_inner);
        self.numbers.insert(name.clone(), number);
        self.draft.categorical.push(Categorical {
            name,
            rows,
            hotness: match separator {
                Some(_) => Hotness::Ragged { max: BAG_MAX },
                None => Hotness::Fixed(1),
            },
            pooling: entry.pooling.unwrap_or(Pooling::Sum),
            vocabulary,
            shares,
        });
        let column = self.column(entry.column);
        self.sources.categorical.push(CategorySource { column, separator });
        Ok(())
    }

    /// Returns rows (0 if they are learnt), kind, and the column whose vocabulary is shared.
    fn vocabulary(
        &mut self,
        spanned: &Spanned<VocabularyEntry>,
    ) -> Result<(u64, VocabularyKind, Option<String>)> {
        let VocabularyEntry { kind, min_count, rows, with } = spanned.get_ref();
        let given = [
            ("min_count", min_count.as_ref().map(Spanned::span)),
            ("rows", rows.as_ref().map(Spanned::span)),
            ("with", with.as_ref().map(Spanned::span)),
        ];
        let own = match kind.get_ref().as_str() {
            "exact" => "min_count",
            "hash" | "identity" => "rows",
            "shared" => "with",
            word => {
                return Err(self.text.problem(kind.span(), unknown_word("vocabulary", word, &VOCABULARIES)));
            }
        };
        for (key, span) in given {
            if let Some(span) = span.filter(|_| key != own) {
                let message =
                    format!("a vocabulary of kind {:?} does not take {key}, but {own}", kind.get_ref());
                return Err(self.text.problem(span, message));
            }
        }
        let lacks = |what: &str| {
            let message = format!("a vocabulary of kind {:?} needs {own}: {what}", kind.get_ref());
            self.text.problem(spanned.span(), message)
        };
        if own == "rows" {
            let rows = rows.as_ref().ok_or_else(|| lacks("the number of rows of its table"))?;
            if !(1..=TABLE_ROWS_MAX).contains(rows.get_ref()) {
                let message = format!("rows must be a number from 1 to {TABLE_ROWS_MAX}");
                return Err(self.text.problem(rows.span(), message));
            }
            let hash = kind.get_ref() == "hash";
            let kind = if hash { VocabularyKind::Hash } else { VocabularyKind::Identity };
            return Ok((*rows.get_ref(), kind, None));
        }
        if own == "with" {
            let with = with.as_ref().ok_or_else(|| lacks("the name of another categorical column"))?;
            let earlier = self.numbers.get(with.get_ref());
            let Some(other) = earlier.map(|&number| &self.draft.categorical[number]) else {
                let names = self.draft.categorical.iter().map(|other| other.name.as_str());
                let meant = nearest(with.get_ref(), names);
                let meant = meant.map_or_else(String::new, |name| format!("; did you mean {name:?}?"));
                let message = format!(
                    "no earlier categorical column is named {:?}: a vocabulary can only be shared with an earlier \
                     column{meant}",
                    with.get_ref()
                );
                return Err(self.text.problem(with.span(), message));
            };
            if let Some(owner) = &other.shares {
                let message =
                    format!("that column itself shares the vocabulary of {owner:?}: write that name");
                return Err(self.text.problem(with.span(), message));
            }
            return Ok((other.rows, other.vocabulary, Some(other.name.clone())));
        }
        let Some(min_count) = min_count else {
            self.min_count_open.push(self.draft.categorical.len());
            return Ok((0, VocabularyKind::Exact { min_count: 1 }, None));
        };
        if *min_count.get_ref() == 0 {
            let message =
                "min_count 0 would give rows to categories that never occur: use 1 to keep every category";
            return Err(self.text.problem(min_count.span(), message));
        }
        Ok((0, VocabularyKind::Exact { min_count: *min_count.get_ref() }, None))
    }

    /// Returns the plan for CSV. Exact columns without a minimum count use `min_count`.
    pub(crate) fn csv_plan(&self, min_count: u64, dense_dtype: DenseDtype) -> Plan {
        let csv = self.csv.as_ref().map(|csv| csv.get_ref().clone()).unwrap_or_default();
        let delimiter = csv.delimiter.and_then(|text| text.get_ref().chars().next());
        let format = RowFormat::Csv(CsvFormat {
            delimiter: delimiter.unwrap_or(','),
            quote: csv.quote.unwrap_or(true),
            trim: csv.trim.unwrap_or(false),
            columns: csv.columns.map(Spanned::into_inner),
            sources: self.sources.clone(),
        });
        Plan { draft: self.draft(min_count, dense_dtype), standardized: self.standardized.clone(), format }
    }

    /// Returns the raw columns of the categorical columns.
    #[cfg(feature = "parquet")]
    pub(crate) fn categories(&self) -> impl Iterator<Item = &str> {
        self.sources.categorical.iter().map(|source| source.column.as_str())
    }

    /// Returns the plan for Parquet, like [`SchemaFile::csv_plan`]. `lists` states for each categorical column
    /// whether it is a list.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the file describes CSV.
    #[cfg(feature = "parquet")]
    pub(crate) fn parquet_plan(
        &self,
        min_count: u64,
        dense_dtype: DenseDtype,
        lists: &[bool],
    ) -> Result<Plan> {
        if let Some(csv) = &self.csv {
            return Err(self
                .text
                .problem(csv.span(), "[format] is for CSV; Parquet files describe themselves: remove it"));
        }
        let mut draft = self.draft(min_count, dense_dtype);
        for (column, _) in draft.categorical.iter_mut().zip(lists).filter(|(_, list)| **list) {
            column.hotness = Hotness::Ragged { max: BAG_MAX };
        }
        let format = RowFormat::Parquet(self.sources.clone());
        Ok(Plan { draft, standardized: self.standardized.clone(), format })
    }

    /// Returns the columns as they are known before any row is read.
    fn draft(&self, min_count: u64, dense_dtype: DenseDtype) -> Schema {
        let mut draft = Schema { dense_dtype, ..self.draft.clone() };
        for number in 0..draft.categorical.len() {
            let shares = draft.categorical[number].shares.as_ref();
            let owner = shares.and_then(|with| self.numbers.get(with)).copied().unwrap_or(number);
            if self.min_count_open.binary_search(&owner).is_ok() {
                draft.categorical[number].vocabulary = VocabularyKind::Exact { min_count };
            }
        }
        draft
    }

    /// Returns an error about a raw column that shows where the file names it.
    pub(crate) fn column_problem(&self, column: &str, message: impl fmt::Display) -> Error {
        let named = self.columns.iter().find(|named| named.get_ref() == column);
        self.text.problem(named.map_or(0..0, Spanned::span), message)
    }
}

const TRANSFORMS: [&str; 4] = ["none", "log1p", "mlperf-log", "standardize"];
const VOCABULARIES: [&str; 4] = ["exact", "hash", "identity", "shared"];

fn unknown_word(what: &str, word: &str, known: &[&str]) -> String {
    let meant = nearest(word, known.iter().copied());
    let meant = meant.map_or_else(String::new, |word| format!("did you mean {word:?}? "));
    format!("{word:?} is not a {what}: {meant}choose one of {}", known.join(", "))
}

/// Adds the nearest known key to the parser's message about an unknown key, which lists the known ones.
fn with_nearest_key(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    let meant = match (message.starts_with("unknown "), words.next()) {
        (true, Some(word)) => nearest(word, words).map(|word| format!("did you mean `{word}`?")),
        _ => None,
    };
    meant.map_or_else(|| message.to_owned(), |meant| format!("{message}; {meant}"))
}
