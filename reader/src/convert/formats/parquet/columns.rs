//! The columns of a file, and checks that their types fit their targets.

use parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};
use rankine_base::nearest::{no_column, quoted};

use crate::convert::rows::raw_type::{RawColumnType, RawType};
use crate::convert::text::lines::Source;

/// A column of values.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// Its number in the file.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) list: bool,
    pub(super) unsigned: bool,
    /// The definition level of a non-null value.
    pub(super) defined: i16,
}

impl Leaf {
    pub(super) fn new(index: usize, name: &str, leaf: &ColumnDescPtr) -> Self {
        let unsigned = matches!(leaf.logical_type_ref(), Some(LogicalType::Integer(int)) if !int.is_signed)
            || matches!(
                leaf.converted_type(),
                ConvertedType::UINT_8
                    | ConvertedType::UINT_16
                    | ConvertedType::UINT_32
                    | ConvertedType::UINT_64
            );
        let (list, defined) = (leaf.max_rep_level() > 0, leaf.max_def_level());
        Self { index, name: name.to_owned(), list, unsigned, defined }
    }
}

/// Returns what the values of a leaf can become.
fn raw_type(leaf: &ColumnDescPtr) -> RawType {
    use LogicalType::{Date, Time, Timestamp};
    let kind = leaf.physical_type();
    let list = leaf.max_rep_level() > 0;
    let plain = leaf.logical_type_ref().is_none() && leaf.converted_type() == ConvertedType::NONE;
    let old_time = [
        ConvertedType::DATE,
        ConvertedType::TIME_MILLIS,
        ConvertedType::TIME_MICROS,
        ConvertedType::TIMESTAMP_MILLIS,
        ConvertedType::TIMESTAMP_MICROS,
    ];
    let time = matches!(leaf.logical_type_ref(), Some(Date | Time { .. } | Timestamp { .. }))
        || old_time.contains(&leaf.converted_type());
    match kind {
        _ if leaf.max_rep_level() > 1 => RawType::Unusable("lists of lists"),
        _ if is_decimal(leaf) => RawType::Unusable("decimals: write floats or integers"),
        PhysicalType::INT96 => RawType::Time,
        PhysicalType::INT32 | PhysicalType::INT64 if time && !list => RawType::Time,
        PhysicalType::INT32 | PhysicalType::INT64 | PhysicalType::BYTE_ARRAY if list => RawType::List,
        _ if list => RawType::Unusable("lists of values that are neither integers nor strings"),
        PhysicalType::INT32 | PhysicalType::INT64 => RawType::Integer,
        PhysicalType::BOOLEAN | PhysicalType::FLOAT | PhysicalType::DOUBLE => RawType::Number,
        PhysicalType::FIXED_LEN_BYTE_ARRAY if !plain => RawType::Unusable("of a type that has no text"),
        PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY => RawType::Text,
    }
}

fn is_decimal(leaf: &ColumnDescPtr) -> bool {
    matches!(leaf.logical_type_ref(), Some(LogicalType::Decimal { .. }))
        || leaf.converted_type() == ConvertedType::DECIMAL
}

/// The kind of values that a target needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    Number,
    Text,
    Category,
}

/// The columns of a file.
pub(super) struct Columns<'a> {
    pub(super) descriptor: &'a SchemaDescriptor,
    pub(super) source: &'a Source,
}

