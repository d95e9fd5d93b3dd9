//! `dense_sgd.cu`.

use half::bf16;

use super::{Id, Kernel, Step};
use crate::buffer::Pointer;

/// Updates dense parameters by gradient descent. Grid: any number of blocks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DenseSgd {
    /// The parameters.
    pub parameters: Pointer<f32>,
    /// Their gradients.
    pub gradients: Pointer<f32>,
    /// Null, or the parameters rounded.
    pub copies: Pointer<bf16>,
    /// Says the learning rate.
    pub step: Pointer<Step>,
    /// Nothing is written where it is not 0.
    pub stop: Pointer<u32>,
    /// Parameters.
    pub count: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<DenseSgd>() == 48);

// SAFETY: `dense_sgd.cu` has the same struct.
unsafe impl Kernel for DenseSgd {
    const ID: Id = Id::DenseSgd;
    const NAME: &'static str = "dense_sgd";
    const THREADS: u32 = 256;
}
