//! The format of a dataset's raw rows: stored in its manifest and with every model trained on it, so that both can
//! read further rows of the same format.

use rankine_base::error::{Error, Result};
use rankine_base::nearest::no_column;
use serde::{Deserialize, Serialize};

use crate::raw::RawFormat;
use crate::schema::Schema;

/// The format of raw rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum RowFormat {
    /// Criteo's tab-separated lines: a label, 13 integers, 26 hexadecimal categories.
    CriteoTsv,
    /// Lines of named columns separated by a delimiter.
    Csv(CsvFormat),
    /// HugeCTR's and MLPerf's fixed-length records.
    HugectrRaw(RawFormat),
    /// Parquet's named columns.
    Parquet(ColumnSources),
}

/// The format of CSV files, and the columns that the schema's columns come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CsvFormat {
    /// The field separator: one ASCII character, neither a quote nor a line end.
    pub delimiter: char,
    /// Whether a field in double quotes may hold delimiters, line ends and doubled quotes (RFC 4180).
    pub quote: bool,
    /// Whether white space around fields is removed.
    pub trim: bool,
    /// The names of all columns, if files have no header; otherwise the first line of each file names them.
    pub columns: Option<Vec<String>>,
    /// The source columns of the schema's columns.
    pub sources: ColumnSources,
}

/// The raw columns that the schema's columns come from, one entry per column of the schema, in its order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnSources {
    /// For each label.
    pub labels: Vec<LabelSource>,
    /// For the weight, if the schema has one.
    pub weight: Option<String>,
    /// For each dense column.
    pub dense: Vec<String>,
    /// For each categorical column.
    pub categorical: Vec<CategorySource>,
}

/// The source of a label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelSource {
    /// The raw column.
    pub column: String,
    /// The values that count as 1.
    pub rule: LabelRule,
    /// Whether a row without a value gets a missing label instead of being bad.
    pub mask_missing: bool,
}

/// The raw values of a label that count as 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelRule {
    /// 1 counts as 1, 0 as 0; other values are errors.
    Binary,
    /// Numbers from this one up count as 1, other numbers as 0.
    AtLeast(f64),
    /// This number counts as 1, other numbers as 0.
    EqualsNumber(f64),
    /// This text counts as 1, other texts as 0.
    EqualsText(String),
}

/// The source of a categorical column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategorySource {
    /// The raw column.
    pub column: String,
    /// The separator of a row's categories; without one, a text field is one category.
    pub separator: Option<String>,
    /// The raw column with a weight for each category of a row, divided as the categories are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

impl RowFormat {
    /// Returns its name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CriteoTsv => "criteo-tsv",
            Self::Csv(_) => "csv",
            Self::HugectrRaw(_) => "hugectr-raw",
            Self::Parquet(_) => "parquet",
        }
    }

    /// Returns the samples per block to write.
    pub(crate) fn block_samples(&self, schema: &Schema) -> Result<u32> {
        match self {
            Self::CriteoTsv | Self::Csv(_) | Self::Parquet(_) => Ok(schema.default_block_samples()),
            Self::HugectrRaw(raw) => raw.block_samples(),
        }
    }
}

impl ColumnSources {
    /// Returns all raw columns needed; a column may be repeated.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        let labels = self.labels.iter().map(|label| &label.column);
        let categorical =
            self.categorical.iter().flat_map(|source| std::iter::once(&source.column).chain(&source.weights));
        labels.chain(&self.weight).chain(&self.dense).chain(categorical).map(String::as_str)
    }

    /// Returns the positions of the raw columns among the names of a table's columns. A dot leads to a field of a
    /// column that is a group.
    ///
    /// # Errors
    /// The error of `refuse` for a column that the table lacks, and what to say of it after the name of the table.
    pub(crate) fn positions_in(
        &self,
        names: &[String],
        refuse: impl Fn(&str, String) -> Error,
    ) -> Result<Vec<usize>> {
        let is_of = |column: &str, name: &str| {
            column.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let used = |name: &str| self.columns().any(|column| is_of(column, name));
        match self.columns().find(|column| !names.iter().any(|name| is_of(column, name))) {
            Some(column) => Err(refuse(column, no_column(column, "", names, used))),
            None => Ok((0..names.len()).filter(|&at| used(&names[at])).collect()),
        }
    }

    /// Returns whether there is an entry for each of a schema's columns.
    pub(crate) fn fits(&self, schema: &Schema) -> bool {
        let Self { labels, weight, dense, categorical } = self;
        let sizes = [labels.len(), weight.iter().len(), dense.len(), categorical.len()];
        let columns =
            [schema.labels.len(), schema.weight.iter().len(), schema.dense.len(), schema.categorical.len()];
        let weights = categorical.iter().map(|source| source.weights.is_some());
        sizes == columns && weights.eq(schema.categorical.iter().map(|column| column.weighted))
    }
}

impl LabelRule {
    /// Returns the label of a number, 0 or 1, or `None` if the rule does not admit it.
    pub(crate) fn of_number(&self, number: f64) -> Option<f32> {
        let label = |positive| Some(f32::from(u8::from(positive)));
        match self {
            Self::Binary if number == 0.0 || number == 1.0 => Some(number as f32),
            Self::AtLeast(least) if number.is_finite() => label(number >= *least),
            Self::EqualsNumber(value) if number.is_finite() => label(number == *value),
            _ => None,
        }
    }

    /// Returns a description of the values that it admits.
    pub(crate) fn admits(&self) -> &'static str {
        match self {
            Self::Binary => "0 or 1",
            Self::AtLeast(_) | Self::EqualsNumber(_) => "a number",
            Self::EqualsText(_) => "text",
        }
    }
}
