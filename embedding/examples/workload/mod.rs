//! The tables and ids of the examples: a shape's tables, and ids drawn from a power law.

use rankine_embedding::random::philox4x32;
use rankine_embedding::{Dtype, TableSpec};
use rankine_reader::generate::{PowerLaw, Shape};

/// Which tables, and how they are looked up.
#[derive(Debug, clap::Args)]
pub(crate) struct Workload {
    /// The tables: a built-in shape, or a file with one
    #[arg(long, default_value = "dlrm")]
    pub(crate) shape: String,
    /// The most rows of a table
    #[arg(long, default_value_t = 5_000_000)]
    pub(crate) rows_cap: u64,
    /// Elements per row
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
            dynamic: None,
        };
        shape.rows.iter().enumerate().map(table).collect()
    }

    /// The distribution of each table's ids.
    pub(crate) fn laws(&self, tables: &[TableSpec]) -> Vec<PowerLaw> {
        tables.iter().map(|table| PowerLaw::new(table.rows, self.alpha)).collect()
    }
}

/// The id of a table at an index: the index within the batch, the batch and the rank.
pub(crate) fn id(law: &PowerLaw, table: usize, [at, batch, rank]: [u32; 3]) -> u32 {
    let words = philox4x32([at, batch, rank, 0], [table as u32, 1]);
    let bits = u64::from(words[0]) << 21 | u64::from(words[1]) >> 11;
    law.row(law.rank(bits as f64 / (1u64 << 53) as f64)) as u32
}
