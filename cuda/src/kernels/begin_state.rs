//! `begin_state.cu`.

use super::names::Family;
use super::{Id, Kernel, Rule};
use crate::runtime::Pointer;

/// Initializes the optimizer state of a table's rows. Grid: any number of blocks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BeginState {
    /// `[row][words]`, weights before state.
    pub rows: Pointer<f32>,
    /// Rows.
    pub rows_count: u64,
    /// Their rule.
    pub rule: Rule,
    /// Words of a row.
    pub words: u32,
    /// Words before its state.
    pub weights: u32,
    /// Elements of a row, padded to a multiple of 4.
    pub dim: u32,
    /// Type of the weights: a [`super::Dtype`].
    pub dtype: u32,
}

// SAFETY: `begin_state.cu` has the same struct.
unsafe impl Kernel for BeginState {
    const ID: Id = Family::BeginState.variant([]);
    const THREADS: u32 = 256;
}
