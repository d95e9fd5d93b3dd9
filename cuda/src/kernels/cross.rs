//! `cross.cu`.

use super::{Element, Id, Kernel};
use crate::buffer::Pointer;

/// From a cross layer's product to its result: `x' = x0 * (u + b) + x`, element by element. Grid: [`Cross::grid`].
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

const _: () = assert!(size_of::<Cross<f32>>() == 56);

/// Pieces of so many samples.
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
    const ID: Id = Id::of::<T>([Id::CrossF32, Id::CrossBf16, Id::CrossF16]);
    const NAME: &'static str = "cross";
    const THREADS: u32 = 256;
}

/// From the gradients by a cross layer's result to those by its product, by its bias, and by x0 as far as they do not
/// come through the product. Grid: [`CrossBack::grid`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CrossBack<T> {
    /// x0: `[sample][first_stride]`
    pub first: Pointer<T>,
    /// u: `[sample][columns]`
    pub product: Pointer<T>,
    /// b: `[columns]`
    pub bias: Pointer<f32>,
    /// By the result: `[sample][columns]`
    pub gradients: Pointer<T>,
    /// By u: `[sample][columns]`
    pub product_gradients: Pointer<T>,
    /// By x0: `[sample][first_stride]`
    pub first_gradients: Pointer<T>,
    /// `[piece][columns]`, which [`super::Total`] adds up to the gradients by b; see [`CrossBack::pieces`].
    pub parts: Pointer<f32>,
    /// Samples.
    pub samples: u32,
    /// Columns, a multiple of 4.
    pub columns: u32,
    /// Elements from one sample's x0 to the next, a multiple of 4.
    pub first_stride: u32,
    /// 1 where the gradients by x0 are added to what is there, else 0.
    pub add: u32,
    /// 1 in the first layer, whose x is x0: the gradients by its result are added to those by x0; else 0.
    pub through: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<CrossBack<f32>>() == 80);

impl<T> CrossBack<T> {
    /// Pieces of so many samples.
    pub const fn pieces(samples: u32) -> u32 {
        pieces(samples)
    }

    /// Blocks.
    pub fn grid(&self) -> (u32, u32) {
        (pieces(self.samples), self.columns.div_ceil(128))
    }
}

// SAFETY: `cross.cu` has the same struct.
unsafe impl<T: Element> Kernel for CrossBack<T> {
    const ID: Id = Id::of::<T>([Id::CrossBackF32, Id::CrossBackBf16, Id::CrossBackF16]);
    const NAME: &'static str = "cross_back";
    const THREADS: u32 = 256;
}
