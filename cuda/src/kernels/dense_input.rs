//! `dense_input.cu`.

use super::names::Family;
use super::{Element, Id, Kernel};
use crate::runtime::Pointer;

/// Converts dense columns to the element type of activations, padding each sample with zeros. Grid: any number of
/// blocks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DenseInput<T> {
    /// `[sample][columns]`
    pub dense: Pointer<f32>,
    /// `[sample][stride]`, of which `filled` elements are written.
    pub output: Pointer<T>,
    /// Samples.
    pub samples: u32,
    /// Columns.
    pub columns: u32,
    /// Elements written per sample: the columns, and zeros.
    pub filled: u32,
    /// Elements from one sample to the next.
    pub stride: u32,
}

// SAFETY: `dense_input.cu` has the same struct.
unsafe impl<T: Element> Kernel for DenseInput<T> {
    const ID: Id = Family::DenseInput.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}
