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
}

const _: () = assert!(size_of::<BeginState>() == 56);

// SAFETY: `begin_state.cu` has the same struct.
unsafe impl Kernel for BeginState {
    const ID: Id = Id::BeginState;
    const NAME: &'static str = "begin_state";
    const THREADS: u32 = 256;
}
