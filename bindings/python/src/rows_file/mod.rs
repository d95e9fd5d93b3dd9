//! Rows of the caller's tables for a conversion. One that reads rows once gets them as they come; others read them from
//! a temporary file of Parquet.

#[cfg(not(feature = "parquet"))]
mod absent;
#[cfg(feature = "parquet")]
mod direct;
#[cfg(feature = "parquet")]
mod pieces;
#[cfg(feature = "parquet")]
mod values;
#[cfg(feature = "parquet")]
mod written;

#[cfg(not(feature = "parquet"))]
pub(crate) use absent::{OnceRows, RowsFile};
#[cfg(feature = "parquet")]
pub(crate) use direct::OnceRows;
#[cfg(feature = "parquet")]
pub(crate) use written::RowsFile;

/// Returns which of the columns of a table with these names are read, in the order of their positions.
pub(crate) type Needed<'a> = dyn Fn(&[String]) -> rankine_base::Result<Vec<usize>> + Sync + 'a;
