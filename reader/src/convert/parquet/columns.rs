//! The columns of a file: which there are, and whether they are fit for what is made of them.

use parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};

use crate::convert::lines::Source;
use crate::nearest;

/// Names that a message lists, of many.
const NAMES_SHOWN: usize = 30;

/// A column of values.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// Its number in the file.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) list: bool,
    pub(super) unsigned: bool,
    /// The definition level of a value that is there.
    pub(super) defined: i16,
}

/// What a target can be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
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
    /// A column by its name: of a value, a list, or by a dotted path within groups.
    pub(super) fn leaf(&self, name: &str) -> Option<(usize, ColumnDescPtr)> {
        let leaves = || self.descriptor.columns().iter().cloned().enumerate();
        leaves().find(|(_, leaf)| leaf.path().string() == name).or_else(|| {
            let mut below =
                leaves().filter(|(_, leaf)| leaf.path().parts().first().is_some_and(|root| root == name));
            below.next().filter(|_| below.next().is_none())
        })
    }

    /// The leaf that a target takes; `None` where there is none.
    ///
    /// # Errors
    /// What makes it unfit.
    pub(super) fn find(&self, name: &str, wanted: Wanted, bag: bool) -> Result<Option<Leaf>, String> {
        let Some((index, leaf)) = self.leaf(name) else { return Ok(None) };
        let (path, list) = (self.source.path.display(), leaf.max_rep_level() > 0);
        if leaf.max_rep_level() > 1 || (list && wanted != Wanted::Category) {
            let what = if list && wanted != Wanted::Category {
                "a list, and one value a row"
            } else {
                "a list of lists, and a list"
            };
            return Err(format!("{path} has {what} is wanted here"));
        }
        if list && !bag {
            return Err(format!("{path} has a list here, and the first file has one category a row"));
        }
        let kind = leaf.physical_type();
        let decimal = matches!(leaf.logical_type_ref(), Some(LogicalType::Decimal { .. }))
            || leaf.converted_type() == ConvertedType::DECIMAL;
        let fits = !decimal
            && match kind {
                PhysicalType::INT32 | PhysicalType::INT64 => wanted != Wanted::Text,
                PhysicalType::BOOLEAN | PhysicalType::FLOAT | PhysicalType::DOUBLE => {
                    wanted == Wanted::Number
                }
                PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY => wanted != Wanted::Number,
                PhysicalType::INT96 => false,
            };
        if !fits {
            let kind = if decimal { "DECIMAL".to_owned() } else { kind.to_string() };
            let wanted = match wanted {
                Wanted::Number => "numbers (integers, floats or booleans)",
                Wanted::Text => "text",
                Wanted::Category => "categories (text or integers)",
            };
            return Err(format!("{path} has {kind} here, and {wanted} are wanted"));
        }
        let unsigned = matches!(leaf.logical_type_ref(), Some(LogicalType::Integer(int)) if !int.is_signed)
            || matches!(
                leaf.converted_type(),
                ConvertedType::UINT_8
                    | ConvertedType::UINT_16
                    | ConvertedType::UINT_32
                    | ConvertedType::UINT_64
            );
        let defined = leaf.max_def_level();
        Ok(Some(Leaf { index, name: name.to_owned(), list, unsigned, defined }))
    }

    pub(super) fn lacks(&self, name: &str) -> String {
        let names: Vec<_> = self.descriptor.columns().iter().map(|leaf| leaf.path().string()).collect();
        let meant = nearest(name, names.iter().map(String::as_str));
        let meant = meant.map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"));
        let shown: Vec<_> = names.iter().take(NAMES_SHOWN).map(|name| format!("{name:?}")).collect();
        let more = if names.len() > NAMES_SHOWN { ", ..." } else { "" };
        format!(
            "{} has no column {name:?}{meant}; it has {}{more}",
            self.source.path.display(),
            shown.join(", ")
        )
    }
}
