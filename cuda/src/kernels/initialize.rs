//! `initialize.cu`.

use super::{Id, Kernel, Shard};
use crate::buffer::Pointer;

/// Sets the first weights of a GPU's rows. Grid: any; a warp takes a row at a time.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Initialize {
    /// This GPU's, shard by shard.
    pub rows: Pointer<f32>,
    /// In the order of their bases.
    pub shards: Pointer<Shard>,
    /// One a shard: weights lie within this distance of 0; where it is 0, they are zeros.
    pub bounds: Pointer<f32>,
    /// The run's seed.
    pub seed: u64,
    /// Shards.
    pub shards_count: u32,
    /// Rows that are numbered.
    pub rows_count: u32,
}

const _: () = assert!(size_of::<Initialize>() == 40);

// SAFETY: `initialize.cu` has the same struct.
unsafe impl Kernel for Initialize {
    const ID: Id = Id::Initialize;
    const NAME: &'static str = "initialize";
    const THREADS: u32 = 256;
}
