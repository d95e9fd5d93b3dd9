//! `columns.cu`.

use super::names::Family;
use super::{Element, Id, Kernel};
use crate::runtime::Pointer;

/// Sums gradients over pieces of the samples, column by column; if there was a ReLU, takes them through it first.
/// Grid: [`Columns::grid`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Columns<T> {
    /// `[sample][stride]`
    pub gradients: Pointer<T>,
    /// Null, or the ReLU's outputs: `[sample][outputs_stride]`.
    pub outputs: Pointer<T>,
    /// `[piece][columns]`
    pub parts: Pointer<f32>,
    /// Samples.
    pub samples: u32,
    /// Columns, a multiple of 4.
    pub columns: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// Elements from one sample's outputs to the next, a multiple of 4.
    pub outputs_stride: u32,
}

impl<T> Columns<T> {
    /// Number of pieces for this many samples.
    pub const fn pieces(samples: u32) -> u32 {
        samples.div_ceil(256)
    }

    /// Blocks.
    pub fn grid(&self) -> (u32, u32) {
        (Self::pieces(self.samples), self.columns.div_ceil(128))
    }
}

// SAFETY: `columns.cu` has the same struct.
unsafe impl<T: Element> Kernel for Columns<T> {
    const ID: Id = Family::Columns.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}

/// Adds up pieces. Grid: [`Total::grid`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Total {
    /// `[piece][columns]`
    pub parts: Pointer<f32>,
    /// `[columns]`
    pub sums: Pointer<f32>,
    /// Pieces.
    pub pieces: u32,
    /// Columns.
    pub columns: u32,
}

impl Total {
    /// Blocks.
    pub fn grid(&self) -> (u32, u32) {
        (self.columns.div_ceil(32), 1)
    }
}

// SAFETY: `columns.cu` has the same struct.
unsafe impl Kernel for Total {
    const ID: Id = Family::Total.variant([]);
    const THREADS: u32 = 1024;
}
