//! Mapped features of the caller, as the library takes them: without copies, if their types and layouts fit.

use numpy::{PyArrayDescrMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyMapping, PyTuple};
use rankine_engine::ranker::{Ids, RawColumnError};
use rankine_reader::convert::check_column_names;

use crate::array::{Array, array_of, fitting, floats, scalars};
use crate::error::row_error;
use crate::table::offsets_of;

/// Mapped features of some rows.
pub(crate) struct Mapped<'py> {
    pub(crate) rows: usize,
    /// `[rows, columns]`, of type float32.
    dense: Array<'py>,
    columns: Vec<Column<'py>>,
}

/// A categorical column.
struct Column<'py> {
    /// Where the ids of each row start, then their end; `None` if each row has as many.
    offsets: Option<Vec<u32>>,
    /// Of type uint64, or of type int64 and not negative.
    ids: Array<'py>,
    /// Of type float32; `None` if the ids have no weights.
    weights: Option<Array<'py>>,
}

impl<'py> Mapped<'py> {
    /// Checks types and shapes. `names` are those of the model's categorical columns, in order.
    pub(crate) fn new(
        dense: &Bound<'py, PyAny>,
        categorical: &Bound<'py, PyAny>,
        names: &[String],
    ) -> PyResult<Self> {
        let dense = dense_of(dense)?;
        let rows = dense.shape()[0];
        let column = |(name, given): (&String, Bound<'py, PyAny>)| Column::new(name, &given, rows);
        let columns = if let Ok(list) = categorical.cast::<PyList>() {
            named(names, list.iter()).map(column).collect::<PyResult<_>>()?
        } else if let Ok(tuple) = categorical.cast::<PyTuple>() {
            named(names, tuple.iter()).map(column).collect::<PyResult<_>>()?
        } else if let Ok(mapping) = categorical.cast::<PyMapping>() {
            names.iter().zip(by_name(mapping, names)?).map(column).collect::<PyResult<_>>()?
        } else {
            let found = categorical.get_type().name()?;
            return Err(row_error(format!(
                "categorical columns are a {found}; expected a list of arrays, or a mapping from names to arrays"
            )));
        };
        Ok(Self { rows, dense, columns })
    }

    /// `[rows, columns]`, row-major.
    pub(crate) fn dense(&self) -> &[f32] {
        // SAFETY: The array is of type float32.
        unsafe { scalars(&self.dense) }
    }

    pub(crate) fn ids(&self) -> Vec<Ids<'_>> {
        self.columns.iter().map(Column::ids).collect()
    }
}

/// Returns columns of numbers, `[rows]` or `[rows, columns]`, column by column.
pub(crate) fn numbers_of(what: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<f32>>> {
    let array = array_of(given)?;
    let columns = match *array.shape() {
        [_] => 1,
        [_, columns] => columns,
        _ => {
            let shape = array.shape();
            return Err(row_error(format!(
                "{what} have the shape {shape:?}; expected [rows] or [rows, columns]"
            )));
        }
    };
    let array = floats(what, array)?;
    // SAFETY: The array is of type float32.
    let numbers: &[f32] = unsafe { scalars(&array) };
    Ok((0..columns).map(|column| numbers.iter().skip(column).step_by(columns).copied().collect()).collect())
}

/// Names columns; the library refuses columns beyond those of the model, whose names do not matter.
fn named<T>(names: &[String], columns: impl Iterator<Item = T>) -> impl Iterator<Item = (&String, T)> {
    const BEYOND: &String = &String::new();
    names.iter().chain(std::iter::repeat(BEYOND)).zip(columns)
}

/// Returns the columns of a mapping, in the order of the model.
fn by_name<'py>(mapping: &Bound<'py, PyMapping>, names: &[String]) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let given: Vec<String> = mapping.keys()?.extract()?;
    let known: Vec<_> = names.iter().map(String::as_str).collect();
    check_column_names(&known, given.iter().map(String::as_str)).map_err(row_error)?;
    if let Some(name) = names.iter().find(|name| !given.contains(name)) {
        return Err(row_error(RawColumnError::Missing { name: name.clone(), hint: String::new() }));
    }
    names.iter().map(|name| mapping.get_item(name)).collect()
}

