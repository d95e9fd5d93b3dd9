//! Plain data between Rust and Python.

use std::path::PathBuf;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rankine::job::ThreadCount;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Given, argument_error};

/// Turns data into dicts, lists and scalars; numbers that are not finite become `None`.
pub(crate) fn to_python<'py>(py: Python<'py>, data: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let value = serde_json::to_value(data).expect("plain data can be written as JSON");
    python_value(py, &value)
}

pub(crate) fn python_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(value) => value.into_bound_py_any(py),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into_bound_py_any(py),
            (None, Some(number)) => number.into_bound_py_any(py),
            (None, None) => number.as_f64().into_bound_py_any(py),
        },
        Value::String(text) => text.into_bound_py_any(py),
        Value::Array(items) => {
            let list = PyList::empty(py);
            items.iter().try_for_each(|item| list.append(python_value(py, item)?))?;
            Ok(list.into_any())
        }
        Value::Object(entries) => {
            let dict = PyDict::new(py);
            entries.iter().try_for_each(|(key, value)| dict.set_item(key, python_value(py, value)?))?;
            Ok(dict.into_any())
        }
    }
}

/// Returns a path, or the paths of a sequence.
pub(crate) fn paths(given: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    let path = |path: Bound<'_, PyAny>| path.extract().map(|Given(path)| path);
    given.extract().map(|path| vec![path]).or_else(|_: PyErr| match given.try_iter() {
        Ok(paths) => paths.map(|given| path(given?)).collect(),
        Err(_) => path(given.clone()).map(|path| vec![path]),
    })
}

/// Checks a number of threads.
pub(crate) fn thread_count(threads: u32) -> PyResult<ThreadCount> {
    ThreadCount::new(threads).ok_or_else(|| argument_error("threads must be a whole number from 1 to 4096"))
}
