//! The record batches of the caller's rows, with the columns that are read.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::PyIterator;
use rankine_base::nearest::quoted;

use super::Needed;
use crate::arrow::{Batches, has_tables};
use crate::error::{argument_error, data_error};
use crate::table::without_index;

/// The record batches of a table, of a stream, or of an iterable of these. The first batch of a table has no rows: a
/// table without rows has columns, too, which are checked.
struct Pieces<'a, 'py> {
    what: &'a str,
    items: Option<Bound<'py, PyIterator>>,
    columns: Option<SchemaRef>,
    batches: Option<Batches>,
    py: Python<'py>,
}

impl<'a, 'py> Pieces<'a, 'py> {
    /// Returns the batches of rows that messages call `what`.
    fn of(what: &'a str, rows: &Bound<'py, PyAny>) -> PyResult<Self> {
        let mut pieces = Self { what, items: None, columns: None, batches: None, py: rows.py() };
        if has_tables(rows)? {
            pieces.open(rows)?;
            return Ok(pieces);
        }
        let found = rows.get_type().name()?;
        let items = rows.try_iter().map_err(|_| {
            argument_error(format!(
                "{what} is a {found}; expected a data frame, an Arrow table, or an iterable of record batches"
            ))
        })?;
        Ok(Self { items: Some(items), ..pieces })
    }

    fn open(&mut self, table: &Bound<'py, PyAny>) -> PyResult<()> {
        let batches = Batches::of(&without_index(table)?)?;
        self.columns = Some(batches.schema());
        self.batches = Some(batches);
        Ok(())
    }

    /// Returns the next batch.
    fn next(&mut self) -> PyResult<Option<RecordBatch>> {
        loop {
            if let Some(columns) = self.columns.take() {
                return Ok(Some(RecordBatch::new_empty(columns)));
            }
            self.py.check_signals()?;
            if let Some(batch) = self.batches.as_mut().and_then(Iterator::next) {
                return batch.map(Some).map_err(|error| data_error(format!("{}: {error}", self.what)));
            }
            let Some(item) = self.items.as_mut().and_then(Iterator::next) else { return Ok(None) };
            let item = item?;
            if !has_tables(&item)? {
                let (what, found) = (self.what, item.get_type().name()?);
                return Err(argument_error(format!(
                    "{what} has a {found}; expected record batches, tables or data frames"
                )));
            }
            self.open(&item)?;
        }
    }
}

/// The columns that are needed, as the first batch has them.
struct NeededColumns<'a> {
    what: &'a str,
    columns: SchemaRef,
}

impl<'a> NeededColumns<'a> {
    /// Finds them in the first batch. Messages call the rows `what`.
    fn find(what: &'a str, first: &RecordBatch, needed: &Needed<'_>) -> PyResult<Self> {
        let schema = first.schema();
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let needed = needed(&names).map_err(data_error)?;
        // Whether a column has nulls may differ from batch to batch.
        let field = |at: usize| schema.field(at).clone().with_nullable(true);
        let columns = Arc::new(Schema::new(needed.into_iter().map(field).collect::<Vec<_>>()));
        Ok(Self { what, columns })
    }

    /// Returns the needed columns of a batch.
    fn of(&self, batch: &RecordBatch) -> PyResult<RecordBatch> {
        let (schema, what) = (batch.schema(), self.what);
        let column = |field: &Arc<Field>| {
            let name = quoted(field.name());
            let mut found = (0..schema.fields().len()).filter(|&at| schema.field(at).name() == field.name());
            let column = found.next().map(|at| batch.column(at));
            if found.next().is_some() {
                return Err(format!("{what} has two columns named {name}"));
            }
            let column = column
                .ok_or_else(|| format!("{what} has no column {name} in a later piece than the first"))?;
            if column.data_type() == field.data_type() {
                return Ok(Arc::clone(column));
            }
            let (one, other) = (field.data_type(), column.data_type());
            Err(format!(
                "{what}: column {name} has values of type {one}, and of type {other} in a later piece"
            ))
        };
        let arrays = self.columns.fields().iter().map(column).collect::<Result<_, String>>();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(
            Arc::clone(&self.columns),
            arrays.map_err(data_error)?,
            &options,
        );
        batch.map_err(|error| data_error(format!("{what}: {error}")))
    }
}

/// Rows whose columns are known.
pub(crate) struct StartedRows<'a, 'py> {
    pub(crate) what: &'a str,
    pieces: Pieces<'a, 'py>,
    needed: NeededColumns<'a>,
    first: Option<RecordBatch>,
}

impl<'a, 'py> StartedRows<'a, 'py> {
    /// Reads the first batch of a table, a stream of record batches, or an iterable of these; `None` for an iterable
    /// that has nothing.
    pub(crate) fn of(what: &'a str, rows: &Bound<'py, PyAny>, needed: &Needed<'_>) -> PyResult<Option<Self>> {
        let mut pieces = Pieces::of(what, rows)?;
        let Some(first) = pieces.next()? else { return Ok(None) };
        let needed = NeededColumns::find(what, &first, needed)?;
        let first = Some(needed.of(&first)?);
        Ok(Some(Self { what, pieces, needed, first }))
    }

    pub(crate) fn py(&self) -> Python<'py> {
        self.pieces.py
    }

    /// Returns the needed columns.
    pub(crate) fn columns(&self) -> &SchemaRef {
        &self.needed.columns
    }

    /// Returns the needed columns of the next batch.
    pub(crate) fn next(&mut self) -> PyResult<Option<RecordBatch>> {
        match self.first.take() {
            None => self.pieces.next()?.map(|batch| self.needed.of(&batch)).transpose(),
            first => Ok(first),
        }
    }

    /// Returns the needed columns of the next batch that has rows.
    pub(crate) fn next_rows(&mut self) -> PyResult<Option<RecordBatch>> {
        loop {
            match self.next()? {
                Some(batch) if batch.num_rows() == 0 => {}
                batch => return Ok(batch),
            }
        }
    }

    /// Puts a batch back, which is then the next one.
    pub(crate) fn put_back(&mut self, batch: RecordBatch) {
        self.first = Some(batch);
    }
}
