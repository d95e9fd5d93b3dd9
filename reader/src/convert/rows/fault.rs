//! Faults of rows that cannot be read, and their positions.

use serde::{Deserialize, Serialize};

/// Why a row is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadReason {
    /// Its line is longer than [`crate::convert::LINE_BYTES_MAX`].
    LineTooLong,
    /// It has more or fewer fields than there are columns.
    FieldCount,
    /// A quoted field is not closed, or text follows its closing quote.
    Quote,
    /// The label is not admitted by its rule.
    Label,
    /// The weight is negative, not finite or not a number.
    Weight,
    /// A dense value is not a number of the column's type.
    Number,
    /// A category is not of the column's type.
    Category,
    /// A category of an identity column is not a row number of the table.
    RowNumber,
    /// A bag has more than [`crate::convert::BAG_MAX`] categories.
    Bag,
    /// The weight of a category is negative, not finite or not a number.
    BagWeight,
    /// A bag has more or fewer weights than categories.
    WeightCount,
    /// The columns of a sequence have different numbers of categories.
    SequenceLength,
    /// Its value cannot be compared with the value of the split.
    Split,
}

/// Describes a column of a sequence with another number of categories than the first column, `of`, has.
pub(crate) fn unequal_lengths((found, expected): (usize, usize), of: &str) -> String {
    let categories = if found == 1 { "category" } else { "categories" };
    format!("{found} {categories}, but column {of} of the same sequence has {expected}")
}

/// Why a row is bad, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What is wrong.
    pub(crate) reason: BadReason,
    /// The number of the raw column with the fault, if it is in one column.
    pub(crate) field: Option<u32>,
}

/// A bad row of a chunk. Kept small: a chunk of only line feeds has one per byte.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BadRow {
    /// Number of earlier rows in its chunk.
    pub(crate) row: u32,
    /// Number of earlier lines in its chunk: more than rows if fields contain line ends.
    pub(crate) line: u32,
    /// Its position in the chunk's bytes.
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) fault: Fault,
}

/// A description of a bad row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadName {
    /// The file, as it was named.
    pub file: String,
    /// What `number` counts: "line" or "row".
    pub unit: &'static str,
    /// The line or row of the file, from 1.
    pub number: u64,
    /// The column with the fault, if it is in one column.
    pub column: Option<String>,
    /// What is wrong.
    pub why: String,
}

impl std::fmt::Display for BadName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.file, self.unit, self.number)?;
        if let Some(column) = &self.column {
            write!(f, ", column {column}")?;
        }
        write!(f, ": {}", self.why)
    }
}

impl BadName {
    /// Returns a line of [`crate::convert::BAD_ROWS_NAME`].
    pub(crate) fn to_json(&self) -> Vec<u8> {
        struct Line<'a>(&'a BadName);
        impl Serialize for Line<'_> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap;
                let mut map = serializer.serialize_map(Some(4))?;
                map.serialize_entry("file", &self.0.file)?;
                map.serialize_entry(self.0.unit, &self.0.number)?;
                map.serialize_entry("column", &self.0.column)?;
                map.serialize_entry("why", &self.0.why)?;
                map.end()
            }
        }
        let mut json = serde_json::to_vec(&Line(self)).expect("it is plain data");
        json.push(b'\n');
        json
    }
}
