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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, BinaryArray, Int64Array};
    use rankine_reader::convert::RawColumnValues;

    use super::*;

    fn integers(values: &[i64]) -> ArrayRef {
        Arc::new(Int64Array::from(values.to_vec()))
    }

    #[test]
    fn rows_of_a_ragged_column_are_divided_by_its_offsets() {
        let column =
            ArrowColumn::ragged("tags".into(), vec![0, 2, 2, 5], &integers(&[7, 8, 1, 2, 3])).unwrap();
        assert_eq!((column.name(), column.rows()), ("tags", 3));
        let rows = ArrowRows::new(3, vec![column]).unwrap();
        for (range, offsets, values) in
            [(0..3, &[0, 2, 2, 5][..], &[7, 8, 1, 2, 3][..]), (1..3, &[0, 0, 3], &[1, 2, 3])]
        {
            rows.slice(range).with_columns(|columns| {
                let [
                    RawColumn {
                        name: "tags",
                        values: RawColumnValues::Integers(found),
                        offsets: Some(of_rows),
                    },
                ] = columns
                else {
                    panic!("{columns:?}")
                };
                assert_eq!((*of_rows, *found), (offsets, values));
            });
        }
        assert_eq!((rows.is_empty(), rows.slice(2..2).is_empty()), (false, true));
    }

    #[test]
    fn offsets_that_do_not_cover_the_values_once_are_refused() {
        let values = integers(&[7, 8, 1]);
        for offsets in [&[][..], &[1, 3], &[0, 2, 1, 3], &[0, 2], &[0, 4]] {
            let refused = ArrowColumn::ragged("tags".into(), offsets.to_vec(), &values).unwrap_err();
            assert_eq!(refused, RawColumnError::Offsets { column: "tags".into(), values: 3 }, "{offsets:?}");
        }
        let bytes: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"x"]));
        let refused = ArrowColumn::ragged("tags".into(), vec![0, 1], &bytes).unwrap_err();
        assert!(refused.to_string().contains("values of type Binary"), "{refused}");
    }
}
