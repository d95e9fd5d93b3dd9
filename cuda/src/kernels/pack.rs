//! `pack.cu`.

use super::{Id, Kernel};
use crate::buffer::Pointer;

/// Copies rows at some positions, one behind the other, to memory of the host that the GPU accesses
/// ([`crate::Pinned::device_pointer`]). Grid: any.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Pack {
    /// The first row, at a multiple of 16 bytes.
    pub rows: Pointer<f32>,
    /// Whose rows are wanted; may be in the host's memory.
    pub positions: Pointer<u32>,
    /// Room for as many rows, at a multiple of 16 bytes.
    pub packed: Pointer<f32>,
    /// Positions.
    pub count: u32,
    /// Words of four bytes from one row to the next, divided by [`Pack::VECTOR`].
    pub row_vectors: u32,
}

impl Pack {
    /// Words by which rows are read.
    pub const VECTOR: usize = 4;
}

const _: () = assert!(size_of::<Pack>() == 32);

// SAFETY: `pack.cu` has the same struct.
unsafe impl Kernel for Pack {
    const ID: Id = Id::Pack;
    const NAME: &'static str = "pack";
    const THREADS: u32 = 256;
}
