//! `totals.cu`.

use super::{Id, Kernel};
use crate::buffer::Pointer;

/// Sums the weights of the samples that have a head's label. Grid: one block a head.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Totals {
    /// `[head][sample]`: NaN where there is none.
    pub labels: Pointer<f32>,
    /// One a sample.
    pub weights: Pointer<f32>,
    /// One a head.
    pub totals: Pointer<f64>,
    /// Samples.
    pub samples: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Totals>() == 32);

// SAFETY: `totals.cu` has the same struct.
unsafe impl Kernel for Totals {
    const ID: Id = Id::Totals;
    const NAME: &'static str = "totals";
    const THREADS: u32 = 1024;
}
