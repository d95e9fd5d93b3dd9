//! Builds without Parquet cannot read the rows of tables in a conversion.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use rankine_reader::convert::ConvertOptions;

use super::Needed;
use crate::error::data_error;

/// There is none.
pub(crate) enum RowsFile {}

impl RowsFile {
    pub(crate) fn write(_: &str, _: &Bound<'_, PyAny>, _: &Path, _: &Needed<'_>) -> PyResult<Option<Self>> {
        Err(unsupported())
    }

    pub(crate) fn path(&self) -> PathBuf {
        match *self {}
    }
}

/// There are none.
pub(crate) enum OnceRows {}

impl OnceRows {
    pub(crate) fn of(_: &str, _: &Bound<'_, PyAny>, _: &Needed<'_>) -> PyResult<Option<Self>> {
        Err(unsupported())
    }

    pub(crate) fn read<R>(
        self,
        _: bool,
        _: ConvertOptions,
        _: impl FnOnce(&ConvertOptions) -> PyResult<R> + Send,
    ) -> PyResult<R> {
        match self {}
    }
}

fn unsupported() -> PyErr {
    data_error(rankine_base::Error::Unsupported { doing: "convert tables", feature: "parquet" })
}
