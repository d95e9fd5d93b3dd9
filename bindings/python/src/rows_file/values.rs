//! Values of Arrow's arrays as a file of Parquet has them.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, TimeUnit};
use rankine_reader::convert::{TableColumn, TableRows, TableValues};

/// Returns whether [`table_rows`] reads values of a type; a file has all others, too.
pub(super) fn is_direct(values: &DataType) -> bool {
    match values {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            is_direct(field.data_type()) && !matches!(field.data_type(), DataType::Dictionary(..))
        }
        DataType::Dictionary(_, values) => is_text(values),
        DataType::Boolean | DataType::Float16 | DataType::Float32 | DataType::Float64 | DataType::Date32 => {
            true
        }
        DataType::Decimal128(_, scale) => *scale >= 0,
        DataType::Timestamp(unit, _) => *unit != TimeUnit::Second,
        other => other.is_integer() || is_text(other),
    }
}

fn is_text(values: &DataType) -> bool {
    matches!(
        values,
        DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_)
    )
}

/// Returns the rows of a batch. The type of each column must be one for which [`is_direct`] returns true.
pub(super) fn table_rows(batch: &RecordBatch) -> TableRows {
    TableRows { rows: batch.num_rows(), columns: batch.columns().iter().map(column).collect() }
}

fn column(array: &ArrayRef) -> TableColumn {
    if let Some(inner) = list_values(array) {
        let (mut kept, mut ends) = (Vec::new(), Vec::with_capacity(array.len()));
        let mut with_nulls = Vec::new();
        for row in 0..array.len() {
            if append_list(array, row, &mut kept) {
                with_nulls.push(row as u32);
            }
            ends.push(kept.len() as u32);
        }
        let mut innermost = inner;
        while let Some(inner) = list_values(innermost) {
            innermost = inner;
        }
        return TableColumn { values: values(innermost, Some(&kept)), ends: Some(ends), with_nulls };
    }
    // A value of a dictionary may be null, too.
    let Some(nulls) = array.logical_nulls().filter(|nulls| nulls.null_count() > 0) else {
        return TableColumn { values: values(array, None), ends: None, with_nulls: Vec::new() };
    };
    let kept: Vec<_> = nulls.valid_indices().collect();
    let count = |end: &mut u32, valid: bool| {
        *end += u32::from(valid);
        Some(*end)
    };
    let ends = nulls.iter().scan(0, count).collect();
    TableColumn { values: values(array, Some(&kept)), ends: Some(ends), with_nulls: Vec::new() }
}

/// Returns the values of an array of lists.
fn list_values(array: &ArrayRef) -> Option<&ArrayRef> {
    match array.data_type() {
        DataType::List(_) => Some(array.as_list::<i32>().values()),
        DataType::LargeList(_) => Some(array.as_list::<i64>().values()),
        DataType::FixedSizeList(..) => Some(array.as_fixed_size_list().values()),
        _ => None,
    }
}

/// Appends where the values of a list are in the innermost array, without nulls; returns whether there are some.
fn append_list(array: &ArrayRef, row: usize, kept: &mut Vec<usize>) -> bool {
    let Some(values) = list_values(array) else {
        kept.push(row);
        return false;
    };
    if array.is_null(row) {
        return false;
    }
    let range = match array.data_type() {
        DataType::List(_) => {
            let ends = array.as_list::<i32>().offsets();
            ends[row] as usize..ends[row + 1] as usize
        }
        DataType::LargeList(_) => {
            let ends = array.as_list::<i64>().offsets();
            ends[row] as usize..ends[row + 1] as usize
        }
        _ => {
            let lists = array.as_fixed_size_list();
            let first = lists.value_offset_at(row);
            first..first + lists.value_length() as usize
        }
    };
    let is_innermost = list_values(values).is_none();
    let mut has_nulls = false;
    for at in range {
        match values.is_valid(at) {
            true => has_nulls |= append_list(values, at, kept),
            // A list that is null within a list is an empty one.
            false => has_nulls |= is_innermost,
        }
    }
    has_nulls
}

