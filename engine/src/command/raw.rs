//! The arguments that say what the records of raw files are.

use rankine::job::Count;
use rankine_reader::generate::Shape;
use rankine_reader::raw::{RawDense, RawFormat, RawIds};

use super::CommandError;

/// What the fields of a record are, beside the shape.
#[derive(Debug, clap::Args)]
pub(crate) struct RecordArgs {
    /// Tables with more rows in the shape have this many [default: as many as the shape says]
    #[arg(long, value_name = "N", value_parser = super::arguments::count, requires = "shape")]
    rows_cap: Option<Count>,

    /// Labels of a record, each 0 or 1, as an integer or a float
    #[arg(long, value_name = "N", default_value_t = 1, requires = "shape")]
    labels: u32,

    /// What dense fields are: float, taken as they are, or int, taken as ln(max(x, 0) + 1)
    #[arg(long, value_name = "TYPE", default_value = "float", requires = "shape")]
    dense: RawDense,

    /// What ids count from: per-table (the first row of their table) or global-offset (the first row of all tables)
    #[arg(long, value_name = "KIND", default_value = "per-table", requires = "shape")]
    ids: RawIds,
}

impl RecordArgs {
    /// The format of records of a shape: a name, or the path of a file.
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
