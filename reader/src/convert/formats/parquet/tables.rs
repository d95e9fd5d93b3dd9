//! Rows of tables in memory, which are read once, from the first to the last, as if they were in a file.

use std::sync::{Mutex, PoisonError};

use parquet::schema::types::SchemaDescPtr;
use rankine_base::error::{Error, Result};

use super::columns::Leaf;
use super::decode::DecodedRows;
use super::values::{RowEnds, TypedValues, Values};

type Rows = Box<dyn Iterator<Item = Result<TableRows>> + Send>;

/// Rows of tables in memory, in place of a Parquet file that has them. They can be read once, by a conversion or a
/// learning pass that reads its rows once.
pub struct Tables {
    pub(super) columns: SchemaDescPtr,
    rows: Mutex<Option<Rows>>,
}

/// Some rows of a table: a few thousand, since all of them are processed by one thread.
#[derive(Debug)]
pub struct TableRows {
    /// The number of rows.
    pub rows: usize,
    /// The columns of values, as the schema has them.
    pub columns: Vec<TableColumn>,
}

/// A column of some rows.
#[derive(Debug)]
pub struct TableColumn {
    /// The values of all rows, without nulls.
    pub values: TableValues,
    /// For each row, the number of values up to its end; `None` if every row has one value.
    pub ends: Option<Vec<u32>>,
    /// The rows whose lists have nulls, ascending.
    pub with_nulls: Vec<u32>,
}

/// Values as Parquet would store them.
#[derive(Debug)]
pub enum TableValues {
    /// Booleans.
    Bool(Vec<bool>),
    /// Integers of up to 32 bits; unsigned ones by their bits.
    Int32(Vec<i32>),
    /// Integers of 64 bits; unsigned ones by their bits.
    Int64(Vec<i64>),
    /// Numbers of up to 32 bits.
    Float(Vec<f32>),
    /// Numbers of 64 bits.
    Double(Vec<f64>),
    /// The integers of decimals.
    Decimal(Vec<i128>),
    /// Texts, one after the other, and the end of each.
    Texts {
        /// All texts.
        bytes: Vec<u8>,
        /// The number of bytes up to the end of each text.
        ends: Vec<usize>,
    },
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").field("columns", &self.columns).finish_non_exhaustive()
    }
}

impl Tables {
    /// Returns tables with these columns; `rows` are read as late as possible, on another thread.
    pub fn new(
        columns: SchemaDescPtr,
        rows: impl Iterator<Item = Result<TableRows>> + Send + 'static,
    ) -> Self {
        Self { columns, rows: Mutex::new(Some(Box::new(rows))) }
    }

    /// Returns all rows, in order, with some of their columns.
    pub(super) fn read(&self, leaves: Vec<Leaf>) -> impl Iterator<Item = Result<DecodedRows>> + Send + use<> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).take();
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
