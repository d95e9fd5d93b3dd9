//! `dense_update.cu`.

use super::{Element, Id, Kernel, Rate, Rule};
use crate::buffer::Pointer;

/// Updates dense parameters, by any rule but the one of rows. `T` is what their copies consist of. Grid: any number of
/// blocks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DenseUpdate<T> {
    /// The parameters.
    pub parameters: Pointer<f32>,
    /// Their gradients.
    pub gradients: Pointer<f32>,
    /// The first number of state of each parameter; null where the rule keeps none.
    pub first: Pointer<f32>,
    /// The second; null where the rule keeps one at most.
    pub second: Pointer<f32>,
    /// Null, or the parameters rounded.
    pub copies: Pointer<T>,
    /// The learning rate.
    pub rate: Pointer<Rate>,
    /// What gradients are multiplied by; null for 1.
    pub scale: Pointer<f32>,
    /// Nothing is written where it is not 0.
    pub stop: Pointer<u32>,
    /// The rule.
    pub rule: Rule,
    /// Parameters.
    pub count: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<DenseUpdate<f32>>() == 104);

// SAFETY: `dense_update.cu` has the same struct.
unsafe impl<T: Element> Kernel for DenseUpdate<T> {
    const ID: Id = Id::of::<T>([Id::DenseUpdateF32, Id::DenseUpdateBf16, Id::DenseUpdateF16]);
    const NAME: &'static str = "dense_update";
    const THREADS: u32 = 256;
}
