//! `dot.cu`.

use super::{Element, Guard, Id, Kernel};
use crate::buffer::Pointer;

/// What both directions of the dot interaction take.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Dot<T> {
    /// `[sample][vectors_stride]`: `count` vectors of `dim` elements, one behind the other.
    pub vectors: Pointer<T>,
    /// `[sample][stride]`: `passed` elements of the first vector, the products, zeros; back, the gradients by them.
    pub products: Pointer<T>,
    /// As the vectors: the gradients by them; null forward.
    pub gradients: Pointer<T>,
    /// Is told, back, where one of those is no finite number.
    pub guard: Pointer<Guard>,
    /// Samples.
    pub samples: u32,
    /// Vectors of a sample.
    pub count: u32,
    /// Elements of a vector, a multiple of 16.
    pub dim: u32,
    /// Elements from one sample's vectors to the next, a multiple of 8.
    pub vectors_stride: u32,
    /// `dim`, or 0 where no vector is passed on.
    pub passed: u32,
    /// Elements from one sample's products to the next, a multiple of 8.
    pub stride: u32,
    /// 1 where there is a ReLU before the first vector, else 0.
    pub relu: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Dot<f32>>() == 64);

/// Vectors of a sample that tensor cores take.
const VECTORS_MAX: u32 = 48;
/// Samples that a block takes at a time, in bf16.
const WARPS: u32 = 4;

impl<T: Element> Dot<T> {
    /// Blocks for a GPU of so many multiprocessors. Either direction loops over the samples.
    pub fn grid(&self, multiprocessors: u32) -> (u32, u32) {
        let at_once = if T::BF16 { WARPS } else { 1 };
        (self.samples.div_ceil(at_once).min(multiprocessors * 16), 1)
    }

    /// Whether the vectors of a sample fit where a multiprocessor works on them.
    pub fn fits(count: u32, dim: u32, stride: u32) -> bool {
        if T::BF16 && count > VECTORS_MAX {
            return false;
        }
        let bytes = |forward| Self::bytes(count, dim, stride, forward);
        bytes(true).max(bytes(false)) <= super::SHARED_BYTES_MAX as u32
    }

    fn bytes(count: u32, dim: u32, stride: u32, forward: bool) -> u32 {
        if !T::BF16 {
            return 4 * (count * (dim + 4) + if forward { 0 } else { count * count });
        }
        let rows = count.next_multiple_of(16);
        let (matrix, places) = if forward { (0, 0) } else { (rows * (rows + 8), 2 * count * (count - 1)) };
        WARPS * (2 * (rows * (dim + 8) + matrix + stride)).next_multiple_of(128) + places
    }
}

/// From vectors to products. Grid: [`Dot::grid`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct DotForward<T>(pub Dot<T>);

// SAFETY: `dot.cu` has the same struct, and takes shared memory for what `bytes` counts.
unsafe impl<T: Element> Kernel for DotForward<T> {
    const ID: Id = if T::BF16 { Id::DotForwardBf16 } else { Id::DotForwardF32 };
    const NAME: &'static str = "dot_forward";
    const THREADS: u32 = 128;

    fn shared_bytes(&self) -> u32 {
        Dot::<T>::bytes(self.0.count, self.0.dim, self.0.stride, true)
    }
}

/// From the gradients by the products to those by the vectors. Grid: [`Dot::grid`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct DotBackward<T>(pub Dot<T>);

// SAFETY: `dot.cu` has the same struct, and takes shared memory for what `bytes` counts.
unsafe impl<T: Element> Kernel for DotBackward<T> {
    const ID: Id = if T::BF16 { Id::DotBackwardBf16 } else { Id::DotBackwardF32 };
    const NAME: &'static str = "dot_backward";
    const THREADS: u32 = 128;

    fn shared_bytes(&self) -> u32 {
        Dot::<T>::bytes(self.0.count, self.0.dim, self.0.stride, false)
    }
}
