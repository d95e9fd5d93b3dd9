//! `pack.cu`.

use super::names::Family;
use super::{Id, Kernel};
use crate::runtime::Pointer;

/// Copies chosen rows, one after another, to host memory that the GPU accesses
/// ([`crate::PinnedBuffer::device_pointer`]).
/// Grid: any.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Pack {
    /// The first row, at a multiple of 16 bytes.
    pub rows: Pointer<f32>,
    /// Positions of the rows to copy; may be in host memory.
    pub positions: Pointer<u32>,
    /// Receives the rows; at a multiple of 16 bytes.
    pub packed: Pointer<f32>,
    /// Positions.
    pub count: u32,
    /// Words of four bytes from one row to the next, divided by [`Pack::VECTOR`].
    pub row_vectors: u32,
}

impl Pack {
    /// Words per vector in which rows are read.
    pub const VECTOR: usize = 4;
}

// SAFETY: `pack.cu` has the same struct.
unsafe impl Kernel for Pack {
    const ID: Id = Family::Pack.variant([]);
    const THREADS: u32 = 256;
}
