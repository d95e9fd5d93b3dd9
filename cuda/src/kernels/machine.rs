//! `machine.cu`.

use super::{Element, Guard, Id, Kernel};
use crate::buffer::Pointer;

/// What both directions of a factorization machine's second-order term take.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Machine<T> {
    /// `[sample][stride]`: `count` vectors of `dim` elements, one behind the other.
    pub vectors: Pointer<T>,
    /// As the vectors: the gradients by them, to which those of the term are added.
    pub gradients: Pointer<T>,
    /// One a sample: the terms; back, the gradients by them.
    pub terms: Pointer<f32>,
    /// Is told, back, where one of the gradients is no finite number.
    pub guard: Pointer<Guard>,
    /// Samples.
    pub samples: u32,
    /// Vectors of a sample.
    pub count: u32,
    /// Elements of a vector.
    pub dim: u32,
    /// Elements from one sample's vectors to the next.
    pub stride: u32,
    /// 1 where there is a ReLU before the first vector, through which its gradients are taken then; else 0.
    pub relu: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Machine<f32>>() == 56);

/// From vectors to terms. Grid: any; it loops over the samples.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MachineForward<T>(pub Machine<T>);

// SAFETY: `machine.cu` has the same struct.
unsafe impl<T: Element> Kernel for MachineForward<T> {
    const ID: Id = Id::of::<T>([Id::MachineForwardF32, Id::MachineForwardBf16, Id::MachineForwardF16]);
    const NAME: &'static str = "machine_forward";
    const THREADS: u32 = 256;
}

/// From the gradients by the terms to those by the vectors. Grid: any; it loops over the samples.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MachineBackward<T>(pub Machine<T>);

// SAFETY: `machine.cu` has the same struct.
unsafe impl<T: Element> Kernel for MachineBackward<T> {
    const ID: Id = Id::of::<T>([Id::MachineBackwardF32, Id::MachineBackwardBf16, Id::MachineBackwardF16]);
    const NAME: &'static str = "machine_backward";
    const THREADS: u32 = 256;
}
