//! How raw rows of a dataset are read: kept in its manifest, and with every model trained on it, so that both can read
//! further rows of the same form.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::raw::RawFormat;
use crate::schema::Schema;

/// The form of raw rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum RowFormat {
    /// Criteo's tab-separated lines: a label, 13 integers, 26 hexadecimal categories.
    CriteoTsv,
    /// Lines of named columns with a delimiter between them.
    Csv(CsvFormat),
    /// HugeCTR's and MLPerf's records of fixed length.
    HugectrRaw(RawFormat),
    /// Parquet's named columns.
    Parquet(ColumnSources),
}

/// The form of CSV, and which of its columns the schema's come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CsvFormat {
    /// Between two fields: one ASCII character, neither a quote nor a line's end.
    pub delimiter: char,
    /// Whether a field in double quotes may hold delimiters, line ends and doubled quotes (RFC 4180).
    pub quote: bool,
    /// Whether white space around fields is taken off.
    pub trim: bool,
    /// The names of all columns of a file, where files have no header; without it the first line of each names them.
    pub columns: Option<Vec<String>>,
    /// Where the schema's columns come from.
    pub sources: ColumnSources,
}

/// Which named columns of raw rows the schema's columns come from: one entry for each of its columns, in its order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnSources {
    /// For each label.
    pub labels: Vec<LabelSource>,
    /// For the weight, where the schema has one.
    pub weight: Option<String>,
    /// For each dense column.
    pub dense: Vec<String>,
    /// For each categorical column.
    pub categorical: Vec<CategorySource>,
}

/// Where a label comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelSource {
    /// The raw column.
    pub column: String,
    /// Which of its values count as 1.
    pub rule: LabelRule,
    /// Whether a row without a value has a missing label, rather than being bad.
    pub mask_missing: bool,
}

/// Which raw values of a label count as 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelRule {
    /// 1 does, 0 does not, and there are no others.
    Binary,
    /// Numbers from this one on do, other numbers do not.
    AtLeast(f64),
    /// This number does, other numbers do not.
    EqualsNumber(f64),
    /// This text does, others do not.
    EqualsText(String),
}

/// Where a categorical column comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategorySource {
    /// The raw column.
    pub column: String,
    /// Between the categories of a row; without it a field of text is one category.
    pub separator: Option<String>,
}

impl RowFormat {
    /// Its name in the command.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CriteoTsv => "criteo-tsv",
            Self::Csv(_) => "csv",
            Self::HugectrRaw(_) => "hugectr-raw",
            Self::Parquet(_) => "parquet",
        }
    }

    /// Samples of the blocks that are written.
    pub(crate) fn block_samples(&self, schema: &Schema) -> Result<u32> {
        match self {
            Self::CriteoTsv | Self::Csv(_) | Self::Parquet(_) => Ok(schema.default_block_samples()),
            Self::HugectrRaw(raw) => raw.block_samples(),
        }
    }
}

impl ColumnSources {
    /// All raw columns that are asked for; one may come several times.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        let labels = self.labels.iter().map(|label| &label.column);
        let categorical = self.categorical.iter().map(|source| &source.column);
        labels.chain(&self.weight).chain(&self.dense).chain(categorical).map(String::as_str)
    }

    /// Whether there is an entry for each of a schema's columns.
    pub(crate) fn fits(&self, schema: &Schema) -> bool {
        let Self { labels, weight, dense, categorical } = self;
        let sizes = [labels.len(), weight.iter().len(), dense.len(), categorical.len()];
        let columns =
            [schema.labels.len(), schema.weight.iter().len(), schema.dense.len(), schema.categorical.len()];
        sizes == columns
    }
}

impl LabelRule {
    /// The label of a number, 0 or 1; `None` where it is none.
    pub(crate) fn of_number(&self, number: f64) -> Option<f32> {
        let label = |positive| Some(f32::from(u8::from(positive)));
        match self {
            Self::Binary if number == 0.0 || number == 1.0 => Some(number as f32),
            Self::AtLeast(least) if number.is_finite() => label(number >= *least),
            Self::EqualsNumber(value) if number.is_finite() => label(number == *value),
            _ => None,
        }
    }

    /// What it admits, in words.
    pub(crate) fn admits(&self) -> &'static str {
        match self {
            Self::Binary => "0 or 1",
            Self::AtLeast(_) | Self::EqualsNumber(_) => "a number",
            Self::EqualsText(_) => "text",
        }
    }
}