/// Returns all values of an array, or those `at` some positions.
fn values(array: &ArrayRef, at: Option<&[usize]>) -> TableValues {
    macro_rules! numbers {
        ($variant:ident, $type:ty, $map:expr) => {{
            let values = array.as_primitive::<$type>().values();
            TableValues::$variant(match at {
                None => values.iter().copied().map($map).collect(),
                Some(at) => at.iter().map(|&at| values[at]).map($map).collect(),
            })
        }};
    }
    match array.data_type() {
        DataType::Boolean => {
            let values = array.as_boolean().values();
            TableValues::Bool(match at {
                None => values.iter().collect(),
                Some(at) => at.iter().map(|&at| values.value(at)).collect(),
            })
        }
        DataType::Int8 => numbers!(Int32, Int8Type, i32::from),
        DataType::Int16 => numbers!(Int32, Int16Type, i32::from),
        DataType::Int32 => numbers!(Int32, Int32Type, |value| value),
        DataType::Int64 => numbers!(Int64, Int64Type, |value| value),
        DataType::UInt8 => numbers!(Int32, UInt8Type, i32::from),
        DataType::UInt16 => numbers!(Int32, UInt16Type, i32::from),
        DataType::UInt32 => numbers!(Int32, UInt32Type, u32::cast_signed),
        DataType::UInt64 => numbers!(Int64, UInt64Type, u64::cast_signed),
        DataType::Float16 => numbers!(Float, Float16Type, |value| value.to_f32()),
        DataType::Float32 => numbers!(Float, Float32Type, |value| value),
        DataType::Float64 => numbers!(Double, Float64Type, |value| value),
        DataType::Decimal128(..) => numbers!(Decimal, Decimal128Type, |value| value),
        DataType::Date32 => numbers!(Int32, Date32Type, |value| value),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            numbers!(Int64, TimestampMillisecondType, |value| value)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            numbers!(Int64, TimestampMicrosecondType, |value| value)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            numbers!(Int64, TimestampNanosecondType, |value| value)
        }
        _ => texts(array, at),
    }
}

fn texts(array: &ArrayRef, at: Option<&[usize]>) -> TableValues {
    match array.data_type() {
        DataType::Utf8 => {
            let texts = array.as_string::<i32>();
            match at {
                None => consecutive(texts.value_offsets(), texts.value_data()),
                Some(at) => gathered(at.iter().map(|&at| texts.value(at).as_bytes())),
            }
        }
        DataType::LargeUtf8 => {
            let texts = array.as_string::<i64>();
            match at {
                None => consecutive(texts.value_offsets(), texts.value_data()),
                Some(at) => gathered(at.iter().map(|&at| texts.value(at).as_bytes())),
            }
        }
        DataType::Binary => gathered(positions(array, at).map(|at| array.as_binary::<i32>().value(at))),
        DataType::LargeBinary => gathered(positions(array, at).map(|at| array.as_binary::<i64>().value(at))),
        DataType::Utf8View => {
            gathered(positions(array, at).map(|at| array.as_string_view().value(at).as_bytes()))
        }
        DataType::BinaryView => gathered(positions(array, at).map(|at| array.as_binary_view().value(at))),
        DataType::FixedSizeBinary(_) => {
            gathered(positions(array, at).map(|at| array.as_fixed_size_binary().value(at)))
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            if dictionary.values().is_empty() {
                return gathered(std::iter::empty());
            }
            let keys = dictionary.normalized_keys();
            let keys: Vec<_> = positions(array, at).map(|at| keys[at]).collect();
            texts(dictionary.values(), Some(&keys))
        }
        other => unreachable!("values of type {other} are not direct"),
    }
}

fn positions<'a>(array: &ArrayRef, at: Option<&'a [usize]>) -> Box<dyn Iterator<Item = usize> + 'a> {
    match at {
        None => Box::new(0..array.len()),
        Some(at) => Box::new(at.iter().copied()),
    }
}

/// Copies texts that are one after the other.
fn consecutive<O: Copy + TryInto<usize>>(offsets: &[O], bytes: &[u8]) -> TableValues {
    let offset = |&offset: &O| offset.try_into().unwrap_or(0);
    let (first, last) = (offset(&offsets[0]), offset(&offsets[offsets.len() - 1]));
    let ends = offsets[1..].iter().map(|end| offset(end) - first).collect();
    TableValues::Texts { bytes: bytes[first..last].to_vec(), ends }
}

fn gathered<'a>(texts: impl Iterator<Item = &'a [u8]>) -> TableValues {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for text in texts {
        bytes.extend_from_slice(text);
        ends.push(bytes.len());
    }
    TableValues::Texts { bytes, ends }
}
