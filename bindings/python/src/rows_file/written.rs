//! The file, written by the crate `parquet`.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{DataType, Field, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use pyo3::prelude::*;

use super::Needed;
use super::pieces::StartedRows;
use crate::error::data_error;

/// Rows and bytes of a row group: memory holds one while it is written, and another while it is read.
const GROUP_ROWS: usize = 1 << 16;
const GROUP_BYTES: usize = 64 << 20;

/// A file of rows. It has no name in its folder, so it disappears with this value, or with the process.
pub(crate) struct RowsFile(File);

impl RowsFile {
    /// Writes the columns that are needed of a table, a stream of record batches, or an iterable of these, to a file
    /// on the disk of `out`. Messages call the rows `what`. Returns `None` for an iterable that has nothing.
    pub(crate) fn write(
        what: &str,
        rows: &Bound<'_, PyAny>,
        out: &Path,
        needed: &Needed<'_>,
    ) -> PyResult<Option<Self>> {
        let rows = StartedRows::of(what, rows, needed)?;
        rows.map(|rows| Self::write_started(rows, out)).transpose()
    }

    /// Writes rows of which none was taken.
    pub(super) fn write_started(mut started: StartedRows<'_, '_>, out: &Path) -> PyResult<Self> {
        let (py, what) = (started.py(), started.what);
        // The folder of `out` may be missing as yet.
        let folder = out.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
        let refused = |error: &dyn std::fmt::Display| {
            data_error(format!(
                "cannot write the rows of {what} to a temporary file in {}: {error}",
                folder.display()
            ))
        };
        let file = tempfile::tempfile_in(folder).map_err(|error| refused(&error))?;
        let mut writer = writer(file, Arc::clone(started.columns())).map_err(|error| refused(&error))?;
        while let Some(batch) = started.next()? {
            py.detach(|| writer.write(&batch)).map_err(|error| refused(&error))?;
        }
        let file = writer.into_inner().map_err(|error| refused(&error))?;
        Ok(Self(file))
    }

    /// Returns the path by which this process opens the file.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

fn writer(file: File, columns: SchemaRef) -> Result<ArrowWriter<File>, parquet::errors::ParquetError> {
    let has_texts = |field: &&Arc<Field>| {
        matches!(field.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
    };
    let mut properties = WriterProperties::builder();
    // A dictionary of numbers takes more time to make than it saves.
    for field in columns.fields().iter().filter(|field| !has_texts(field)) {
        let path = ColumnPath::from(field.name().as_str());
        properties = properties.set_column_dictionary_enabled(path, false);
    }
    let properties = properties
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_max_row_group_bytes(Some(GROUP_BYTES))
        .set_statistics_enabled(EnabledStatistics::None)
        .build();
    ArrowWriter::try_new(file, columns, Some(properties))
}
