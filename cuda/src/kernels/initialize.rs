//! `initialize.cu`.

use super::names::Family;
use super::{Id, Kernel, Shard};
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
