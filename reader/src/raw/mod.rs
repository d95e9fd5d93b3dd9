//! Raw files: fixed-length records as used by HugeCTR's raw readers and MLPerf's preprocessing.
//!
//! A record is a row of little-endian fields of four bytes: labels, dense values, then the ids of every categorical
//! column, in the number of the column's hotness. There is no header, checksum or name: the [`RawFormat`] defines the
//! fields, and the reader of a file must know it. [`RecordDecoder`] decodes records into samples, both for conversion
//! and for training from raw files.

use std::fmt;
use std::str::FromStr;

use rankine_base::error::{Error, InvalidValue, Malformed, Result};
use serde::{Deserialize, Serialize};

use crate::schema::{Dense, DenseDtype, DenseFunction, DenseTransform, Label, Schema};
use crate::shape::Shape;

mod contents;
mod decode;
#[cfg(test)]
mod tests;

pub use contents::{RawContents, checksums};
pub use decode::{RecordDecoder, RecordFault, RecordFaultKind};
pub use rankine_base::file_identity::{FileIdentity, Stamp};

/// Bytes per field.
pub const FIELD_BYTES: usize = 4;
/// Maximum length of a record: a bound on memory, more than a thousand times MLPerf's longest.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of records that are read at a time, unless a single one has more.
const BLOCK_BYTES_MAX: usize = 4 << 20;
/// The fields of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawFormat {
    /// Dense columns, tables and hotness. Every bag has exactly that many ids: a ragged shape has no fixed record.
    pub shape: Shape,
    /// The maximum number of rows of a table, if the shape's tables are capped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_cap: Option<u64>,
    /// Labels per record, at least one.
    #[serde(default = "one_label")]
    pub labels: u32,
    /// The type of dense fields.
    #[serde(default)]
    pub dense: RawDense,
    /// The base of ids.
    #[serde(default)]
    pub ids: RawIds,
}

fn one_label() -> u32 {
    1
}

/// The type of a record's dense fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RawDense {
    /// Floats, used unchanged.
    #[default]
    Float,
    /// Signed integers `x`, which are transformed to `ln(max(x, 0) + 1)`.
    Int,
}

/// The base of a record's ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RawIds {
    /// Ids count from the first row of their table.
    #[default]
    PerTable,
    /// Ids count from the first row of the first table: the rows of all tables are numbered consecutively.
    GlobalOffset,
}

/// Gives each variant of an enum one spelling for parsing and formatting.
macro_rules! spelling {
    ($name:ident, $what:literal, $($variant:ident = $text:literal),+) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),+ })
            }
        }

        impl FromStr for $name {
            type Err = InvalidValue;

            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(InvalidValue::is_not(text, $what)),
                }
            }
        }
    };
}

spelling!(RawDense, "a type of dense fields: choose float or int", Float = "float", Int = "int");
spelling!(
    RawIds,
    "a base of ids: choose per-table or global-offset",
    PerTable = "per-table",
    GlobalOffset = "global-offset"
);

impl RawDense {
    /// Returns the function that is applied to the fields.
    pub(crate) fn function(self) -> DenseFunction {
        match self {
            Self::Float => DenseFunction::None,
            Self::Int => DenseFunction::MlperfLog,
        }
    }
}

impl RawFormat {
    /// Returns the format of a shape with one label, dense floats and ids that count from the first row of their
    /// table.
    pub fn new(shape: Shape) -> Self {
        Self { shape, rows_cap: None, labels: 1, dense: RawDense::Float, ids: RawIds::PerTable }
    }

    /// Returns the columns: `label` (or `label1`, `label2`, ...), `I1`, `I2`, ..., `C1`, `C2`, ...
    pub fn schema(&self, dense_dtype: DenseDtype) -> Schema {
        let function = self.dense.function();
        let labels = match self.labels {
            1 => vec![Label::new("label")],
            count => (1..=count).map(|label| Label::new(format!("label{label}"))).collect(),
        };
        let mut schema = self.shape.schema(self.rows_cap);
        for column in &mut schema.dense {
            *column = Dense { name: column.name.clone(), transform: DenseTransform::plain(function) };
        }
        Schema { labels, dense_dtype, ..schema }
    }

    /// Returns the bytes per record.
    ///
    /// # Errors
    /// [`Error::Setting`] if the format has no fixed record, or one longer than [`RECORD_BYTES_MAX`].
    pub fn record_bytes(&self) -> Result<usize> {
        let invalid = |what: String| {
            Err(Error::setting(
                "shape",
                format!("raw files cannot have the shape {}: {what}", self.shape.name),
            ))
        };
        if self.shape.ragged {
            return invalid("its bags are ragged, but records have a fixed length".into());
        }
        if !self.shape.sequences.is_empty() {
            return invalid("it has sequences, but records have a fixed length".into());
        }
        if self.shape.churn.is_some() {
            return invalid("its categories come and go, but ids of records are rows of tables".into());
        }
        if self.labels == 0 {
            return invalid("a record needs at least one label".into());
        }
        let ids = self.shape.ids();
        let bytes = (u64::from(self.labels).saturating_add(self.shape.dense as u64))
            .saturating_add(ids)
            .saturating_mul(FIELD_BYTES as u64);
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= RECORD_BYTES_MAX => Ok(bytes),
            _ => invalid(format!("a record would have {bytes} bytes; the limit is {RECORD_BYTES_MAX}")),
        }
    }

    /// Returns the number of records that are read, or packed by conversion, together:
    /// [`Schema::default_block_samples`] for single precision, unless their bytes exceed the limit. Shuffling uses
    /// these blocks, so that raw and converted records of one file come in the same order.
    ///
    /// # Errors
    /// See [`RawFormat::record_bytes`].
    pub fn block_samples(&self) -> Result<u32> {
        let most = (BLOCK_BYTES_MAX / self.record_bytes()?).max(1);
        Ok(self.schema(DenseDtype::F32).default_block_samples().min(1 << most.ilog2()))
    }

    /// Returns the number of records in a file of `bytes` bytes.
    ///
    /// # Errors
    /// A description of the mismatch and its likely cause.
    pub fn records_of(&self, bytes: u64) -> Result<u64, Malformed> {
        let record = self.record_bytes().map_err(|error| error.to_string())? as u64;
        if bytes.is_multiple_of(record) {
            return Ok(bytes / record);
        }
        let mut what = format!(
            "{bytes} bytes are not a multiple of the {record} bytes of a record ({self}). The file is truncated, or \
             the records have a different shape"
        );
        for other in Shape::built_in() {
            let other = Self { shape: other, ..self.clone() };
            if other.shape != self.shape
                && other.record_bytes().is_ok_and(|record| bytes.is_multiple_of(record as u64))
            {
                what += &format!(": it matches records of the shape {} ({other})", other.shape.name);
            }
        }
        Err(what.into())
    }
}

/// Formats the fields: "1 label, 13 dense, 26 ids, 4 bytes each".
impl fmt::Display for RawFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.shape.ids();
        let labels = if self.labels == 1 { "label" } else { "labels" };
        write!(f, "{} {labels}, {} dense, {ids} ids, 4 bytes each", self.labels, self.shape.dense)
    }
}
