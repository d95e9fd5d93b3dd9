//! Rows of tables in memory, which are read once, from the first to the last, in place of a file that has them.

use std::sync::{Mutex, PoisonError};

use parquet::schema::types::SchemaDescPtr;
use rankine_base::error::Result;

pub(crate) type Rows = Box<dyn Iterator<Item = Result<TableRows>> + Send>;

/// Rows of tables in memory, in place of a Parquet file that has them. They can be read once, by a conversion or a
/// learning pass that reads its rows once.
pub struct Tables {
    pub(crate) columns: SchemaDescPtr,
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

    /// Returns the rows; `None` if they were taken before.
    pub(crate) fn take(&self) -> Option<Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
