//! The columns of a file, and checks that their types fit their targets.

use half::f16;
use parquet::basic::{ConvertedType, LogicalType, TimeUnit as ParquetUnit, Type as PhysicalType};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};
use rankine_base::nearest::{no_column, quoted};

use crate::convert::rows::raw_type::{RawColumnType, RawType};
use crate::convert::rows::value_type::{TimeUnit, ValueType, ValueUse};
use crate::convert::text::lines::Source;

/// Maximum number of digits of a decimal, which fits 128 bits.
const DIGITS_MAX: i32 = 38;

/// A column of values.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// Its number in the file.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) list: bool,
    pub(super) values: ValueType,
    pub(super) unsigned: bool,
    /// The definition level of a non-null value.
    pub(super) defined: i16,
    /// Whether values of a list may be null.
    pub(super) nulls_in_list: bool,
}

impl Leaf {
    pub(super) fn new(index: usize, name: &str, leaf: &ColumnDescPtr, values: ValueType) -> Self {
        let unsigned = matches!(leaf.logical_type_ref(), Some(LogicalType::Integer(int)) if !int.is_signed)
            || matches!(
                leaf.converted_type(),
                ConvertedType::UINT_8
                    | ConvertedType::UINT_16
                    | ConvertedType::UINT_32
                    | ConvertedType::UINT_64
            );
        let (list, defined) = (leaf.max_rep_level() > 0, leaf.max_def_level());
        let nulls_in_list = list && leaf.self_type().is_optional();
        Self { index, name: name.to_owned(), list, values, unsigned, defined, nulls_in_list }
    }
}

/// Returns the type of a leaf's values.
///
/// # Errors
/// What its values are, if they cannot be read.
pub(super) fn value_type(leaf: &ColumnDescPtr) -> Result<ValueType, &'static str> {
    let annotated = leaf.logical_type_ref().is_some() || leaf.converted_type() != ConvertedType::NONE;
    if let Some(scale) = decimal_scale(leaf) {
        let scale = i8::try_from(scale).ok().filter(|_| leaf.type_precision() <= DIGITS_MAX);
        return scale.map(|scale| ValueType::Decimal { scale }).ok_or("decimals of more than 38 digits");
    }
    Ok(match leaf.physical_type() {
        PhysicalType::BOOLEAN => ValueType::Boolean,
        PhysicalType::FLOAT | PhysicalType::DOUBLE => ValueType::Float,
        PhysicalType::INT96 => ValueType::Timestamp(TimeUnit::Nanosecond),
        PhysicalType::INT32 | PhysicalType::INT64 => integer_type(leaf),
        PhysicalType::FIXED_LEN_BYTE_ARRAY
            if matches!(leaf.logical_type_ref(), Some(LogicalType::Float16))
                && leaf.type_length() as usize == size_of::<f16>() =>
        {
            ValueType::Float
        }
        PhysicalType::FIXED_LEN_BYTE_ARRAY if annotated => return Err("of a type that has no text"),
        PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY => ValueType::Text,
    })
}

/// Returns the scale of decimals.
fn decimal_scale(leaf: &ColumnDescPtr) -> Option<i32> {
    let old = (leaf.converted_type() == ConvertedType::DECIMAL).then(|| leaf.type_scale());
    match leaf.logical_type_ref() {
        Some(LogicalType::Decimal(decimal)) => Some(decimal.scale),
        _ => old,
    }
}

