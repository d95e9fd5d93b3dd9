//! `fp8_cross_first.cu`.

use half::bf16;

use super::E4m3;
use super::names::Family;
use super::{CROSS_LAYERS, Fp8Scaling, Guard, Id, Kernel};
use crate::runtime::Pointer;

/// Adds to the gradients with respect to x0 what cross layers contribute because x0 is the factor of their products,
/// `(u + b) * gradients`. Grid: [`Fp8CrossFirst::grid`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Fp8CrossFirst {
    /// u: `[sample][columns]`, per layer.
    pub products: [Pointer<E4m3>; CROSS_LAYERS],
    /// With respect to the layers' results: `[sample][columns]` per layer.
    pub gradients: [Pointer<E4m3>; CROSS_LAYERS],
    /// Scalings of the products.
    pub products_scalings: [Pointer<Fp8Scaling>; CROSS_LAYERS],
    /// Scalings of the gradients.
    pub gradients_scalings: [Pointer<Fp8Scaling>; CROSS_LAYERS],
    /// b: `[columns]` per layer.
    pub biases: [Pointer<f32>; CROSS_LAYERS],
    /// With respect to x0: `[sample][first_stride]`
    pub first_gradients: Pointer<bf16>,
    /// Records non-finite results.
    pub guard: Pointer<Guard>,
    /// Layers, at least one.
    pub layers: u32,
    /// Samples.
    pub samples: u32,
    /// Columns, a multiple of [`super::FP8_MULTIPLE`].
    pub columns: u32,
    /// Elements from one sample's x0 to the next, a multiple of 4.
    pub first_stride: u32,
    /// 1 if the first layer is the first of the network, whose x is x0: then the gradients with respect to its result
    /// are added as well; otherwise 0.
    pub through: u32,
    /// 0.
    pub reserved: u32,
}

impl Fp8CrossFirst {
    /// Blocks.
    pub fn grid(&self) -> (u32, u32) {
        (self.samples.div_ceil(128), self.columns.div_ceil(256))
    }
}

// SAFETY: `fp8_cross_first.cu` has the same struct.
unsafe impl Kernel for Fp8CrossFirst {
    const ID: Id = Family::Fp8CrossFirst.variant([]);
    const THREADS: u32 = 256;
}
