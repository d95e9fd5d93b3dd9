//! The format versions of a dataset, by what its schema has.

use crate::schema::{Categorical, Schema};

/// The format version of the whole dataset.
pub const FORMAT: u32 = 2;
/// The same with labels that state [`crate::schema::Label::negatives_kept`]: a reader that does not know it must refuse
/// them.
pub const FORMAT_DOWNSAMPLED: u32 = 3;
/// The same with ids that have weights, whether labels state that or not.
pub const FORMAT_WEIGHTED: u32 = 4;

/// The same with sequences, whether ids have weights, and labels state that, or not.
pub const FORMAT_SEQUENCES: u32 = 5;

/// The same with open vocabularies, whose ids are keys of 64 bits, whatever else the schema has.
pub const FORMAT_OPEN: u32 = 6;

/// Returns the format in which a dataset of a schema is written: the first one that can state it.
pub(super) fn of(schema: &Schema) -> u32 {
    match schema.is_downsampled() {
        _ if schema.categorical.iter().any(Categorical::is_open) => FORMAT_OPEN,
        _ if !schema.sequences.is_empty() => FORMAT_SEQUENCES,
        _ if schema.categorical.iter().any(|column| column.weighted) => FORMAT_WEIGHTED,
        true => FORMAT_DOWNSAMPLED,
        false => FORMAT,
    }
}

/// Returns whether datasets of a format are read.
pub(super) fn is_read(format: u32) -> bool {
    matches!(format, FORMAT | FORMAT_DOWNSAMPLED | FORMAT_WEIGHTED | FORMAT_SEQUENCES | FORMAT_OPEN)
}
