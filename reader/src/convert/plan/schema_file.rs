//! The schema file: which raw columns become which columns of a dataset, and how. Every error names its position.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;

use rankine_base::did_you_mean;
use rankine_base::document::{Conflict, Document, OneOrMany};
use rankine_base::error::{Error, Result};
use rankine_base::files::read_text;
use serde::Deserialize;

use crate::convert::plan::sequence_entry::{self, SequenceEntry};
use crate::convert::plan::{Learning, Plan};
use crate::convert::{BAG_MAX, TABLE_ROWS_MAX};
use crate::label::is_share;
use crate::origin::{CategorySource, ColumnSources, CsvFormat, LabelRule, LabelSource, RowFormat};
use crate::schema::{
    Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, Hotness, Label, Pooling, Schema,
    VocabularyKind,
};

/// The JSON Schema of schema files.
pub const SCHEMA: &str = include_str!("../../../schema.schema.json");

/// A schema file, parsed and checked.
#[derive(Debug, Clone)]
pub struct SchemaFile {
    document: Document,
    csv: Option<CsvEntry>,
    sources: ColumnSources,
    draft: Schema,
    /// The names of the dataset's columns.
    names: HashSet<String>,
    /// The numbers of its categorical columns by name.
    numbers: HashMap<String, usize>,
    standardized: Vec<bool>,
    /// The exact columns without a minimum count, in order.
    min_count_open: Vec<usize>,
    /// The keys that name raw columns first, by the column.
    columns: HashMap<String, String>,
}

/// A schema file: the columns of CSV or Parquet files, and what becomes of them.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(title = "Schema"))]
#[serde(deny_unknown_fields)]
struct File {
    /// How the text is divided into fields; CSV only.
    format: Option<CsvEntry>,
    /// The labels to predict.
    #[cfg_attr(test, schemars(required))]
    label: Option<OneOrMany<LabelEntry>>,
    /// The weight of each sample.
    weight: Option<WeightEntry>,
    /// Numeric inputs.
    #[serde(default)]
    dense: Vec<DenseEntry>,
    /// Categorical inputs, which look up rows of an embedding table.
    #[serde(default)]
    categorical: Vec<CategoricalEntry>,
    /// Categorical inputs with the same number of categories in each row.
    #[serde(default)]
    sequence: Vec<SequenceEntry>,
}

/// How the text is divided into fields.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct CsvEntry {
    /// The character between fields, by default a comma.
    #[cfg_attr(test, schemars(length(equal = 1)))]
    delimiter: Option<String>,
    /// Whether the first line of each file names its columns; by default it does.
    header: Option<bool>,
    /// The names of all columns of a file, in order; required if `header` is false, and an error otherwise.
    columns: Option<Vec<String>>,
    /// Whether ASCII white space around fields and categories is removed; by default it is not.
    trim: Option<bool>,
    /// Whether fields may be quoted with `"`; by default they may.
    quote: Option<bool>,
}

/// A label to predict: 0 or 1.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct LabelEntry {
    /// The raw column.
    column: String,
    /// The column's name in the dataset, by default that of the raw column.
    name: Option<String>,
    /// Numbers from this one on are 1, all others 0. Not with `equals`.
    at_least: Option<f64>,
    /// Fields with this text, or numbers equal to this number, are 1, all others 0. Not with `at_least`.
    #[cfg_attr(test, schemars(schema_with = "equals", default))]
    equals: Option<toml::Value>,
    /// What an empty field means, by default `bad`.
    missing: Option<Missing>,
    /// The share of negatives that the files have, if they were downsampled; all positives must be there. Training
    /// does not use it, but predictions and evaluations are corrected by it.
    #[cfg_attr(test, schemars(extend("exclusiveMinimum" = 0, "maximum" = 1)))]
    negatives_kept: Option<f64>,
}

/// Describes the values of `equals`.
#[cfg(test)]
fn equals(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "anyOf": [{ "type": "string", "minLength": 1 }, { "type": "number" }] })
}

