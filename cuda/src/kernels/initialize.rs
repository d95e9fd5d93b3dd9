//! `initialize.cu`.

use bytemuck::{Pod, Zeroable};

use super::{Id, Kernel};
use crate::buffer::Pointer;

/// A table, as far as its first weights are concerned.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Table {
    /// Where its rows begin at every owner, in words of four bytes.
    pub words: u64,
    /// The number of its first row at every owner.
    pub base: u32,
    /// Weights lie within this distance of 0; where it is 0, they are zeros.
    pub bound: f32,
    /// Elements of a row; zeros follow them, up to a multiple of 4.
    pub dim: u32,
    /// Words from one row to the next.
    pub row_words: u32,
    /// What rows are stored as: a [`super::Dtype`].
    pub dtype: u32,
    /// 0.
    pub reserved: u32,
}

/// Sets the first weights of an owner's rows. Grid: any; a warp takes a row at a time.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Initialize {
    /// This owner's, table by table.
    pub rows: Pointer<f32>,
    /// All tables, in the order of their bases.
    pub tables: Pointer<Table>,
    /// The run's seed.
    pub seed: u64,
    /// Tables.
    pub tables_count: u32,
    /// Rows of this owner.
    pub rows_count: u32,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
}

const _: () = assert!(size_of::<Table>() == 32 && size_of::<Initialize>() == 40);

// SAFETY: `initialize.cu` has the same struct.
unsafe impl Kernel for Initialize {
    const ID: Id = Id::Initialize;
    const NAME: &'static str = "initialize";
    const THREADS: u32 = 256;
}