impl Columns<'_> {
    /// Returns a column by its name: of a value, a list, or by a dotted path within groups.
    pub(super) fn leaf(&self, name: &str) -> Option<(usize, ColumnDescPtr)> {
        let leaves = || self.descriptor.columns().iter().cloned().enumerate();
        leaves().find(|(_, leaf)| leaf.path().string() == name).or_else(|| {
            let mut below =
                leaves().filter(|(_, leaf)| leaf.path().parts().first().is_some_and(|root| root == name));
            below.next().filter(|_| below.next().is_none())
        })
    }

    /// Returns all columns. A list has the name of its group, if it is the only leaf in it.
    pub(super) fn types(&self) -> Vec<RawColumnType> {
        let column = |leaf: &ColumnDescPtr| {
            let root = leaf.path().parts().first();
            let below = self.descriptor.columns().iter().filter(|other| other.path().parts().first() == root);
            let name = match root {
                Some(root) if leaf.max_rep_level() > 0 && below.count() == 1 => root.clone(),
                _ => leaf.path().string(),
            };
            RawColumnType { name, values: raw_type(leaf) }
        };
        self.descriptor.columns().iter().map(column).collect()
    }

    /// Returns the leaf for a target; `None` if the file does not have it.
    ///
    /// # Errors
    /// A description of why it does not fit.
    pub(super) fn find(&self, name: &str, wanted: ValueKind, bag: bool) -> Result<Option<Leaf>, String> {
        let Some((index, leaf)) = self.leaf(name) else { return Ok(None) };
        let (path, list) = (self.source.path.display(), leaf.max_rep_level() > 0);
        let column = quoted(name);
        if list && wanted != ValueKind::Category {
            return Err(format!("column {column} is a list in {path}, but must have one value per row"));
        }
        if leaf.max_rep_level() > 1 {
            return Err(format!(
                "column {column} is a list of lists in {path}, but must be a list of categories"
            ));
        }
        if list && !bag {
            return Err(format!(
                "column {column} is a list in {path}, but has one category per row in the first file"
            ));
        }
        let kind = leaf.physical_type();
        let decimal = is_decimal(&leaf);
        let fits = !decimal
            && match kind {
                PhysicalType::INT32 | PhysicalType::INT64 => wanted != ValueKind::Text,
                PhysicalType::BOOLEAN | PhysicalType::FLOAT | PhysicalType::DOUBLE => {
                    wanted == ValueKind::Number
                }
                PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY => wanted != ValueKind::Number,
                PhysicalType::INT96 => false,
            };
        if !fits {
            let kind = if decimal { "DECIMAL".to_owned() } else { kind.to_string() };
            let wanted = match wanted {
                ValueKind::Number => "numbers (integers, floats or booleans)",
                ValueKind::Text => "strings",
                ValueKind::Category => "categories (strings or integers)",
            };
            return Err(format!("column {column} has type {kind} in {path}, but must have {wanted}"));
        }
        Ok(Some(Leaf::new(index, name, &leaf)))
    }

    /// Returns the leaf of a column whose texts are needed to `purpose`, such as "keep".
    ///
    /// # Errors
    /// A description of why the file does not have it, or why it has no texts.
    pub(super) fn text(&self, name: &str, purpose: &str) -> Result<Leaf, String> {
        let Some((index, leaf)) = self.leaf(name) else { return Err(self.lacks(name, |_| false)) };
        let kind = leaf.physical_type();
        let plain = leaf.logical_type_ref().is_none() && leaf.converted_type() == ConvertedType::NONE;
        let what = if leaf.max_rep_level() > 0 {
            Some("a list".to_owned())
        } else if is_decimal(&leaf) {
            Some("DECIMAL".to_owned())
        } else if kind == PhysicalType::INT96 || (kind == PhysicalType::FIXED_LEN_BYTE_ARRAY && !plain) {
            Some(kind.to_string())
        } else {
            None
        };
        let path = self.source.path.display();
        match what {
            Some(what) => Err(format!(
                "column {} of {path} is {what}, which has no text to {purpose}: this needs a column of one string, \
                 number or boolean per row; write the column as strings",
                quoted(name)
            )),
            None => Ok(Leaf::new(index, name, &leaf)),
        }
    }

    /// Returns what is said of a column that the file does not have; columns that are `used` are not what was meant.
    pub(super) fn lacks(&self, name: &str, used: impl Fn(&str) -> bool) -> String {
        let names: Vec<_> = self.descriptor.columns().iter().map(|leaf| leaf.path().string()).collect();
        format!("{} {}", self.source.path.display(), no_column(name, "", &names, used))
    }
}