fn integer_type(leaf: &ColumnDescPtr) -> ValueType {
    let unit = |unit: &ParquetUnit| match unit {
        ParquetUnit::MILLIS => TimeUnit::Millisecond,
        ParquetUnit::MICROS => TimeUnit::Microsecond,
        ParquetUnit::NANOS => TimeUnit::Nanosecond,
    };
    match (leaf.logical_type_ref(), leaf.converted_type()) {
        (Some(LogicalType::Date), _) | (_, ConvertedType::DATE) => ValueType::Date,
        (Some(LogicalType::Time(time)), _) => ValueType::Time(unit(&time.unit)),
        (Some(LogicalType::Timestamp(time)), _) => ValueType::Timestamp(unit(&time.unit)),
        (_, ConvertedType::TIME_MILLIS) => ValueType::Time(TimeUnit::Millisecond),
        (_, ConvertedType::TIME_MICROS) => ValueType::Time(TimeUnit::Microsecond),
        (_, ConvertedType::TIMESTAMP_MILLIS) => ValueType::Timestamp(TimeUnit::Millisecond),
        (_, ConvertedType::TIMESTAMP_MICROS) => ValueType::Timestamp(TimeUnit::Microsecond),
        _ => ValueType::Integer,
    }
}

/// Returns what a schema file can make of a leaf.
fn raw_type(leaf: &ColumnDescPtr) -> RawType {
    match value_type(leaf) {
        Err(why) => RawType::Unusable(why),
        Ok(values) if leaf.max_rep_level() > 0 => match values.fits(ValueUse::Category) {
            true => RawType::List,
            false => RawType::Unusable("lists of values that are no categories"),
        },
        Ok(ValueType::Integer) => RawType::Integer,
        Ok(ValueType::Boolean | ValueType::Float | ValueType::Decimal { .. }) => RawType::Number,
        Ok(ValueType::Date | ValueType::Time(_) | ValueType::Timestamp(_)) => RawType::Time,
        Ok(ValueType::Text) => RawType::Text,
    }
}

/// Whether a column may have several values per row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bag {
    /// Its target has one value per row.
    Never,
    /// Its target could, but the first file has one per row.
    NotInFirstFile,
    Allowed,
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

    /// Returns the leaf for a target, which may be a `bag` of several values per row; `None` if the file does not have
    /// it.
    ///
    /// # Errors
    /// A description of why it does not fit.
    pub(super) fn find(&self, name: &str, wanted: ValueUse, bag: Bag) -> Result<Option<Leaf>, String> {
        let Some((index, leaf)) = self.leaf(name) else { return Ok(None) };
        let (path, list) = (self.source.path.display(), leaf.max_rep_level() > 0);
        let column = quoted(name);
        match bag {
            Bag::Never if list => {
                return Err(format!("column {column} is a list in {path}, but must have one value per row"));
            }
            Bag::NotInFirstFile if list => {
                return Err(format!(
                    "column {column} is a list in {path}, but has one category per row in the first file"
                ));
            }
            _ => {}
        }
        match value_type(&leaf) {
            Ok(values) if values.fits(wanted) => Ok(Some(Leaf::new(index, name, &leaf, values))),
            found => {
                let found = found
                    .map_or_else(|why| format!("values that are {why}"), |found| found.describe().into());
                Err(format!("column {column} has {found} in {path}, but must have {}", wanted.expects()))
            }
        }
    }

    /// Returns the leaf of a column whose texts are needed to `purpose`, such as "keep".
    ///
    /// # Errors
    /// A description of why the file does not have it, or why it has no texts.
    pub(super) fn text(&self, name: &str, purpose: &str) -> Result<Leaf, String> {
        let Some((index, leaf)) = self.leaf(name) else { return Err(self.lacks(name, |_| false)) };
        let what = match value_type(&leaf) {
            Ok(_) if leaf.max_rep_level() > 0 => "a list".to_owned(),
            Ok(values) => return Ok(Leaf::new(index, name, &leaf, values)),
            Err(why) => format!("a column of values that are {why}"),
        };
        Err(format!(
            "column {} of {} is {what}, which has no text to {purpose}: this needs a column of one value per row; \
             write the column as strings",
            quoted(name),
            self.source.path.display()
        ))
    }

    /// Returns what is said of a column that the file does not have; columns that are `used` are not what was meant.
    pub(super) fn lacks(&self, name: &str, used: impl Fn(&str) -> bool) -> String {
        let names: Vec<_> = self.descriptor.columns().iter().map(|leaf| leaf.path().string()).collect();
        format!("{} {}", self.source.path.display(), no_column(name, "", &names, used))
    }
}
