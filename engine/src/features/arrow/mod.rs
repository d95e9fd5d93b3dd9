//! Rows of Arrow's record batches, raw or mapped.

mod columns;
mod mapped;

use std::ops::Range;

use arrow_array::RecordBatch;

use crate::features::{RawColumn, RawColumnError};

pub use columns::ArrowColumn;
pub(crate) use mapped::MappedRows;

/// Raw rows, by columns: those of a record batch, or of arrays.
///
/// Columns are numbers, texts, dictionaries or lists of these. A null is a missing number, or an empty text; in a list,
/// it is left out. Numbers in fp64, 64-bit integers and texts are not copied.
#[derive(Debug, Clone)]
pub struct ArrowRows {
    rows: usize,
    columns: Vec<ArrowColumn>,
}

impl ArrowRows {
    /// Makes rows of columns. `rows` counts, if there are no columns.
    ///
    /// # Errors
    /// [`RawColumnError::Rows`] if a column has another number of rows.
    pub fn new(rows: usize, columns: Vec<ArrowColumn>) -> Result<Self, RawColumnError> {
        match columns.iter().find(|column| column.rows() != rows) {
            Some(column) => {
                let (column, found) = (column.name().to_owned(), column.rows());
                Err(RawColumnError::Rows { column, expected: rows, found })
            }
            None => Ok(Self { rows, columns }),
        }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns some of the rows, without copying their values.
    pub(crate) fn slice(&self, rows: Range<usize>) -> Self {
        let columns = self.columns.iter().map(|column| column.slice(rows.clone())).collect();
        Self { rows: rows.len(), columns }
    }

    /// Lends the columns to `take`.
    pub(crate) fn with_columns<R>(&self, take: impl FnOnce(&[RawColumn<'_>]) -> R) -> R {
        let texts: Vec<_> = self.columns.iter().map(ArrowColumn::texts).collect();
        let raw: Vec<_> = self.columns.iter().zip(&texts).map(|(column, texts)| column.raw(texts)).collect();
        take(&raw)
    }
}

impl TryFrom<&RecordBatch> for ArrowRows {
    type Error = RawColumnError;

    fn try_from(batch: &RecordBatch) -> Result<Self, RawColumnError> {
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns());
        let columns = columns.map(|(field, array)| ArrowColumn::new(field.name().clone(), array));
        Self::new(batch.num_rows(), columns.collect::<Result<_, _>>()?)
    }
}
