//! The file, written by the crate `parquet`.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use pyo3::prelude::*;
use rankine_base::nearest::quoted;

use super::Needed;
use crate::arrow::{Batches, has_tables};
use crate::error::{argument_error, data_error};
use crate::table::without_index;

/// Rows and bytes of a row group: memory holds one while it is written, and another while it is read.
const GROUP_ROWS: usize = 1 << 16;
const GROUP_BYTES: usize = 64 << 20;

/// A file of rows. It has no name in its folder, so it disappears with this value, or with the process.
pub(crate) struct RowsFile {
    file: File,
    rows: usize,
}

impl RowsFile {
    /// Writes the columns that are needed of a table, a stream of record batches, or an iterable of these, to a file
    /// on the disk of `out`. Messages call the rows `what`. Returns `None` for an iterable that has nothing.
    pub(crate) fn write(
        what: &str,
        rows: &Bound<'_, PyAny>,
        out: &Path,
        needed: &Needed<'_>,
    ) -> PyResult<Option<Self>> {
        // The folder of `out` may be missing as yet.
        let folder = out.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
        let cannot_write = |error: std::io::Error| {
            data_error(format!(
                "cannot write the rows of {what} to a temporary file in {}: {error}",
                folder.display()
            ))
        };
        let file = tempfile::tempfile_in(folder).map_err(cannot_write)?;
        let mut writer = Writer { what, needed, file: Some(file), columns: None, rows: 0 };
        if has_tables(rows)? {
            writer.add_table(rows)?;
        } else {
            let found = rows.get_type().name()?;
            let items = rows.try_iter().map_err(|_| {
                argument_error(format!(
                    "{what} is a {found}; expected a data frame, an Arrow table, or an iterable of record batches"
                ))
            })?;
            for item in items {
                let item = item?;
                if !has_tables(&item)? {
                    let found = item.get_type().name()?;
                    return Err(argument_error(format!(
                        "{what} has a {found}; expected record batches, tables or data frames"
                    )));
                }
                writer.add_table(&item)?;
            }
        }
        writer.finish()
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the path by which this process opens the file.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

struct Writer<'a> {
    what: &'a str,
    needed: &'a Needed<'a>,
    /// The empty file, until the columns are known.
    file: Option<File>,
    columns: Option<(SchemaRef, ArrowWriter<File>)>,
    rows: usize,
}

impl Writer<'_> {
    fn add_table(&mut self, table: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = table.py();
        let batches = Batches::of(&without_index(table)?)?;
        // A table without rows has columns, which are checked.
        self.add(RecordBatch::new_empty(batches.schema()))?;
        for batch in batches {
            let batch = batch.map_err(|error| data_error(format!("{}: {error}", self.what)))?;
            py.detach(|| self.add(batch))?;
            py.check_signals()?;
        }
        Ok(())
    }

    /// Writes the needed columns of rows.
    fn add(&mut self, batch: RecordBatch) -> PyResult<()> {
        let schema = batch.schema();
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let needed = (self.needed)(&names).map_err(data_error)?;
        let twice = |(number, &at): (usize, &usize)| {
            needed[..number].iter().any(|&other| names[other] == names[at]).then(|| quoted(&names[at]))
        };
        if let Some(name) = needed.iter().enumerate().find_map(twice) {
            return Err(data_error(format!("{} has two columns named {name}", self.what)));
        }
        if let Some(file) = self.file.take() {
            // Whether a column has nulls may differ from batch to batch.
            let field = |&at: &usize| schema.field(at).clone().with_nullable(true);
            let schema = Arc::new(Schema::new(needed.iter().map(field).collect::<Vec<_>>()));
            let has_texts = |field: &&Arc<Field>| {
                matches!(field.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
            };
            let mut properties = WriterProperties::builder();
            // A dictionary of numbers takes more time to make than it saves.
            for field in schema.fields().iter().filter(|field| !has_texts(field)) {
                let path = ColumnPath::from(field.name().as_str());
                properties = properties.set_column_dictionary_enabled(path, false);
            }
            let properties = properties
                .set_max_row_group_row_count(Some(GROUP_ROWS))
                .set_max_row_group_bytes(Some(GROUP_BYTES))
                .set_statistics_enabled(EnabledStatistics::None)
                .build();
            let writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties))
                .map_err(|error| self.refused(error))?;
            self.columns = Some((schema, writer));
        }
        let what = self.what;
        let (schema, writer) = self.columns.as_mut().expect("the file was created above");
        let column = |field: &Arc<Field>| {
            let at = needed.iter().find(|&&at| names[at] == *field.name());
            let column = at.map(|&at| batch.column(at)).ok_or_else(|| {
                format!("{what} has no column {} in a later piece than the first", quoted(field.name()))
            })?;
            if column.data_type() == field.data_type() {
                return Ok(Arc::clone(column));
            }
            let (name, one, other) = (quoted(field.name()), field.data_type(), column.data_type());
            Err(format!(
                "{what}: column {name} has values of type {one}, and of type {other} in a later piece"
            ))
        };
        let columns =
            schema.fields().iter().map(column).collect::<Result<_, String>>().map_err(data_error)?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options);
        let batch = batch.map_err(|error| data_error(format!("{what}: {error}")))?;
        self.rows += batch.num_rows();
        writer.write(&batch).map_err(|error| self.refused(error))
    }

    fn refused(&self, error: impl ToString) -> PyErr {
        data_error(format!(
            "cannot write the rows of {} to a temporary file: {}",
            self.what,
            error.to_string()
        ))
    }

    fn finish(mut self) -> PyResult<Option<RowsFile>> {
        let Some((_, writer)) = self.columns.take() else { return Ok(None) };
        let file = writer.into_inner().map_err(|error| self.refused(error))?;
        Ok(Some(RowsFile { file, rows: self.rows }))
    }
}
