//! Builds without Parquet cannot keep the rows of tables for a conversion.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;

use super::Needed;
use crate::error::data_error;

/// There is none.
pub(crate) enum RowsFile {}

impl RowsFile {
    pub(crate) fn write(_: &str, _: &Bound<'_, PyAny>, _: &Path, _: &Needed<'_>) -> PyResult<Option<Self>> {
        Err(data_error(rankine_base::Error::Unsupported { doing: "convert tables", feature: "parquet" }))
    }

    pub(crate) fn path(&self) -> PathBuf {
        match *self {}
    }

    pub(crate) fn rows(&self) -> usize {
        match *self {}
    }
}
