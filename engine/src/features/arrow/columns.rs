//! Raw columns from Arrow arrays of any type.
//!
//! An [`ArrowColumn`] stores its values as one flat array of `Float64`, `Int64` or strings; numbers have no nulls.
//! An array that already has this form is not copied.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, LargeStringArray, PrimitiveArray};
use arrow_schema::DataType;

use crate::features::{RawColumn, RawColumnError, RawColumnValues};

/// A raw column of some rows.
#[derive(Debug, Clone)]
pub struct ArrowColumn {
    name: String,
    values: ArrayRef,
    /// Where the values of each row start, then their end; `None`: one value per row.
    offsets: Option<Vec<u32>>,
}

impl ArrowColumn {
    /// Makes a column of an array with one entry per row. Lists become bags: null ones are empty, and nulls in them are
    /// left out. Other nulls are missing numbers, or empty texts.
    ///
    /// # Errors
    /// [`RawColumnError::Type`] if the values are neither numbers nor texts; [`RawColumnError::TooManyValues`].
    pub fn new(name: String, array: &ArrayRef) -> Result<Self, RawColumnError> {
        if let Some(lists) = Lists::of(array) {
            return Self::of_lists(name, &lists);
        }
        let values = canonical(array).ok_or_else(|| unsupported(&name, array.data_type()))?;
        Ok(Self { name, values, offsets: None })
    }

    /// Makes a column whose row `i` has the values from `offsets[i]` to `offsets[i + 1]`.
    ///
    /// # Errors
    /// [`RawColumnError::Type`] if the values are neither numbers nor texts; [`RawColumnError::Offsets`].
    pub fn ragged(name: String, offsets: Vec<u32>, array: &ArrayRef) -> Result<Self, RawColumnError> {
        let values = canonical(array).ok_or_else(|| unsupported(&name, array.data_type()))?;
        let end = offsets.last().map(|&end| end as usize);
        if offsets.first() != Some(&0) || !offsets.is_sorted() || end != Some(values.len()) {
            let values = values.len();
            return Err(RawColumnError::Offsets { column: name, values });
        }
        Ok(Self { name, values, offsets: Some(offsets) })
    }

    fn of_lists(name: String, lists: &Lists<'_>) -> Result<Self, RawColumnError> {
        let unsupported = || unsupported(&name, lists.array.data_type());
        let (mut offsets, mut kept) = (vec![0], Vec::new());
        for row in 0..lists.array.len() {
            if lists.array.is_valid(row) {
                kept.extend(lists.range(row).filter(|&at| !lists.values.is_null(at)));
            }
            offsets.push(u32::try_from(kept.len()).map_err(|_| too_many(&name))?);
        }
        let values = canonical(lists.values).ok_or_else(unsupported)?;
        let first = kept.first().copied().unwrap_or(0);
        let consecutive = kept.iter().enumerate().all(|(number, &at)| at == first + number);
        let values = if consecutive {
            values.slice(first, kept.len())
        } else {
            gather(&values, kept.into_iter().map(Some))
        };
        Ok(Self { name, values, offsets: Some(offsets) })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.offsets.as_ref().map_or(self.values.len(), |offsets| offsets.len() - 1)
    }

    /// Returns some of its rows, without copying their values.
    pub(super) fn slice(&self, rows: Range<usize>) -> Self {
        let name = self.name.clone();
        let Some(offsets) = &self.offsets else {
            return Self { name, values: self.values.slice(rows.start, rows.len()), offsets: None };
        };
        let (first, last) = (offsets[rows.start], offsets[rows.end]);
        let values = self.values.slice(first as usize, (last - first) as usize);
        let offsets = offsets[rows.start..=rows.end].iter().map(|offset| offset - first).collect();
        Self { name, values, offsets: Some(offsets) }
    }

    /// Returns the texts of a column of texts, and nothing for other columns.
    pub(super) fn texts(&self) -> Vec<&str> {
        texts(&self.values).map(Option::unwrap_or_default).collect()
    }

    /// Returns the column for the library; `texts` are its texts.
    pub(super) fn raw<'a>(&'a self, texts: &'a [&'a str]) -> RawColumn<'a> {
        let values = match self.values.data_type() {
            DataType::Float64 => RawColumnValues::Numbers(self.values.as_primitive::<Float64Type>().values()),
            DataType::Int64 => RawColumnValues::Integers(self.values.as_primitive::<Int64Type>().values()),
            _ => RawColumnValues::Texts(texts),
        };
        RawColumn { name: &self.name, values, offsets: self.offsets.as_deref() }
    }
}

