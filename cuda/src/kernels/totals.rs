//! `totals.cu`.

use super::names::Family;
use super::{Id, Kernel};
use crate::runtime::Pointer;

/// Sums the weights of the samples that have a label for a head. Grid: one block per head.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Totals {
    /// `[head][sample]`: NaN if missing.
    pub labels: Pointer<f32>,
    /// One per sample.
    pub weights: Pointer<f32>,
    /// One per head.
    pub totals: Pointer<f64>,
    /// Samples.
    pub samples: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `totals.cu` has the same struct.
unsafe impl Kernel for Totals {
    const ID: Id = Family::Totals.variant([]);
    const THREADS: u32 = 1024;
}
