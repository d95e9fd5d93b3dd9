//! Raw columns from Arrow arrays of any type.
//!
//! An [`ArrowColumn`] stores its values as one flat array of `Float64`, `Int64`, strings or, for all other exact
//! values, `Decimal128`; numbers have no nulls. An array that already has this form is not copied.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, Decimal128Array, Float64Array, Int64Array, LargeStringArray, PrimitiveArray,
};
use arrow_schema::DataType;
use arrow_schema::TimeUnit as ArrowUnit;
use rankine_reader::convert::{TimeUnit, ValueType, ValueUse};

use crate::features::{RawColumn, RawColumnError, RawColumnValues};

/// A raw column of some rows.
#[derive(Debug, Clone)]
pub struct ArrowColumn {
    name: String,
    values: FlatValues,
    /// Where the values of each row start, then their end; `None`: one value per row.
    offsets: Option<Vec<u32>>,
    /// The first row whose list has a null text, which is left out.
    null_text: Option<usize>,
}

impl ArrowColumn {
    /// Makes a column of an array with one entry per row. Lists, and lists of lists, become bags of all their values:
    /// null ones are empty. A null number in a list is no category and no weight; null texts in lists are left out.
    /// Other nulls are missing numbers, or empty texts.
    ///
    /// # Errors
    /// [`RawColumnError::Type`] if values of this type cannot be read; [`RawColumnError::TooManyValues`].
    pub fn new(name: String, array: &ArrayRef) -> Result<Self, RawColumnError> {
        if let Some(lists) = Lists::of(array) {
            return Self::of_lists(name, &lists);
        }
        let values = FlatValues::of(array).ok_or_else(|| unsupported(&name, array.data_type()))?;
        Ok(Self { name, values, offsets: None, null_text: None })
    }

    /// Makes a column whose row `i` has the values from `offsets[i]` to `offsets[i + 1]`.
    ///
    /// # Errors
    /// [`RawColumnError::Type`] if values of this type cannot be read; [`RawColumnError::Offsets`].
    pub fn ragged(name: String, offsets: Vec<u32>, array: &ArrayRef) -> Result<Self, RawColumnError> {
        let values = FlatValues::of(array).ok_or_else(|| unsupported(&name, array.data_type()))?;
        let end = offsets.last().map(|&end| end as usize);
        if offsets.first() != Some(&0) || !offsets.is_sorted() || end != Some(values.array.len()) {
            let values = values.array.len();
            return Err(RawColumnError::Offsets { column: name, values });
        }
        Ok(Self { name, values, offsets: Some(offsets), null_text: None })
    }

    fn of_lists(name: String, lists: &Lists<'_>) -> Result<Self, RawColumnError> {
        let unsupported = || unsupported(&name, lists.array.data_type());
        let (mut offsets, mut kept, mut null_text) = (vec![0], Vec::new(), None);
        for row in 0..lists.array.len() {
            if !lists.append_to(row, &mut kept) {
                null_text = null_text.or(Some(row));
            }
            offsets.push(u32::try_from(kept.len()).map_err(|_| too_many(&name))?);
        }
        let values = FlatValues::of(lists.innermost()).ok_or_else(unsupported)?;
        let first = kept.first().copied().unwrap_or(0);
        let consecutive = kept.iter().enumerate().all(|(number, &at)| at == first + number);
        let values = if consecutive && values.array.null_count() == 0 {
            values.slice(first, kept.len())
        } else {
            values.gather(kept.into_iter().map(Some))
        };
        Ok(Self { name, values, offsets: Some(offsets), null_text })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.offsets.as_ref().map_or(self.values.array.len(), |offsets| offsets.len() - 1)
    }

    /// Returns the first row whose list has a null text.
    pub(super) fn null_text(&self) -> Option<usize> {
        self.null_text
    }

    /// Returns some of its rows, without copying their values; [`Self::null_text`] is lost.
    pub(super) fn slice(&self, rows: Range<usize>) -> Self {
        let (name, null_text) = (self.name.clone(), None);
        let Some(offsets) = &self.offsets else {
            return Self {
                name,
                values: self.values.slice(rows.start, rows.len()),
                offsets: None,
                null_text,
            };
        };
        let (first, last) = (offsets[rows.start], offsets[rows.end]);
        let values = self.values.slice(first as usize, (last - first) as usize);
        let offsets = offsets[rows.start..=rows.end].iter().map(|offset| offset - first).collect();
        Self { name, values, offsets: Some(offsets), null_text }
    }

