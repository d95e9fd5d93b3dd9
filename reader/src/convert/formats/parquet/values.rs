//! The typed values of a column as they are stored, and reading those of some rows.

use std::sync::Arc;

use bytes::Bytes;
use half::f16;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType, FixedLenByteArray, Int96};
use parquet::errors::ParquetError;

use super::columns::Leaf;
use super::dictionary::Entries;
use crate::convert::rows::value_type::ValueType;

/// The non-null values of some rows of a leaf.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) typed: TypedValues,
    pub(super) values: ValueType,
    pub(super) unsigned: bool,
    pub(super) rows: RowEnds,
}

/// The values of each row.
#[derive(Debug)]
pub(super) struct RowEnds {
    /// For each row, the number of values up to its end.
    pub(super) ends: Vec<u32>,
    /// The rows whose lists have nulls, which are left out.
    pub(super) with_nulls: Vec<u32>,
}

#[derive(Debug)]
pub(super) enum TypedValues {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    FixedBytes(Vec<FixedLenByteArray>),
    /// Strings, one after the other, and the end of each.
    Texts(Vec<u8>, Vec<usize>),
    /// Numbers of strings in a dictionary.
    Numbers(Vec<i32>, Arc<Vec<Bytes>>),
    /// Exact values that are stored as bytes.
    Wide(Vec<i128>),
}

/// Reads the values of a leaf in a row group.
pub(super) struct ValueReader {
    pub(super) column: ColumnReader,
    /// The entries of a dictionary, if the column has their numbers in place of its values.
    pub(super) entries: Option<Entries>,
}

/// One value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Bytes(&'a [u8]),
    /// A decimal, a date or a time.
    Exact(ValueType, i128),
}

impl Values {
    pub(super) fn of_row(&self, row: usize) -> std::ops::Range<usize> {
        let ends = &self.rows.ends;
        let start = row.checked_sub(1).map_or(0, |before| ends[before]);
        start as usize..ends[row] as usize
    }

    /// Returns whether a row is a list with nulls, which are not among its values.
    pub(super) fn has_nulls(&self, row: usize) -> bool {
        self.rows.with_nulls.binary_search(&(row as u32)).is_ok()
    }

    pub(super) fn get(&self, at: usize) -> Value<'_> {
        match &self.typed {
            TypedValues::Bool(values) => Value::Bool(values[at]),
            TypedValues::Wide(values) => Value::Exact(self.values, values[at]),
            TypedValues::Int32(values) if self.values != ValueType::Integer => {
                Value::Exact(self.values, values[at].into())
            }
            TypedValues::Int64(values) if self.values != ValueType::Integer => {
                Value::Exact(self.values, values[at].into())
            }
            TypedValues::Int32(values) if self.unsigned => Value::Uint(u64::from(values[at] as u32)),
            TypedValues::Int32(values) => Value::Int(i64::from(values[at])),
            TypedValues::Int64(values) if self.unsigned => Value::Uint(values[at] as u64),
            TypedValues::Int64(values) => Value::Int(values[at]),
            TypedValues::Float(values) => Value::Float(f64::from(values[at])),
            TypedValues::Double(values) => Value::Float(values[at]),
            TypedValues::Bytes(values) => Value::Bytes(values[at].data()),
            TypedValues::FixedBytes(values) => Value::Bytes(values[at].data()),
            TypedValues::Texts(bytes, ends) => {
                let start = at.checked_sub(1).map_or(0, |before| ends[before]);
                Value::Bytes(&bytes[start..ends[at]])
            }
            TypedValues::Numbers(numbers, entries) => Value::Bytes(&entries[numbers[at] as usize]),
        }
    }

    /// Returns the value of a row of a column that is not a list; `None` for null.
    pub(super) fn one(&self, row: usize) -> Option<Value<'_>> {
        self.of_row(row).next().map(|at| self.get(at))
    }

    /// Calls `take` with the text of a row's value: bytes unchanged, or the shortest digits that read back as the same
    /// number; empty for null.
    pub(super) fn with_text_of<R>(
        &self,
        row: usize,
        scratch: &mut Vec<u8>,
        take: impl FnOnce(&[u8]) -> R,
    ) -> R {
        match (self.of_row(row).next(), &self.typed) {
            (None, _) => take(b""),
            // As a double it would have digits that the file does not have.
            (Some(at), TypedValues::Float(values)) => take(values[at].to_string().as_bytes()),
            (Some(at), _) => self.get(at).with_text(scratch, take),
        }
    }
}