/// What an empty label means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
enum Missing {
    /// The row is bad.
    Bad,
    /// The sample has no such label.
    Mask,
}

/// The weight of each sample, a number of 0 or more.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct WeightEntry {
    /// The raw column.
    column: String,
    /// The column's name in the dataset, by default that of the raw column.
    name: Option<String>,
}

/// A numeric input.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct DenseEntry {
    /// The raw column.
    column: String,
    /// The column's name in the dataset, by default that of the raw column.
    name: Option<String>,
    /// What is stored for a number; a list is applied in order, such as `["log1p", "standardize"]`.
    transform: Option<OneOrMany<Transform>>,
}

/// A transformation of a number x.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum Transform {
    /// x
    None,
    /// sign(x) ln(1 + |x|)
    Log1p,
    /// ln(max(x, 0) + 1), as in MLPerf
    MlperfLog,
    /// (x - mean) / deviation
    Standardize,
}

/// A categorical input.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct CategoricalEntry {
    /// The raw column.
    column: String,
    /// The column's name in the dataset, by default that of the raw column.
    name: Option<String>,
    /// How a category selects a row of the embedding table, by default `exact`.
    vocabulary: Option<VocabularyEntry>,
    /// The text between categories; without it, a field is one category.
    #[cfg_attr(test, schemars(length(min = 1)))]
    separator: Option<String>,
    /// The raw column with a weight for each category, divided as the categories are: by `separator`, or as a list.
    weights: Option<String>,
    /// How the rows of a bag become one vector, by default their sum.
    pooling: Option<Pooling>,
}

/// How a category selects a row of the embedding table.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(tag = "kind"))]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum VocabularyEntry {
    /// A separate row for each category that is frequent enough in the training part; row 0 for all others.
    Exact {
        /// How often a category must occur to get its own row.
        #[cfg_attr(test, schemars(range(min = 1, max = i64::MAX)))]
        min_count: Option<u64>,
    },
    /// The row is a hash of the category; different categories may share a row.
    Hash {
        /// Rows of the table.
        #[cfg_attr(test, schemars(range(min = 1, max = TABLE_ROWS_MAX)))]
        rows: u64,
    },
    /// The id is a hash of the category with 64 bits, the key of a row of a dynamic table.
    Open {},
    /// The category is the row number.
    Identity {
        /// Rows of the table.
        #[cfg_attr(test, schemars(range(min = 1, max = TABLE_ROWS_MAX)))]
        rows: u64,
    },
    /// The row that the vocabulary of another column gives.
    Shared {
        /// The name of an earlier categorical column that does not share a vocabulary itself.
        with: String,
    },
}

/// How the categories of a column become rows.
struct Vocabulary {
    /// The number of rows, or 0 if they are learnt; `None` if the vocabulary is open.
    rows: Option<u64>,
    kind: VocabularyKind,
    /// The column whose vocabulary is shared.
    shares: Option<String>,
}

impl SchemaFile {
    /// Loads a schema file.
    ///
    /// # Errors
    /// As [`read_text`]; [`Error::Document`] for the first mistake, with its position.
    pub fn load(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        Self::parse(&path.to_string_lossy(), &text)
    }

