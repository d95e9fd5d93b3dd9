//! `initialize.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Id, Kernel, NewRow, Shard};
use crate::runtime::Pointer;

/// Sets the initial weights of a GPU's rows. Grid: any; a warp handles one row at a time.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Initialize {
    /// This GPU's rows, shard by shard.
    pub rows: Pointer<f32>,
    /// Ordered by base.
    pub shards: Pointer<Shard>,
    /// One per shard: the largest magnitude of a weight; 0 for zeros.
    pub bounds: Pointer<f32>,
    /// The run's seed.
    pub seed: u64,
    /// Shards.
    pub shards_count: u32,
    /// Number of all rows.
    pub rows_count: u32,
}

// SAFETY: `initialize.cu` has the same struct.
unsafe impl Kernel for Initialize {
    const ID: Id = Family::Initialize.variant([]);
    const THREADS: u32 = 256;
}

/// A shard of a table whose rows begin anew with the rows of a dynamic table: of that one, or of first-order terms.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct NewRowsOf {
    /// Its number.
    pub shard: u32,
    /// The stream of its random numbers.
    pub stream: u32,
    /// The largest magnitude of an initial weight; 0 for zeros.
    pub bound: f32,
    /// 0.
    pub reserved: u32,
}

/// Sets weights and state of rows that begin anew. Grid: any; a warp handles one row at a time.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NewRows {
    /// This GPU's rows, shard by shard.
    pub rows: Pointer<f32>,
    /// The shards of the rows.
    pub shards: Pointer<Shard>,
    /// By dynamic table: the shards whose rows begin anew.
    pub tables: Pointer<NewRowsOf>,
    /// Per dynamic table: where its shards begin, and where the last one's end.
    pub begins: Pointer<u32>,
    /// The rows.
    pub new_rows: Pointer<NewRow>,
    /// Their number.
    pub count: Pointer<u32>,
    /// Null, or one bit per row of all tables: set for these rows.
    pub touched: Pointer<u32>,
    /// The run's seed.
    pub seed: u64,
}

// SAFETY: `initialize.cu` has the same struct.
unsafe impl Kernel for NewRows {
    const ID: Id = Family::NewRows.variant([]);
    const THREADS: u32 = 256;
}