    /// Returns the values in the form that the library takes, if it is not the form in which they are stored.
    pub(super) fn copies(&self) -> Copies<'_> {
        let FlatValues { array, .. } = &self.values;
        Copies {
            texts: texts(array).map(Option::unwrap_or_default).collect(),
            exact: match array.data_type() {
                DataType::Decimal128(..) => array.as_primitive::<Decimal128Type>().iter().collect(),
                _ => Vec::new(),
            },
        }
    }

    /// Returns the column for the library.
    pub(super) fn raw<'a>(&'a self, copies: &'a Copies<'a>) -> RawColumn<'a> {
        let FlatValues { array, values } = &self.values;
        let values = match array.data_type() {
            DataType::Float64 => RawColumnValues::Numbers(array.as_primitive::<Float64Type>().values()),
            DataType::Int64 => RawColumnValues::Integers(array.as_primitive::<Int64Type>().values()),
            DataType::Decimal128(..) => RawColumnValues::Exact(*values, &copies.exact),
            _ => RawColumnValues::Texts(&copies.texts),
        };
        RawColumn { name: &self.name, values, offsets: self.offsets.as_deref() }
    }
}

/// Values of a column that are copied for the library.
pub(super) struct Copies<'a> {
    texts: Vec<&'a str>,
    exact: Vec<Option<i128>>,
}

pub(super) fn too_many(name: &str) -> RawColumnError {
    RawColumnError::TooManyValues { column: name.to_owned() }
}

fn unsupported(name: &str, found: &DataType) -> RawColumnError {
    RawColumnError::Type {
        column: name.to_owned(),
        found: format!("values of type {found}"),
        expected: "numbers, strings, dates, times, or lists of them",
    }
}

/// An array of lists.
pub(super) struct Lists<'a> {
    array: &'a ArrayRef,
    pub(super) values: &'a ArrayRef,
}

impl<'a> Lists<'a> {
    /// Appends where the values of a row are in the innermost array, and returns whether they are all of its values:
    /// null texts are left out.
    fn append_to(&self, row: usize, kept: &mut Vec<usize>) -> bool {
        if self.array.is_null(row) {
            return true;
        }
        let range = self.range(row);
        let valid = range.clone().filter(|&at| !self.values.is_null(at));
        match Self::of(self.values) {
            // Each is appended, whatever the others lack.
            Some(inner) => valid.map(|at| inner.append_to(at, kept)).filter(|&all| !all).count() == 0,
            // Weights would belong to other categories if one of them was left out here.
            None if is_number(self.values.data_type()) => {
                kept.extend(range);
                true
            }
            None => {
                let before = kept.len();
                kept.extend(valid);
                kept.len() - before == range.len()
            }
        }
    }

    /// Returns the values of the lists; if they are lists, their values.
    fn innermost(&self) -> &'a ArrayRef {
        Self::of(self.values).map_or(self.values, |inner| inner.innermost())
    }

    pub(super) fn of(array: &'a ArrayRef) -> Option<Self> {
        let values = match array.data_type() {
            DataType::List(_) => array.as_list::<i32>().values(),
            DataType::LargeList(_) => array.as_list::<i64>().values(),
            DataType::FixedSizeList(..) => array.as_fixed_size_list().values(),
            _ => return None,
        };
        Some(Self { array, values })
    }

    /// Where the values of a row are.
    pub(super) fn range(&self, row: usize) -> Range<usize> {
        match self.array.data_type() {
            DataType::List(_) => {
                let offsets = self.array.as_list::<i32>().offsets();
                offsets[row] as usize..offsets[row + 1] as usize
            }
            DataType::LargeList(_) => {
                let offsets = self.array.as_list::<i64>().offsets();
                offsets[row] as usize..offsets[row + 1] as usize
            }
            _ => {
                let lists = self.array.as_fixed_size_list();
                let first = lists.value_offset_at(row);
                first..first + lists.value_length() as usize
            }
        }
    }
}

/// Values of one type.
#[derive(Debug, Clone)]
pub(super) struct FlatValues {
    /// `Float64` or `Int64` without nulls, strings, or `Decimal128`, which holds exact values whatever its scale is.
    pub(super) array: ArrayRef,
    pub(super) values: ValueType,
}

