//! The tables and ids that the examples measure with: a shape's tables, ids drawn from a power law.

use rankine_embedding::random::philox4x32;
use rankine_embedding::{Dtype, TableSpec};
use rankine_reader::generate::{PowerLaw, Shape};

/// Which tables, and how they are looked up.
#[derive(Debug, clap::Args)]
pub(crate) struct Workload {
    /// The tables: a built-in shape, or the file of one
    #[arg(long, default_value = "dlrm")]
    pub(crate) shape: String,
    /// No table has more rows than this
    #[arg(long, default_value_t = 5_000_000)]
    pub(crate) rows_cap: u64,
    /// Elements of a row
    #[arg(long, default_value_t = 128)]
    pub(crate) dim: usize,
    /// The exponent of the ids' power law
    #[arg(long, default_value_t = 1.1)]
    pub(crate) alpha: f64,
}

impl Workload {
    /// The shape's tables.
    pub(crate) fn tables(&self, shape: &Shape) -> Vec<TableSpec> {
        let table = |(number, &rows): (usize, &u64)| TableSpec {
            name: format!("c{number}"),
            rows: rows.min(self.rows_cap),
            dim: self.dim,
            dtype: Dtype::Fp32,
        };
        shape.rows.iter().enumerate().map(table).collect()
    }

    /// What the ids of each table are drawn from.
    pub(crate) fn laws(&self, tables: &[TableSpec]) -> Vec<PowerLaw> {
        tables.iter().map(|table| PowerLaw::new(table.rows, self.alpha)).collect()
    }
}

/// The id of a table at a place: that among a batch's, the batch and the rank.
pub(crate) fn id(law: &PowerLaw, table: usize, [at, batch, rank]: [u32; 3]) -> u32 {
    let words = philox4x32([at, batch, rank, 0], [table as u32, 1]);
    let bits = u64::from(words[0]) << 21 | u64::from(words[1]) >> 11;
    law.row(law.rank(bits as f64 / (1u64 << 53) as f64)) as u32
}