fn dense_of<'py>(dense: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let array = array_of(dense)?;
    if array.ndim() != 2 {
        return Err(row_error(format!(
            "dense features have the shape {:?}; expected [rows, columns]",
            array.shape()
        )));
    }
    floats("dense features", array)
}

impl<'py> Column<'py> {
    fn new(name: &str, given: &Bound<'py, PyAny>, rows: usize) -> PyResult<Self> {
        let (offsets, ids, weights) = if let Ok(tuple) = given.cast::<PyTuple>() {
            if !matches!(tuple.len(), 2 | 3) {
                let found = tuple.len();
                return Err(row_error(format!(
                    "column {name} is a tuple of length {found}, but a tuple must be (offsets, ids), or \
                     (offsets, ids, weights)"
                )));
            }
            let weights = match tuple.len() {
                3 => Some(weights_of(name, &tuple.get_item(2)?)?),
                _ => None,
            };
            (Some(offsets_of(name, &tuple.get_item(0)?)?), array_of(&tuple.get_item(1)?)?, weights)
        } else {
            (None, array_of(given)?, None)
        };
        match *ids.shape() {
            _ if offsets.is_some() => {}
            [found] | [found, _] if found != rows => {
                let column = name.to_owned();
                return Err(row_error(RawColumnError::Rows { column, expected: rows, found }));
            }
            [_] | [_, _] => {}
            _ => {
                let shape = ids.shape();
                return Err(row_error(format!(
                    "column {name} has the shape {shape:?}; expected [rows] or [rows, ids per row]"
                )));
            }
        }
        let column = Self { offsets, ids: ids_of(name, ids)?, weights };
        column.check_signs(name, rows)?;
        Ok(column)
    }

    /// Checks that no id is negative.
    fn check_signs(&self, name: &str, rows: usize) -> PyResult<()> {
        if self.ids.dtype().kind() != b'i' {
            return Ok(());
        }
        // SAFETY: The array is of type int64.
        let ids: &[i64] = unsafe { scalars(&self.ids) };
        let Some(at) = ids.iter().position(|&id| id < 0) else { return Ok(()) };
        let row = match &self.offsets {
            Some(offsets) => offsets.partition_point(|&offset| offset as usize <= at).saturating_sub(1),
            None => at * rows / ids.len(),
        };
        Err(row_error(format!("column {name}, row {row}: id {} is negative", ids[at])))
    }

    fn ids(&self) -> Ids<'_> {
        // SAFETY: The array is of type uint64, or of type int64, whose numbers of 0 or more have the same bits.
        let ids = unsafe { scalars(&self.ids) };
        match (&self.offsets, &self.weights) {
            (Some(offsets), Some(weights)) => {
                // SAFETY: The array is of type float32.
                let weights = unsafe { scalars(weights) };
                Ids::Weighted { offsets, ids, weights }
            }
            (Some(offsets), None) => Ids::Bags { offsets, ids },
            (None, _) => Ids::Fixed(ids),
        }
    }
}

fn weights_of<'py>(name: &str, given: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let array = array_of(given)?;
    if array.ndim() != 1 {
        let shape = array.shape();
        return Err(row_error(format!(
            "column {name}: its weights have the shape {shape:?}; expected one per id"
        )));
    }
    floats(&format!("the weights of column {name}"), array)
}

fn ids_of<'py>(name: &str, array: Array<'py>) -> PyResult<Array<'py>> {
    let dtype = array.dtype();
    match (dtype.kind(), dtype.itemsize()) {
        (b'u', 8) => fitting::<u64>(array),
        (b'i' | b'u', _) => fitting::<i64>(array),
        // NumPy's type for an empty list.
        (b'f', _) if array.is_empty() => fitting::<u64>(array),
        _ => Err(row_error(format!("column {name} has ids of type {dtype}; expected uint64 or int64"))),
    }
}