impl FlatValues {
    /// Returns the values of a flat array; `None` if values of its type cannot be read.
    pub(super) fn of(array: &ArrayRef) -> Option<Self> {
        if let DataType::Dictionary(..) = array.data_type() {
            let dictionary = array.as_any_dictionary();
            let keys = dictionary.normalized_keys();
            let keys = keys.into_iter().enumerate().map(|(row, key)| array.is_valid(row).then_some(key));
            return Some(Self::of(dictionary.values())?.gather(keys));
        }
        let values = value_type(array.data_type())?;
        let array = match values {
            ValueType::Float | ValueType::Boolean => float_array(array)?,
            ValueType::Text => text_array(array)?,
            ValueType::Integer if *array.data_type() == DataType::Int64 && array.null_count() == 0 => {
                Arc::clone(array)
            }
            _ => exact_array(array)?,
        };
        Some(Self { array, values })
    }

    fn slice(&self, first: usize, count: usize) -> Self {
        Self { array: self.array.slice(first, count), values: self.values }
    }

    /// Gathers values; `None` becomes a null, or NaN.
    fn gather(&self, at: impl Iterator<Item = Option<usize>>) -> Self {
        let array: ArrayRef = match self.array.data_type() {
            DataType::Float64 => {
                let values = self.array.as_primitive::<Float64Type>();
                Arc::new(numbers(at.map(|at| at.map(|at| values.value(at)))))
            }
            DataType::Int64 => {
                let values = self.array.as_primitive::<Int64Type>();
                integers(at.map(|at| at.map(|at| values.value(at).into())).collect())
            }
            DataType::Decimal128(..) => {
                let values = self.array.as_primitive::<Decimal128Type>();
                let valid = |at: usize| values.is_valid(at).then(|| values.value(at));
                let exact = at.map(|at| at.and_then(valid));
                match self.values {
                    // Without the nulls of lists, they may fit.
                    ValueType::Integer => integers(exact.collect()),
                    _ => Arc::new(exact.collect::<Decimal128Array>()),
                }
            }
            _ => {
                let values: Vec<_> = texts(&self.array).collect();
                Arc::new(at.map(|at| at.and_then(|at| values[at])).collect::<LargeStringArray>())
            }
        };
        Self { array, values: self.values }
    }
}

/// Returns whether values are numbers, which may be weights.
fn is_number(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_number(values),
        other => value_type(other).is_some_and(|values| values.fits(ValueUse::Number)),
    }
}

/// Returns the type of values; `None` if they cannot be read.
fn value_type(data_type: &DataType) -> Option<ValueType> {
    let unit = |unit: &ArrowUnit| match unit {
        ArrowUnit::Second => TimeUnit::Second,
        ArrowUnit::Millisecond => TimeUnit::Millisecond,
        ArrowUnit::Microsecond => TimeUnit::Microsecond,
        ArrowUnit::Nanosecond => TimeUnit::Nanosecond,
    };
    Some(match data_type {
        DataType::Boolean => ValueType::Boolean,
        DataType::Float16 | DataType::Float32 | DataType::Float64 => ValueType::Float,
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) | DataType::Decimal128(_, scale) => {
            ValueType::Decimal { scale: *scale }
        }
        DataType::Decimal256(digits, scale) if *digits <= 38 => ValueType::Decimal { scale: *scale },
        DataType::Date32 | DataType::Date64 => ValueType::Date,
        DataType::Time32(of) | DataType::Time64(of) => ValueType::Time(unit(of)),
        DataType::Timestamp(of, _) => ValueType::Timestamp(unit(of)),
        DataType::Null | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ValueType::Text,
        // Strings of writers that do not say so, in Parquet as well.
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            ValueType::Text
        }
        integer if integer.is_integer() => ValueType::Integer,
        _ => return None,
    })
}

fn float_array(array: &ArrayRef) -> Option<ArrayRef> {
    macro_rules! floats {
        ($type:ty) => {
            numbers(array.as_primitive::<$type>().iter().map(|number| number.map(f64::from)))
        };
    }
    Some(Arc::new(match array.data_type() {
        DataType::Float64 if array.null_count() == 0 => return Some(Arc::clone(array)),
        DataType::Float64 => floats!(Float64Type),
        DataType::Float32 => floats!(Float32Type),
        DataType::Float16 => floats!(Float16Type),
        DataType::Boolean => {
            numbers(array.as_boolean().iter().map(|value| value.map(|value| f64::from(u8::from(value)))))
        }
        _ => return None,
    }))
}

