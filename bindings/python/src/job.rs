//! Jobs of the caller: a file, a mapping with the contents of one, or keywords.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyMapping, PyString};
use rankine::job::JobFile;
use toml::{Table, Value};

use crate::error::{Given, job_error, of_package};

/// Reads a job, and replaces the values that `settings` has.
pub(crate) fn job_file(
    job: Option<&Bound<'_, PyAny>>,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<JobFile> {
    read(job, settings).map_err(|error| match job {
        Some(job) => of_package(job.py(), error, job_error),
        None => error,
    })
}

fn read(job: Option<&Bound<'_, PyAny>>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<JobFile> {
    let mut sets = Vec::new();
    let settings = settings.map(|settings| table("", settings.as_mapping())).transpose()?.unwrap_or_default();
    let text = match job {
        None => settings.to_string(),
        Some(job) => {
            flatten("", settings, &mut sets);
            match job.cast::<PyMapping>() {
                Ok(job) => table("", job)?.to_string(),
                Err(_) => {
                    return JobFile::read(&job.extract::<Given<PathBuf>>()?.0, &sets).map_err(job_error);
                }
            }
        }
    };
    JobFile::parse("job", &text, &sets).map_err(job_error)
}

/// Returns a mapping as the text of a TOML file.
pub(crate) fn toml_text(mapping: &Bound<'_, PyMapping>) -> PyResult<String> {
    table("", mapping).map(|table| table.to_string())
}

/// Turns nested tables into settings as those of `--set`.
fn flatten(before: &str, table: Table, sets: &mut Vec<String>) {
    for (key, value) in table {
        let key = format!("{before}{key}");
        match value {
            Value::Table(table) => flatten(&format!("{key}."), table, sets),
            value => sets.push(format!("{key}={value}")),
        }
    }
}

fn table(before: &str, mapping: &Bound<'_, PyMapping>) -> PyResult<Table> {
    let mut table = Table::new();
    for item in mapping.items()? {
        let (key, item): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let Ok(key) = key.extract::<String>() else {
            return Err(job_error(format!("job: the key {}{} is not a string", before, key.repr()?)));
        };
        let value = value(&format!("{before}{key}"), &item)?;
        table.insert(key, value);
    }
    Ok(table)
}

fn value(key: &str, item: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(mapping) = item.cast::<PyMapping>() {
        return Ok(Value::Table(table(&format!("{key}."), mapping)?));
    }
    Ok(if item.is_instance_of::<PyBool>() {
        Value::Boolean(item.extract()?)
    } else if item.is_instance_of::<PyInt>() {
        let out_of_range = |_| job_error(format!("job: {key} is beyond 64 bits"));
        Value::Integer(item.extract().map_err(out_of_range)?)
    } else if item.is_instance_of::<PyFloat>() {
        Value::Float(item.extract()?)
    } else if item.is_instance_of::<PyString>() {
        Value::String(item.extract()?)
    } else if let Ok(path) = item.extract::<PathBuf>() {
        Value::String(path.to_string_lossy().into_owned())
    } else if let Ok(items) = item.try_iter() {
        Value::Array(items.map(|item| value(key, &item?)).collect::<PyResult<_>>()?)
    } else {
        let (found, known) = (item.get_type().name()?, "a boolean, number, string, path, list or mapping");
        return Err(job_error(format!("job: {key} is a {found}; expected {known}")));
    })
}
