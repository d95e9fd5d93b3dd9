//! Formats of raw rows: each parses the rows of its files.

pub(crate) mod criteo;
pub(crate) mod csv;
pub(crate) mod hugectr;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
