//! `update.cu`.

use half::bf16;

use super::{Id, Kernel};
use crate::buffer::Pointer;

/// Adds up the ranks' gradients of an owner's rows, in the order of ranks, and updates each row once. Grid: any; a warp
/// takes a row at a time.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Update {
    /// `[row of this owner][dim]`
    pub table: Pointer<f32>,
    /// The union of the rows that ranks look up here.
    pub rows: Pointer<u32>,
    /// How many they are.
    pub rows_count: Pointer<u32>,
    /// `[row of the union][rank]`: 1 + the place of its gradient, or 0.
    pub sources: Pointer<u32>,
    /// `[place][dim]`
    pub gradients: Pointer<bf16>,
    /// The learning rate.
    pub rate: Pointer<f32>,
    /// All ranks.
    pub ranks: u32,
    /// Elements of a row, a multiple of 4.
    pub dim: u32,
}

const _: () = assert!(size_of::<Update>() == 56);

// SAFETY: `update.cu` has the same struct.
unsafe impl Kernel for Update {
    const ID: Id = Id::UpdateSgd;
    const NAME: &'static str = "update_sgd";
    const THREADS: u32 = 256;
}
