//! Rows of the caller's tables in a temporary file of Parquet, since a conversion reads its rows up to three times.

#[cfg(not(feature = "parquet"))]
mod absent;
#[cfg(feature = "parquet")]
mod written;

#[cfg(not(feature = "parquet"))]
pub(crate) use absent::RowsFile;
#[cfg(feature = "parquet")]
pub(crate) use written::RowsFile;

/// Returns which of the columns of a table with these names are read, in the order of their positions.
pub(crate) type Needed<'a> = dyn Fn(&[String]) -> rankine_base::Result<Vec<usize>> + Sync + 'a;