    /// Parses the text of a schema file that is called `name` in messages.
    ///
    /// # Errors
    /// [`Error::Document`] for the first mistake, with its position.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let document = Document::parse(name, text)?;
        let file: File = document.read()?;
        let mut made = Self {
            document,
            csv: None,
            sources: ColumnSources::default(),
            draft: Schema {
                labels: Vec::new(),
                weight: None,
                dense: Vec::new(),
                dense_dtype: DenseDtype::F32,
                sequences: Vec::new(),
                categorical: Vec::new(),
            },
            names: HashSet::new(),
            numbers: HashMap::new(),
            standardized: Vec::new(),
            min_count_open: Vec::new(),
            columns: HashMap::new(),
        };
        made.add(file).map_err(|conflict| made.document.problem(&conflict))?;
        Ok(made)
    }

    fn add(&mut self, file: File) -> Result<(), Conflict> {
        file.format.as_ref().map_or(Ok(()), check_csv)?;
        self.csv = file.format;
        let labels = file.label.map(|labels| labels.0).unwrap_or_default();
        if labels.is_empty() {
            return Err(Conflict::new("label", "the schema has no label: add [label] with column = \"...\""));
        }
        labels.into_iter().try_for_each(|entry| self.add_label(entry))?;
        if let Some(weight) = file.weight {
            self.draft.weight = Some(self.name("weight", weight.name, &weight.column)?);
            self.sources.weight = Some(weight.column);
        }
        file.dense.into_iter().try_for_each(|entry| self.add_dense(entry))?;
        file.categorical.into_iter().try_for_each(|entry| self.add_categorical(entry))?;
        file.sequence.into_iter().try_for_each(|entry| {
            self.draft.sequences.push(entry.sequence(&self.draft)?);
            Ok(())
        })
    }

    /// Returns the name of the dataset's column that a section describes, which must be unused, and records where the
    /// raw column is named.
    fn name(&mut self, section: &str, own: Option<String>, column: &str) -> Result<String, Conflict> {
        self.columns.entry(column.to_owned()).or_insert_with(|| format!("{section}.column"));
        let key = format!("{section}.{}", if own.is_some() { "name" } else { "column" });
        let name = own.unwrap_or_else(|| column.to_owned());
        if !self.names.insert(name.clone()) {
            let message = format!(
                "the name `{name}` is already used: give one of the columns another name, such as name = \"{name}_2\""
            );
            return Err(Conflict::new(key, message));
        }
        if !crate::schema::is_column_name(&name) {
            let message = format!(
                "{name:?} is not a valid file name, as column names must be: no slash, tab or line break, and no dot \
                 at the start; choose another with name = \"...\""
            );
            return Err(Conflict::new(key, message));
        }
        Ok(name)
    }

    fn add_label(&mut self, entry: LabelEntry) -> Result<(), Conflict> {
        let section = format!("label.{}", self.draft.labels.len());
        let conflict = |key: &str, message: &str| Err(Conflict::new(format!("{section}.{key}"), message));
        let rule = match (entry.at_least, &entry.equals) {
            (Some(_), Some(_)) => {
                return conflict("equals", "at_least and equals cannot be combined: keep one");
            }
            (None, None) => LabelRule::Binary,
            (Some(least), None) if least.is_finite() => LabelRule::AtLeast(least),
            (Some(_), None) => return conflict("at_least", "at_least must be a finite number"),
            (None, Some(equals)) => match equals {
                toml::Value::String(text) if !text.is_empty() => LabelRule::EqualsText(text.clone()),
                toml::Value::Integer(number) => LabelRule::EqualsNumber(*number as f64),
                toml::Value::Float(number) if number.is_finite() => LabelRule::EqualsNumber(*number),
                _ => {
                    let message = "equals must be a number or the text of the field: \"buy\", for example";
                    return conflict("equals", message);
                }
            },
        };
        let negatives_kept = entry.negatives_kept;
        if !negatives_kept.is_none_or(is_share) {
            let message =
                "negatives_kept must be above 0 and at most 1: 0.1 if every tenth negative was kept";
            return conflict("negatives_kept", message);
        }
        let name = self.name(&section, entry.name, &entry.column)?;
        // A share of 1 is no downsampling, as without the key.
        let negatives_kept = negatives_kept.filter(|&share| share < 1.0);
        self.draft.labels.push(Label { name, negatives_kept });
        let mask_missing = entry.missing == Some(Missing::Mask);
        self.sources.labels.push(LabelSource { column: entry.column, rule, mask_missing });
        Ok(())
    }

    fn add_dense(&mut self, entry: DenseEntry) -> Result<(), Conflict> {
        let section = format!("dense.{}", self.draft.dense.len());
        let (mut function, mut standardize) = (None, false);
        let steps = entry.transform.map_or_else(Vec::new, |steps| steps.0);
        for (number, step) in steps.iter().enumerate() {
            let conflict =
                |message: &str| Err(Conflict::new(format!("{section}.transform.{number}"), message));
            let own = match step {
                Transform::None if steps.len() > 1 => {
                    return conflict(
                        "none cannot be combined with other transforms: remove it, or the other one",
                    );
                }
                Transform::None => DenseFunction::None,
                Transform::Log1p => DenseFunction::SignedLog1p,
                Transform::MlperfLog => DenseFunction::MlperfLog,
                Transform::Standardize if standardize => return conflict("standardize is listed twice"),
                Transform::Standardize => {
                    standardize = true;
                    continue;
                }
            };
            if standardize {
                return conflict("a logarithm must come before standardize, which centers numbers around 0");
            }
            if function.is_some() {
                return conflict("a column can have only one logarithm: remove one of them");
            }
            function = Some(own);
        }
        let name = self.name(&section, entry.name, &entry.column)?;
        let transform = DenseTransform::plain(function.unwrap_or(DenseFunction::None));
        self.draft.dense.push(Dense { name, transform });
        self.standardized.push(standardize);
        self.sources.dense.push(entry.column);
        Ok(())
    }

    fn add_categorical(&mut self, entry: CategoricalEntry) -> Result<(), Conflict> {
        let number = self.draft.categorical.len();
        let section = format!("categorical.{number}");
        let name = self.name(&section, entry.name, &entry.column)?;
        let vocabulary = entry.vocabulary.unwrap_or(VocabularyEntry::Exact { min_count: None });
        let Vocabulary { rows, kind, shares } = self.vocabulary(&section, vocabulary)?;
        let CategoricalEntry { column, separator, weights, .. } = entry;
        if separator.as_ref().is_some_and(String::is_empty) {
            let message = "separator must not be empty: write a character, or remove separator";
            return Err(Conflict::new(format!("{section}.separator"), message));
        }
        if let Some(weights) = &weights {
            self.columns.entry(weights.clone()).or_insert_with(|| format!("{section}.weights"));
        }
        self.numbers.insert(name.clone(), number);
        self.draft.categorical.push(Categorical {
            name,
            rows,
            hotness: match separator {
                Some(_) => Hotness::Ragged { max: BAG_MAX },
                None => Hotness::Fixed(1),
            },
            pooling: entry.pooling.unwrap_or(Pooling::Sum),
            weighted: weights.is_some(),
            vocabulary: kind,
            shares,
        });
        self.sources.categorical.push(CategorySource { column, separator, weights });
        Ok(())
    }

    fn vocabulary(&mut self, section: &str, entry: VocabularyEntry) -> Result<Vocabulary, Conflict> {
        let conflict =
            |key: &str, message| Err(Conflict::new(format!("{section}.vocabulary.{key}"), message));
        let fixed = |kind, rows: u64| match rows {
            1..=TABLE_ROWS_MAX => Ok(Vocabulary { rows: Some(rows), kind, shares: None }),
            _ => conflict("rows", format!("rows must be a number from 1 to {TABLE_ROWS_MAX}")),
        };
        match entry {
            VocabularyEntry::Hash { rows } => fixed(VocabularyKind::Hash, rows),
            VocabularyEntry::Identity { rows } => fixed(VocabularyKind::Identity, rows),
            VocabularyEntry::Open {} => {
                Ok(Vocabulary { rows: None, kind: VocabularyKind::Open, shares: None })
            }
            VocabularyEntry::Shared { with } => {
                let earlier = self.numbers.get(&with).map(|&number| &self.draft.categorical[number]);
                let Some(other) = earlier else {
                    let names = self.draft.categorical.iter().map(|other| other.name.as_str());
                    let meant = did_you_mean(&with, names);
                    let message = format!(
                        "no earlier categorical column is named {with:?}, and a vocabulary can only be shared with an \
                         earlier column{meant}"
                    );
                    return conflict("with", message);
                };
                if let Some(owner) = &other.shares {
                    let message =
                        format!("that column itself shares the vocabulary of {owner:?}: write that name");
                    return conflict("with", message);
                }
                Ok(Vocabulary { rows: other.rows, kind: other.vocabulary.clone(), shares: Some(with) })
            }
            VocabularyEntry::Exact { min_count: Some(0) } => conflict(
                "min_count",
                "min_count 0 would give rows to categories that never occur: use 1 to keep every category"
                    .into(),
            ),
            VocabularyEntry::Exact { min_count } => {
                if min_count.is_none() {
                    self.min_count_open.push(self.draft.categorical.len());
                }
                let kind = VocabularyKind::Exact { min_count: min_count.unwrap_or(1) };
                Ok(Vocabulary { rows: Some(0), kind, shares: None })
            }
        }
    }

    /// Returns the plan for CSV. Exact columns without a minimum count use `min_count`.
    ///
    /// # Errors
    /// [`Error::Document`] for weights of a column that has no bags.
    pub(crate) fn csv_plan(&self, min_count: u64, dense_dtype: DenseDtype) -> Result<Plan> {
        let csv = self.csv.clone().unwrap_or_default();
        let delimiter = csv.delimiter.and_then(|text| text.chars().next());
        let format = RowFormat::Csv(CsvFormat {
            delimiter: delimiter.unwrap_or(','),
            quote: csv.quote.unwrap_or(true),
            trim: csv.trim.unwrap_or(false),
            columns: csv.columns,
            sources: self.sources.clone(),
        });
        let draft = self.draft(min_count, dense_dtype);
        self.check_bags(&draft, "add separator = \"...\"")?;
        Ok(Plan { draft, standardized: self.standardized.clone(), format, learning: Learning::All })
    }

    /// Checks that columns with weights, and columns of sequences, have bags; `instead` is how they get some.
    fn check_bags(&self, draft: &Schema, instead: &str) -> Result<()> {
        if let Some(conflict) = sequence_entry::unsuitable_column(draft, instead) {
            return Err(self.document.problem(&conflict).into());
        }
        let mut columns = draft.categorical.iter().enumerate();
        match columns.find(|(_, column)| column.weighted && !column.hotness.varies()) {
            None => Ok(()),
            Some((number, column)) => {
                let message = format!(
                    "weights are for the categories of a bag, but column {:?} has one category per row: {instead}, or \
                     remove weights",
                    column.name
                );
                let key = format!("categorical.{number}.weights");
                Err(self.document.problem(&Conflict::new(key, message)).into())
            }
        }
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
    /// [`Error::Document`] if the file describes CSV.
    #[cfg(feature = "parquet")]
    pub(crate) fn parquet_plan(
        &self,
        min_count: u64,
        dense_dtype: DenseDtype,
        lists: &[bool],
    ) -> Result<Plan> {
        if self.csv.is_some() {
            let message = "Parquet needs no [format]: remove it";
            return Err(self.document.problem(&Conflict::new("format", message)).into());
        }
        let mut draft = self.draft(min_count, dense_dtype);
        for (column, _) in draft.categorical.iter_mut().zip(lists).filter(|(_, list)| **list) {
            column.hotness = Hotness::Ragged { max: BAG_MAX };
        }
        self.check_bags(&draft, "write it as a list, or add separator = \"...\"")?;
        let format = RowFormat::Parquet(self.sources.clone());
        Ok(Plan { draft, standardized: self.standardized.clone(), format, learning: Learning::All })
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

    /// Returns the positions of the columns to read among the names of a table's columns.
    ///
    /// # Errors
    /// [`Error::Document`] if the table lacks one.
    pub fn positions_in(&self, table: &str, names: &[String]) -> Result<Vec<usize>> {
        let refuse =
            |column: &str, lacks: String| self.column_problem(column, format_args!("{table} {lacks}"));
        self.sources.positions_in(names, refuse)
    }

    /// Returns an error about a raw column that shows where the file names it.
    pub(crate) fn column_problem(&self, column: &str, message: impl fmt::Display) -> Error {
        let key = self.columns.get(column).map_or("", String::as_str);
        self.document.problem(&Conflict::new(key, message.to_string())).into()
    }
}

fn check_csv(csv: &CsvEntry) -> Result<(), Conflict> {
    let conflict = |key, message: &str| Err(Conflict::new(key, message));
    if let Some(text) = &csv.delimiter {
        let quoted = csv.quote != Some(false) && text == "\"";
        if text.len() != 1 || text == "\n" || text == "\r" || quoted || !text.is_ascii() {
            return conflict(
                "format.delimiter",
                "a delimiter must be one ASCII character, not a line end or a quote: \",\" or \"\\t\", for example",
            );
        }
    }
    match (csv.header, &csv.columns) {
        (None | Some(true), Some(_)) => conflict(
            "format.columns",
            "columns is for files without a header: add header = false, or remove it",
        ),
        (Some(false), None) => conflict(
            "format",
            "files without a header need columns = [\"...\", \"...\"], which names all columns in order",
        ),
        (Some(false), Some(columns)) => {
            let mut seen = HashSet::new();
            match columns.iter().position(|name| !seen.insert(name)) {
                Some(at) => {
                    let message = format!("{:?} is listed twice", columns[at]);
                    conflict(&format!("format.columns.{at}"), &message)
                }
                None => Ok(()),
            }
        }
        (None | Some(true), None) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::json_schema;

    #[test]
    fn the_json_schema_says_what_the_types_say() {
        let schema = json_schema::schema::<File>("schema");
        json_schema::assert_valid(&schema);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = json_schema::text(&schema);
        let test = "-p rankine-reader --lib schema_file";
        json_schema::assert_written(&root, &json_schema::document("schema"), &text, test);
        let violation = |text: &str| json_schema::violation(&json_schema::json(text), &schema);
        let reference = fs::read_to_string(root.join("docs/reference/schema.md")).unwrap();
        let example = reference.split("```").nth(1).and_then(|block| block.strip_prefix("toml\n")).unwrap();
        let films = fs::read_to_string(root.join("configs/movielens-schema.toml")).unwrap();
        let label = "[label]\ncolumn = \"a\"\n";
        let column = format!("{label}[[categorical]]\ncolumn = \"b\"\n");
        for right in [
            example,
            &films,
            &format!("{label}equals = 1.5\nmissing = \"mask\""),
            &format!("{label}[[dense]]\ncolumn = \"b\"\ntransform = \"log1p\""),
            &format!("{column}vocabulary = \"exact\""),
            &format!("{column}vocabulary.kind = \"hash\"\nvocabulary.rows = 3"),
            &format!("{column}[[sequence]]\nname = \"s\"\ncolumns = [\"b\"]\nkeep = \"first\""),
        ] {
            SchemaFile::parse("a.toml", right).unwrap();
            assert_eq!(violation(right), None, "{right}");
        }
        for wrong in [
            "",
            "[label]\nname = \"a\"",
            &format!("{label}equals = \"\""),
            &format!("{label}equals = true"),
            &format!("{label}missing = \"skip\""),
            &format!("{label}[format]\ndelimiter = \";;\""),
            &format!("{label}[[dense]]\ncolumn = \"b\"\ntransform = [\"log\"]"),
            &format!("{column}vocabulary = \"hash\""),
            &format!("{column}vocabulary = {{ kind = \"exact\", min_count = 0 }}"),
            &format!("{column}vocabulary = {{ kind = \"hash\", rows = 4294967297 }}"),
            &format!("{column}vocabulary = {{ kind = \"identity\" }}"),
            &format!("{column}vocabulary = {{ kind = \"shared\", rows = 3 }}"),
            &format!("{column}separator = \"\""),
            &format!("{column}pool = \"mean\""),
            &format!("{column}[[sequence]]\nname = \"s\"\ncolumns = [\"b\"]\nmax = 0"),
        ] {
            SchemaFile::parse("a.toml", wrong).unwrap_err();
            assert!(violation(wrong).is_some(), "{wrong}");
        }
    }
}
