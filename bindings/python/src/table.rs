//! Rows of raw columns, from whatever the caller has: a table of another library, or arrays and lists by name.

use std::panic::RefUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::builder::LargeStringBuilder;
use arrow_array::{ArrayRef, Float64Array, Int64Array, LargeStringArray, RecordBatch, UInt64Array};
use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};
use numpy::{PyArray1, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBool, PyFloat, PyList, PyString, PyTuple};
use rankine_base::nearest::no_column;
use rankine_engine::ranker::{ArrowColumn, ArrowRows};

use crate::array::{Array, Scalar, array_of, data, fitting};
use crate::arrow::{Batches, has_tables, joined};
use crate::error::row_error;

/// Returns the rows of a table or a mapping, in one or several pieces, with the columns that are needed. Others may be
/// there, and are not read.
pub(crate) fn rows_of(data: &Bound<'_, PyAny>, needed: &[String]) -> PyResult<Vec<ArrowRows>> {
    match table_of(data, needed)? {
        Some(batches) => batches.iter().map(|batch| batch.try_into().map_err(row_error)).collect(),
        None => Ok(vec![of_mapping(data, needed)?]),
    }
}

/// Returns the rows of a table or a mapping as a whole, like [`rows_of`].
pub(crate) fn joined_rows_of(data: &Bound<'_, PyAny>, needed: &[String]) -> PyResult<ArrowRows> {
    match table_of(data, needed)? {
        Some(batches) => ArrowRows::try_from(&joined(&batches)?).map_err(row_error),
        None => of_mapping(data, needed),
    }
}

/// Returns a data frame of pandas without its index, which it would export as a column; any other object unchanged.
pub(crate) fn without_index<'py>(data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match data.getattr_opt("reset_index")? {
        Some(reset) => reset.call((), Some(&[("drop", true)].into_py_dict(data.py())?)),
        None => Ok(data.clone()),
    }
}

/// Returns the record batches of a table, with the needed columns; `None` if the object is a mapping.
fn table_of(data: &Bound<'_, PyAny>, needed: &[String]) -> PyResult<Option<Vec<RecordBatch>>> {
    if !has_tables(data)? {
        return Ok(None);
    }
    let batches = Batches::of(&without_index(data)?)?;
    let schema = batches.schema();
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().clone()).collect();
    check_needed(data, &names, needed)?;
    let positions: Vec<_> = (0..names.len()).filter(|&at| needed.contains(&names[at])).collect();
    let project = |batch: &RecordBatch| batch.project(&positions).map_err(row_error);
    batches.collect()?.iter().map(project).collect::<PyResult<_>>().map(Some)
}

/// Checks that data whose columns have these names have all columns that are needed.
fn check_needed(data: &Bound<'_, PyAny>, names: &[String], needed: &[String]) -> PyResult<()> {
    let Some(missing) = needed.iter().find(|name| !names.contains(name)) else { return Ok(()) };
    let lacks = no_column(missing, "", names, |name| needed.iter().any(|needed| needed == name));
    Err(row_error(format!("the {} {lacks}", data.get_type().name()?)))
}

fn of_mapping(data: &Bound<'_, PyAny>, needed: &[String]) -> PyResult<ArrowRows> {
    let Some(items) = data.getattr_opt("items")? else {
        let found = data.get_type().name()?;
        return Err(row_error(format!(
            "a {found} has no named columns: give a mapping from names to arrays, a data frame or an Arrow table"
        )));
    };
    let (mut names, mut columns) = (Vec::new(), Vec::new());
    for item in items.call0()?.try_iter()? {
        let (name, values): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item?.extract()?;
        // A name that is no string is none of the model's.
        let Ok(name) = name.extract::<String>() else { continue };
        if needed.contains(&name) {
            columns.push(column(name.clone(), &values)?);
        }
        names.push(name);
    }
    check_needed(data, &names, needed)?;
    let rows = columns.first().map_or(0, ArrowColumn::rows);
    ArrowRows::new(rows, columns).map_err(row_error)
}

