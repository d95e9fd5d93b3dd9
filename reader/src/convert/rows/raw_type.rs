//! The columns of files, with what their types allow a schema file to make of them.

/// What the type of a column allows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "parquet"), allow(dead_code, reason = "CSV has no types"))]
pub(crate) enum RawType {
    /// Text that may be a number: CSV.
    Any,
    /// Integers of Parquet: numbers or categories.
    Integer,
    /// Floats and booleans of Parquet: never categories.
    Number,
    /// Strings of Parquet: never numbers.
    Text,
    /// Lists, or lists of lists, of categories.
    List,
    /// Dates and times.
    Time,
    /// Values that no column of a dataset can have; why, after "its values are".
    Unusable(&'static str),
}

/// A raw column.
#[derive(Debug)]
pub(crate) struct RawColumnType {
    /// Its name in a schema file.
    pub(crate) name: String,
    pub(crate) values: RawType,
}