/// Returns an array of strings; `None` for bytes that are not UTF-8.
fn text_array(array: &ArrayRef) -> Option<ArrayRef> {
    let strings: Vec<Option<&[u8]>> = match array.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => return Some(Arc::clone(array)),
        DataType::Null => return Some(Arc::new(LargeStringArray::new_null(array.len()))),
        DataType::Binary => array.as_binary::<i32>().iter().collect(),
        DataType::LargeBinary => array.as_binary::<i64>().iter().collect(),
        DataType::BinaryView => array.as_binary_view().iter().collect(),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().iter().collect(),
        _ => return None,
    };
    let strings = strings.into_iter().map(|bytes| bytes.map(std::str::from_utf8).transpose());
    Some(Arc::new(strings.collect::<Result<LargeStringArray, _>>().ok()?))
}

/// Returns an array of exact values: `Int64` for integers without nulls if they fit it, and `Decimal128` for others.
fn exact_array(array: &ArrayRef) -> Option<ArrayRef> {
    macro_rules! exact {
        ($type:ty) => {
            Arc::new(widened::<$type>(array, i128::from))
        };
    }
    Some(match array.data_type() {
        DataType::Int8 => integer_array::<Int8Type>(array),
        DataType::Int16 => integer_array::<Int16Type>(array),
        DataType::Int32 => integer_array::<Int32Type>(array),
        DataType::Int64 => integer_array::<Int64Type>(array),
        DataType::UInt8 => integer_array::<UInt8Type>(array),
        DataType::UInt16 => integer_array::<UInt16Type>(array),
        DataType::UInt32 => integer_array::<UInt32Type>(array),
        DataType::UInt64 => integer_array::<UInt64Type>(array),
        DataType::Decimal32(..) => exact!(Decimal32Type),
        DataType::Decimal64(..) => exact!(Decimal64Type),
        DataType::Decimal128(..) => exact!(Decimal128Type),
        // Its digits fit 128 bits.
        DataType::Decimal256(..) => Arc::new(widened::<Decimal256Type>(array, |value| value.as_i128())),
        DataType::Date32 => exact!(Date32Type),
        // Milliseconds of whole days.
        DataType::Date64 => {
            Arc::new(widened::<Date64Type>(array, |value| i128::from(value).div_euclid(86_400_000)))
        }
        DataType::Time32(ArrowUnit::Second) => exact!(Time32SecondType),
        DataType::Time32(_) => exact!(Time32MillisecondType),
        DataType::Time64(ArrowUnit::Microsecond) => exact!(Time64MicrosecondType),
        DataType::Time64(_) => exact!(Time64NanosecondType),
        DataType::Timestamp(ArrowUnit::Second, _) => exact!(TimestampSecondType),
        DataType::Timestamp(ArrowUnit::Millisecond, _) => exact!(TimestampMillisecondType),
        DataType::Timestamp(ArrowUnit::Microsecond, _) => exact!(TimestampMicrosecondType),
        DataType::Timestamp(ArrowUnit::Nanosecond, _) => exact!(TimestampNanosecondType),
        _ => return None,
    })
}

fn integer_array<T: ArrowPrimitiveType>(array: &ArrayRef) -> ArrayRef
where
    T::Native: TryInto<i64> + Into<i128>,
{
    let values: &PrimitiveArray<T> = array.as_primitive();
    let all: Option<Vec<i64>> = values.iter().map(|integer| integer?.try_into().ok()).collect();
    match all {
        Some(integers) => Arc::new(Int64Array::from(integers)),
        None => Arc::new(widened::<T>(array, T::Native::into)),
    }
}

/// Returns integers as `Int64` if all of them are there and fit it.
fn integers(exact: Decimal128Array) -> ArrayRef {
    let all: Option<Vec<i64>> = exact.iter().map(|integer| integer?.try_into().ok()).collect();
    match all {
        Some(integers) => Arc::new(Int64Array::from(integers)),
        None => Arc::new(exact),
    }
}

fn widened<T: ArrowPrimitiveType>(array: &ArrayRef, widen: impl Fn(T::Native) -> i128) -> Decimal128Array {
    let values: &PrimitiveArray<T> = array.as_primitive();
    values.iter().map(|value| value.map(&widen)).collect()
}

fn numbers(numbers: impl Iterator<Item = Option<f64>>) -> Float64Array {
    numbers.map(|number| number.unwrap_or(f64::NAN)).collect::<Vec<_>>().into()
}

/// The texts of an array of texts.
fn texts(array: &ArrayRef) -> Box<dyn Iterator<Item = Option<&str>> + '_> {
    match array.data_type() {
        DataType::Utf8 => Box::new(array.as_string::<i32>().iter()),
        DataType::LargeUtf8 => Box::new(array.as_string::<i64>().iter()),
        DataType::Utf8View => Box::new(array.as_string_view().iter()),
        _ => Box::new(std::iter::empty()),
    }
}
