//! `begin_state.cu`.

use super::{Id, Kernel, Rule};
use crate::buffer::Pointer;

/// Sets the state that the rows of a table begin with. Grid: any number of blocks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BeginState {
    /// `[row][words]`, each row's weights in front of its state.
    pub rows: Pointer<f32>,
    /// Rows.
    pub rows_count: u64,
    /// Their rule.
    pub rule: Rule,
    /// Words of a row.
    pub words: u32,
    /// Those in front of its state.
    pub weights: u32,
    /// Its elements, filled up to a multiple of 4.
    pub dim: u32,
    /// What the weights are stored as: a [`super::Dtype`].
    pub dtype: u32,
}

const _: () = assert!(size_of::<BeginState>() == 64);

// SAFETY: `begin_state.cu` has the same struct.
unsafe impl Kernel for BeginState {
    const ID: Id = Id::BeginState;
    const NAME: &'static str = "begin_state";
    const THREADS: u32 = 256;
}
