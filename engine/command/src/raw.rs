//! Arguments that describe the records of raw files.

use rankine_job::Count;
use rankine_reader::generate::Shape;
use rankine_reader::raw::{RawDense, RawFormat, RawIds};

use super::CommandError;

/// The fields of a record, in addition to the shape.
#[derive(Debug, clap::Args)]
pub(crate) struct RecordArgs {
    /// Limit tables to this number of rows [default: as in the shape]
    #[arg(long, value_name = "N", value_parser = super::arguments::count, requires = "shape")]
    rows_cap: Option<Count>,

    /// Number of labels per record; a label is 0 or 1, as an integer or a float
    #[arg(long, value_name = "N", default_value_t = 1, requires = "shape")]
    labels: u32,

    /// Type of dense fields: float, used unchanged, or int, transformed to ln(max(x, 0) + 1)
    #[arg(long, value_name = "TYPE", default_value = "float", requires = "shape")]
    dense: RawDense,

    /// How ids are numbered: per-table (from 0 in each table) or global-offset (over the rows of all tables)
    #[arg(long, value_name = "KIND", default_value = "per-table", requires = "shape")]
    ids: RawIds,
}

impl RecordArgs {
    /// Returns the record format for a shape, given by name or by the path of a shape file.
    pub(crate) fn format(&self, shape: &str) -> Result<RawFormat, CommandError> {
        Ok(RawFormat {
            rows_cap: self.rows_cap.map(Count::get),
            labels: self.labels,
            dense: self.dense,
            ids: self.ids,
            ..RawFormat::new(Shape::load(shape)?)
        })
    }
}
