//! Rows of tables in memory, read as if they were in a file.

use rankine_base::error::{Error, Result};

use super::columns::Leaf;
use super::decode::DecodedRows;
use super::values::{RowEnds, TypedValues, Values};
use crate::convert::rows::tables::{TableColumn, TableRows, TableValues, Tables};

impl Tables {
    /// Returns all rows, in order, with some of their columns.
    pub(super) fn read(&self, leaves: Vec<Leaf>) -> impl Iterator<Item = Result<DecodedRows>> + Send + use<> {
        let rows = self.take();
        let again = rows.is_none().then(|| Err(refused("rows that are in no file can be read once".into())));
        let (columns, mut file_row) = (self.columns.num_columns(), 0);
        let decoded = move |read: Result<TableRows>| {
            let read = read?;
            let (rows, first) = (read.rows, file_row);
            file_row += rows as u64;
            let columns = read.of_leaves(columns, &leaves)?;
            Ok(DecodedRows { file: 0, file_row: first, rows, columns })
        };
        again.into_iter().chain(rows.into_iter().flatten().map(decoded))
    }
}

impl TableRows {
    /// Returns the values of some columns, all of which must have as many as their rows say.
    fn of_leaves(self, columns: usize, leaves: &[Leaf]) -> Result<Vec<Values>> {
        if self.columns.len() != columns {
            return Err(refused(format!("{} columns; expected {columns}", self.columns.len())));
        }
        let mut all: Vec<_> = self.columns.into_iter().map(Some).collect();
        let values = |leaf: &Leaf| {
            let column = all[leaf.index].take().expect("each leaf has its own column");
            let TableColumn { values, ends, with_nulls } = column;
            let ends = ends.unwrap_or_else(|| (1..=self.rows as u32).collect());
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let fits = ends.len() == self.rows
                && ends.last().copied().unwrap_or(0) as usize == values.len()
                && starts.zip(&ends).all(|(start, &end)| start <= end && (leaf.list || end - start <= 1));
            if !fits {
                return Err(refused(format!("column {} has rows that do not add up", leaf.name)));
            }
            let rows = RowEnds { ends, with_nulls };
            Ok(Values { typed: values.typed(), values: leaf.values, unsigned: leaf.unsigned, rows })
        };
        leaves.iter().map(values).collect()
    }
}

impl TableValues {
    fn len(&self) -> usize {
        match self {
            Self::Bool(values) => values.len(),
            Self::Int32(values) => values.len(),
            Self::Int64(values) => values.len(),
            Self::Float(values) => values.len(),
            Self::Double(values) => values.len(),
            Self::Decimal(values) => values.len(),
            Self::Texts { ends, .. } => ends.len(),
        }
    }

    fn typed(self) -> TypedValues {
        match self {
            Self::Bool(values) => TypedValues::Bool(values),
            Self::Int32(values) => TypedValues::Int32(values),
            Self::Int64(values) => TypedValues::Int64(values),
            Self::Float(values) => TypedValues::Float(values),
            Self::Double(values) => TypedValues::Double(values),
            Self::Decimal(values) => TypedValues::Wide(values),
            Self::Texts { bytes, ends } => TypedValues::Texts(bytes, ends),
        }
    }
}

fn refused(what: String) -> Error {
    Error::columns(None, format!("tables in memory: {what}"))
}
