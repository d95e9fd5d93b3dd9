//! `cross.cu`.

use super::names::Family;
use super::{Element, Guard, Id, Kernel};
use crate::runtime::Pointer;

/// Turns a cross layer's product into its result: `x' = x0 * (u + b) + x`, element by element. Grid: [`Cross::grid`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Cross<T> {
    /// x0: `[sample][first_stride]`
    pub first: Pointer<T>,
    /// x: `[sample][input_stride]`
    pub input: Pointer<T>,
    /// u: `[sample][columns]`
    pub product: Pointer<T>,
    /// b: `[columns]`
    pub bias: Pointer<f32>,
    /// `[sample][columns]`
    pub output: Pointer<T>,
    /// Samples.
    pub samples: u32,
    /// Columns, a multiple of 4.
    pub columns: u32,
    /// Elements from one sample's x0 to the next, a multiple of 4.
    pub first_stride: u32,
    /// Elements from one sample's x to the next, a multiple of 4.
    pub input_stride: u32,
}

/// Number of pieces for this many samples.
const fn pieces(samples: u32) -> u32 {
    samples.div_ceil(256)
}

impl<T> Cross<T> {
    /// Blocks.
    pub fn grid(&self) -> (u32, u32) {
        (pieces(self.samples), self.columns.div_ceil(128))
    }
}

// SAFETY: `cross.cu` has the same struct.
unsafe impl<T: Element> Kernel for Cross<T> {
    const ID: Id = Family::Cross.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}

/// Turns the gradients with respect to a cross layer's result into those with respect to its product and its bias.
/// Grid: [`CrossGradient::grid`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CrossGradient<T> {
    /// x0: `[sample][first_stride]`
    pub first: Pointer<T>,
    /// Null, or gradients that are added first: `[sample][columns]`.
    pub added: Pointer<T>,
    /// With respect to the result: `[sample][columns]`
    pub gradients: Pointer<T>,
    /// With respect to the product, `x0 * gradients`: `[sample][columns]`
    pub product_gradients: Pointer<T>,
    /// `[piece][columns]`, which [`super::Total`] adds up to the gradients with respect to b; see
    /// [`CrossGradient::pieces`].
    pub parts: Pointer<f32>,
    /// Samples.
    pub samples: u32,
    /// Columns, a multiple of 4.
    pub columns: u32,
    /// Elements from one sample's x0 to the next, a multiple of 4.
    pub first_stride: u32,
    /// 0.
    pub reserved: u32,
}

impl<T> CrossGradient<T> {
    /// Number of pieces for this many samples.
    pub const fn pieces(samples: u32) -> u32 {
        pieces(samples)
    }

    /// Blocks.
    pub fn grid(&self) -> (u32, u32) {
        (pieces(self.samples), self.columns.div_ceil(128))
    }
}

// SAFETY: `cross.cu` has the same struct.
unsafe impl<T: Element> Kernel for CrossGradient<T> {
    const ID: Id = Family::CrossGradient.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}

/// Adds to the gradients with respect to x0 what cross layers contribute because x0 is the factor of their products,
/// `(u + b) * gradients`. Grid: [`CrossFirst::grid`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CrossFirst<T> {
    /// u: `[sample][columns]`, per layer.
    pub products: [Pointer<T>; CROSS_LAYERS],
    /// With respect to the layers' results: `[sample][columns]` per layer.
    pub gradients: [Pointer<T>; CROSS_LAYERS],
    /// b: `[columns]` per layer.
    pub biases: [Pointer<f32>; CROSS_LAYERS],
    /// With respect to x0: `[sample][first_stride]`
    pub first_gradients: Pointer<T>,
    /// Records non-finite results.
    pub guard: Pointer<Guard>,
    /// Layers, at least one.
    pub layers: u32,
    /// Samples.
    pub samples: u32,
    /// Columns, a multiple of 4.
    pub columns: u32,
    /// Elements from one sample's x0 to the next, a multiple of 4.
    pub first_stride: u32,
    /// 1 if the first layer is the first of the network, whose x is x0: then the gradients with respect to its result
    /// are added as well; otherwise 0.
    pub through: u32,
    /// 0.
    pub reserved: u32,
}

/// The most layers that [`CrossFirst`] takes.
pub const CROSS_LAYERS: usize = 4;

impl<T> CrossFirst<T> {
    /// Blocks.
    pub fn grid(&self) -> (u32, u32) {
        (pieces(self.samples), self.columns.div_ceil(128))
    }
}

// SAFETY: `cross.cu` has the same struct.
unsafe impl<T: Element> Kernel for CrossFirst<T> {
    const ID: Id = Family::CrossFirst.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}