impl Value<'_> {
    /// Returns the number; `None` for NaN, which represents a missing value.
    pub(super) fn number(self) -> Option<f64> {
        match self {
            Self::Bool(value) => Some(f64::from(u8::from(value))),
            Self::Int(value) => Some(value as f64),
            Self::Uint(value) => Some(value as f64),
            Self::Float(value) => Some(value).filter(|value| !value.is_nan()),
            Self::Exact(values, value) => Some(values.number(value)),
            Self::Bytes(_) => None,
        }
    }

    pub(super) fn to_json(self) -> serde_json::Value {
        match self {
            Self::Bool(value) => value.into(),
            Self::Int(value) => value.into(),
            Self::Uint(value) => value.into(),
            Self::Float(value) if value.is_finite() => value.into(),
            Self::Float(value) => value.to_string().into(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into(),
            Self::Exact(..) => self.with_text(&mut Vec::new(), |text| String::from_utf8_lossy(text).into()),
        }
    }

    /// Calls `take` with the value's text: bytes unchanged, or as [`ValueType::write_text`] writes it.
    pub(super) fn with_text<R>(self, scratch: &mut Vec<u8>, take: impl FnOnce(&[u8]) -> R) -> R {
        use std::io::Write;
        scratch.clear();
        let written = match self {
            Self::Bytes(bytes) => return take(bytes),
            Self::Exact(values, value) => {
                values.write_text(value, scratch);
                Ok(())
            }
            Self::Int(value) => write!(scratch, "{value}"),
            Self::Uint(value) => write!(scratch, "{value}"),
            Self::Bool(value) => write!(scratch, "{value}"),
            Self::Float(value) => write!(scratch, "{value}"),
        };
        written.expect("writing to a vector does not fail");
        take(scratch)
    }
}

/// Reads the values of `rows` rows of a leaf.
pub(super) fn read_rows(reader: &mut ValueReader, rows: usize, leaf: &Leaf) -> Result<Values, ParquetError> {
    let ValueReader { column, entries } = reader;
    let (typed, rows) = match column {
        ColumnReader::BoolColumnReader(reader) => read_typed(reader, rows, leaf, TypedValues::Bool),
        ColumnReader::Int32ColumnReader(reader) => read_typed(reader, rows, leaf, |values| match entries {
            // Without values there may be no dictionary.
            Some(entries) => TypedValues::Numbers(values, entries.get().cloned().unwrap_or_default()),
            None => TypedValues::Int32(values),
        }),
        ColumnReader::Int64ColumnReader(reader) => read_typed(reader, rows, leaf, TypedValues::Int64),
        ColumnReader::FloatColumnReader(reader) => read_typed(reader, rows, leaf, TypedValues::Float),
        ColumnReader::DoubleColumnReader(reader) => read_typed(reader, rows, leaf, TypedValues::Double),
        ColumnReader::ByteArrayColumnReader(reader) => read_typed(reader, rows, leaf, TypedValues::Bytes),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            read_typed(reader, rows, leaf, TypedValues::FixedBytes)
        }
        ColumnReader::Int96ColumnReader(reader) => read_typed(reader, rows, leaf, |values| {
            TypedValues::Wide(values.iter().map(nanoseconds).collect())
        }),
    }?;
    Ok(Values { typed: typed.decoded(leaf.values)?, values: leaf.values, unsigned: leaf.unsigned, rows })
}