pub(super) fn too_many(name: &str) -> RawColumnError {
    RawColumnError::TooManyValues { column: name.to_owned() }
}

fn unsupported(name: &str, found: &DataType) -> RawColumnError {
    RawColumnError::Type {
        column: name.to_owned(),
        found: format!("values of type {found}"),
        expected: "numbers, strings, or lists of them",
    }
}

/// An array of lists.
pub(super) struct Lists<'a> {
    array: &'a ArrayRef,
    pub(super) values: &'a ArrayRef,
}

impl<'a> Lists<'a> {
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

/// Returns a flat array as one of the three kinds; `None` if its type is neither numbers nor texts.
pub(super) fn canonical(array: &ArrayRef) -> Option<ArrayRef> {
    macro_rules! numbers {
        ($type:ty) => {
            Arc::new(numbers(array.as_primitive::<$type>().iter().map(|number| number.map(f64::from))))
        };
    }
    macro_rules! integers {
        ($type:ty) => {
            integers(array.as_primitive::<$type>())
        };
    }
    Some(match array.data_type() {
        DataType::Float64 if array.null_count() == 0 => Arc::clone(array),
        DataType::Float64 => numbers!(Float64Type),
        DataType::Float32 => numbers!(Float32Type),
        DataType::Float16 => numbers!(Float16Type),
        DataType::Boolean => Arc::new(numbers(
            array.as_boolean().iter().map(|value| value.map(|value| f64::from(u8::from(value)))),
        )),
        DataType::Int64 if array.null_count() == 0 => Arc::clone(array),
        DataType::Int8 => integers!(Int8Type),
        DataType::Int16 => integers!(Int16Type),
        DataType::Int32 => integers!(Int32Type),
        DataType::Int64 => integers!(Int64Type),
        DataType::UInt8 => integers!(UInt8Type),
        DataType::UInt16 => integers!(UInt16Type),
        DataType::UInt32 => integers!(UInt32Type),
        DataType::UInt64 => integers!(UInt64Type),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Arc::clone(array),
        DataType::Null => Arc::new(LargeStringArray::new_null(array.len())),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let keys = dictionary.normalized_keys();
            let keys = keys.into_iter().enumerate().map(|(row, key)| array.is_valid(row).then_some(key));
            gather(&canonical(dictionary.values())?, keys)
        }
        _ => return None,
    })
}

fn numbers(numbers: impl Iterator<Item = Option<f64>>) -> Float64Array {
    numbers.map(|number| number.unwrap_or(f64::NAN)).collect::<Vec<_>>().into()
}

/// Integers, or their decimal digits if there are nulls, which have no integer, or integers beyond 64 bits with sign.
/// The library reads digits as it reads integers.
fn integers<T>(array: &PrimitiveArray<T>) -> ArrayRef
where
    T: arrow_array::ArrowPrimitiveType,
    T::Native: TryInto<i64> + ToString,
{
    let all: Option<Vec<i64>> = array.iter().map(|integer| integer?.try_into().ok()).collect();
    match all {
        Some(integers) => Arc::new(Int64Array::from(integers)),
        None => {
            let digits = array.iter().map(|integer| integer.map(|integer| integer.to_string()));
            Arc::new(digits.collect::<LargeStringArray>())
        }
    }
}

/// Gathers values of an array of one of the three kinds; `None` becomes a missing number or an empty text.
fn gather(array: &ArrayRef, at: impl Iterator<Item = Option<usize>>) -> ArrayRef {
    match array.data_type() {
        DataType::Float64 => {
            let values = array.as_primitive::<Float64Type>();
            Arc::new(numbers(at.map(|at| at.map(|at| values.value(at)))))
        }
        DataType::Int64 => {
            let values = array.as_primitive::<Int64Type>();
            integers(&at.map(|at| at.map(|at| values.value(at))).collect::<Int64Array>())
        }
        _ => {
            let values: Vec<_> = texts(array).collect();
            Arc::new(at.map(|at| at.and_then(|at| values[at])).collect::<LargeStringArray>())
        }
    }
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
