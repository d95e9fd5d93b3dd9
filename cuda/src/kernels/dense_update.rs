//! `dense_update.cu`.

use super::names::Family;
use super::{Element, Id, Kernel, Rate, Rule};
use crate::runtime::Pointer;

/// Updates dense parameters, by any rule except row-wise Adagrad. `T` is the element type of their copies. Grid: any
/// number of blocks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DenseUpdate<T> {
    /// The parameters.
    pub parameters: Pointer<f32>,
    /// Their gradients.
    pub gradients: Pointer<f32>,
    /// First state of each parameter; null if the rule keeps none.
    pub first: Pointer<f32>,
    /// Second state; null if the rule keeps at most one.
    pub second: Pointer<f32>,
    /// Null, or the parameters rounded to `T`.
    pub copies: Pointer<T>,
    /// The learning rate.
    pub rate: Pointer<Rate>,
    /// Factor of the gradients; null for 1.
    pub scale: Pointer<f32>,
    /// If this is not 0, nothing is written.
    pub stop: Pointer<u32>,
    /// The rule.
    pub rule: Rule,
    /// Parameters.
    pub count: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `dense_update.cu` has the same struct.
unsafe impl<T: Element> Kernel for DenseUpdate<T> {
    const ID: Id = Family::DenseUpdate.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}