/// Makes a column of an array, a list with an entry per row, or a tuple of offsets and values.
fn column(name: String, values: &Bound<'_, PyAny>) -> PyResult<ArrowColumn> {
    if let Ok(pair) = values.cast::<PyTuple>() {
        let Ok((offsets, values)) = pair.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() else {
            let found = pair.len();
            return Err(row_error(format!(
                "column {name} is a tuple of length {found}, but a tuple must be (offsets, values): pass rows as a list"
            )));
        };
        let offsets = offsets_of(&name, &offsets)?;
        let values = flat(&name, &values)?;
        return ArrowColumn::ragged(name, offsets, &values).map_err(row_error);
    }
    if let Ok(list) = values.cast::<PyList>()
        && list.iter().any(|row| is_sequence(&row))
    {
        return nested(name, list);
    }
    if let Ok(array) = array_of(values)
        && array.ndim() == 2
    {
        let shape = array.shape();
        let (rows, count) = (shape[0], shape[1]);
        let offsets = (0..=rows).map(|row| u32::try_from(row * count));
        let offsets = offsets
            .collect::<Result<_, _>>()
            .map_err(|_| row_error(format!("column {name} is too large")))?;
        let values = flat(&name, &array.call_method1("reshape", (-1,))?)?;
        return ArrowColumn::ragged(name, offsets, &values).map_err(row_error);
    }
    let values = flat(&name, values)?;
    ArrowColumn::new(name, &values).map_err(row_error)
}

fn is_sequence(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyTuple>()
        || value.cast::<PyUntypedArray>().is_ok()
}

/// Makes a column of a list of lists; `None` is an empty list.
fn nested(name: String, rows: &Bound<'_, PyList>) -> PyResult<ArrowColumn> {
    let (mut offsets, values) = (vec![0], PyList::empty(rows.py()));
    for (number, row) in rows.iter().enumerate() {
        if is_sequence(&row) {
            row.try_iter()?.try_for_each(|value| values.append(value?))?;
        } else if !row.is_none() {
            return Err(row_error(format!(
                "column {name}, row {number}: {} is not a list, as other rows are",
                row.repr()?
            )));
        }
        let end =
            u32::try_from(values.len()).map_err(|_| row_error(format!("column {name} is too large")))?;
        offsets.push(end);
    }
    let values = list(&name, &values)?;
    ArrowColumn::ragged(name, offsets, &values).map_err(row_error)
}

/// Returns offsets as the library has them.
pub(crate) fn offsets_of(name: &str, offsets: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let wrong = |what: String| row_error(format!("column {name}: its offsets {what}"));
    let Ok(array) = array_of(offsets) else { return Err(wrong("are not an array".into())) };
    if let Ok(offsets) = array.cast::<PyArray1<u32>>()
        && let Ok(offsets) = offsets.to_vec()
    {
        return Ok(offsets);
    }
    let kind = array.dtype().kind();
    if array.ndim() != 1 || !(kind == b'i' || kind == b'u') {
        let (shape, dtype) = (array.shape(), array.dtype());
        return Err(wrong(format!(
            "have the shape {shape:?} and the type {dtype}; expected one dimension of integers"
        )));
    }
    let offsets = buffer::<i64>(array)?;
    let offset = |&offset: &i64| {
        u32::try_from(offset).map_err(|_| wrong(format!("must be from 0 to {}, not {offset}", u32::MAX)))
    };
    offsets.iter().map(offset).collect()
}