/// Returns the time since 1970 of a Julian day and nanoseconds.
fn nanoseconds(value: &Int96) -> i128 {
    const UNIX_EPOCH: i128 = 2_440_588;
    let [low, high, day] = [0, 1, 2].map(|word| i128::from(value.data()[word]));
    (day - UNIX_EPOCH) * 86_400_000_000_000 + (high << 32 | low)
}

impl TypedValues {
    /// Decodes numbers that are stored as bytes.
    fn decoded(self, values: ValueType) -> Result<Self, ParquetError> {
        let bytes: Vec<&[u8]> = match (&self, values) {
            (_, ValueType::Text) => return Ok(self),
            (Self::Bytes(values), _) => values.iter().map(ByteArray::data).collect(),
            (Self::FixedBytes(values), _) => values.iter().map(|value| value.data()).collect(),
            _ => return Ok(self),
        };
        if values == ValueType::Float {
            let half = |bytes: &[u8]| {
                <[u8; 2]>::try_from(bytes).map_or(f32::NAN, |bytes| f16::from_le_bytes(bytes).into())
            };
            return Ok(Self::Float(bytes.into_iter().map(half).collect()));
        }
        let too_large = || ParquetError::General("a decimal has more than 128 bits".into());
        let decimals = bytes.into_iter().map(|bytes| decimal(bytes).ok_or_else(too_large));
        Ok(Self::Wide(decimals.collect::<Result<_, _>>()?))
    }
}

/// Returns a big-endian number in two's complement; `None` if it has more than 128 bits.
fn decimal(bytes: &[u8]) -> Option<i128> {
    let sign = if bytes.first().is_some_and(|&first| first >= 0x80) { 0xff } else { 0 };
    let (extension, bytes) = bytes.split_at(bytes.len().saturating_sub(16));
    let mut all = [sign; 16];
    all[16 - bytes.len()..].copy_from_slice(bytes);
    let value = i128::from_be_bytes(all);
    (extension.iter().all(|&byte| byte == sign) && (value < 0) == (sign == 0xff)).then_some(value)
}

fn read_typed<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    leaf: &Leaf,
    wrap: impl FnOnce(Vec<T::T>) -> TypedValues,
) -> Result<(TypedValues, RowEnds), ParquetError> {
    let (mut defined, mut repeated, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut read = 0;
    while read < rows {
        let (records, _, levels) =
            reader.read_records(rows - read, Some(&mut defined), Some(&mut repeated), &mut values)?;
        if records == 0 && levels == 0 {
            return Err(ParquetError::General(format!("column {} has too few rows", leaf.name)));
        }
        read += records;
    }
    // A value exists if its level is the highest one; without levels all values exist.
    let highest = leaf.defined;
    let mut ends = Vec::with_capacity(rows);
    let mut with_nulls = Vec::new();
    let mut count = 0u32;
    let mut count_value = |level: i16| {
        count += u32::from(level == highest);
        count
    };
    if defined.is_empty() {
        ends.extend(1..=values.len() as u32);
    } else if repeated.is_empty() {
        ends.extend(defined.iter().map(|&level| count_value(level)));
    } else {
        for (at, &level) in defined.iter().enumerate() {
            let end = count_value(level);
            let row = ends.len() as u32;
            if leaf.nulls_in_list && level == highest - 1 && with_nulls.last() != Some(&row) {
                with_nulls.push(row);
            }
            // The next value begins a row.
            if repeated.get(at + 1).is_none_or(|&repeated| repeated == 0) {
                ends.push(end);
            }
        }
    }
    if ends.len() != rows || ends.last().is_some_and(|&end| end as usize != values.len()) {
        return Err(ParquetError::General(format!("column {} has rows that do not add up", leaf.name)));
    }
    Ok((wrap(values), RowEnds { ends, with_nulls }))
}