/// Returns a flat array of numbers, texts or nulls.
fn flat(name: &str, values: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    if let Ok(values) = values.cast::<PyList>() {
        return list(name, values);
    }
    let unfit = |what: String| row_error(format!("column {name} {what}"));
    let Ok(array) = array_of(values) else {
        return Err(unfit(format!("is a {}; expected an array or a list", values.get_type().name()?)));
    };
    if array.ndim() != 1 {
        return Err(unfit(format!("has the shape {:?}; expected one entry per row", array.shape())));
    }
    let (kind, bytes) = (array.dtype().kind(), array.dtype().itemsize());
    Ok(match kind {
        b'f' | b'b' => Arc::new(Float64Array::new(buffer(array)?, None)),
        b'u' if bytes == 8 => Arc::new(UInt64Array::new(buffer(array)?, None)),
        b'i' | b'u' => Arc::new(Int64Array::new(buffer(array)?, None)),
        b'U' | b'O' | b'T' => list(name, array.call_method0("tolist")?.cast::<PyList>()?)?,
        _ => return Err(unfit(format!("has values of type {}; expected numbers or strings", array.dtype()))),
    })
}

/// Returns the scalars of a NumPy array, which are converted and copied only if they have another type or are not
/// consecutive.
fn buffer<T: Scalar + ArrowNativeType>(array: Array<'_>) -> PyResult<ScalarBuffer<T>> {
    let array = fitting::<T>(array)?;
    let len = array.len();
    let Some(data) = NonNull::new(data(&array)).filter(|_| len > 0) else { return Ok(Vec::new().into()) };
    let owner = Arc::new(Owner { _array: array.unbind() });
    // SAFETY: The array has `len` scalars of the type, consecutive and aligned, and its owner keeps it. Any bits are a
    // valid scalar, so that a write of another thread changes numbers only.
    let buffer = unsafe { Buffer::from_custom_allocation(data, len * size_of::<T>(), owner) };
    Ok(buffer.into())
}

/// Keeps an array whose scalars are in use.
struct Owner {
    _array: Py<PyUntypedArray>,
}

impl RefUnwindSafe for Owner {}

/// Makes an array of the entries of a list: texts, integers or numbers, and `None` or NaN where one is missing.
fn list(name: &str, list: &Bound<'_, PyList>) -> PyResult<ArrayRef> {
    let is_missing = |item: &Bound<'_, PyAny>| {
        item.is_none() || item.cast::<PyFloat>().is_ok_and(|number| number.value().is_nan())
    };
    let wrong = |row: usize, item: &Bound<'_, PyAny>, expected: &str| {
        let item = item.repr().map_or_else(|_| "an entry".into(), |text| text.to_string());
        row_error(format!("column {name}, row {row}: {item} is not {expected}"))
    };
    let items: Vec<_> = list.iter().map(|item| (!is_missing(&item)).then_some(item)).collect();
    let present = || items.iter().enumerate().filter_map(|(row, item)| Some((row, item.as_ref()?)));
    if present().any(|(_, item)| item.is_instance_of::<PyString>()) {
        let mut texts = LargeStringBuilder::new();
        for (row, item) in items.iter().enumerate() {
            let Some(item) = item else {
                texts.append_null();
                continue;
            };
            texts.append_value(
                item.cast::<PyString>().map_err(|_| wrong(row, item, "a string, as others are"))?.to_str()?,
            );
        }
        return Ok(Arc::new(texts.finish()));
    }
    if present().next().is_none() {
        return Ok(Arc::new(LargeStringArray::new_null(items.len())));
    }
    let integer =
        |item: &Bound<'_, PyAny>| item.extract::<i64>().ok().filter(|_| !item.is_instance_of::<PyBool>());
    if present().all(|(_, item)| integer(item).is_some()) {
        let integers = items.iter().map(|item| item.as_ref().and_then(integer));
        return Ok(Arc::new(integers.collect::<Int64Array>()));
    }
    let number = |(row, item): (usize, &Option<Bound<'_, PyAny>>)| match item {
        Some(item) => item.extract::<f64>().map_err(|_| wrong(row, item, "a number or a string")),
        None => Ok(f64::NAN),
    };
    Ok(Arc::new(Float64Array::from(items.iter().enumerate().map(number).collect::<PyResult<Vec<_>>>()?)))
}
