//! `machine.cu`.

use super::names::Family;
use super::{Element, Guard, Id, Kernel};
use crate::runtime::Pointer;

/// Parameters of both directions of a factorization machine's second-order term.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Machine<T> {
    /// `[sample][stride]`: `count` vectors of `dim` elements, one after another.
    pub vectors: Pointer<T>,
    /// As the vectors: the gradients with respect to them, to which those of the term are added.
    pub gradients: Pointer<T>,
    /// One per sample: forward the terms, backward the gradients with respect to them.
    pub terms: Pointer<f32>,
    /// Backward: records non-finite results.
    pub guard: Pointer<Guard>,
    /// Samples.
    pub samples: u32,
    /// Vectors of a sample.
    pub count: u32,
    /// Elements of a vector.
    pub dim: u32,
    /// Elements from one sample's vectors to the next.
    pub stride: u32,
    /// 1 if the first vector is the output of a ReLU, which its gradients then go through; else 0.
    pub relu: u32,
    /// 0.
    pub reserved: u32,
}

/// Computes terms from vectors. Grid: any; it loops over the samples.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MachineForward<T>(pub Machine<T>);

// SAFETY: `machine.cu` has the same struct.
unsafe impl<T: Element> Kernel for MachineForward<T> {
    const ID: Id = Family::MachineForward.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}

/// Computes the gradients with respect to the vectors from those with respect to the terms. Grid: any; it loops over
/// the samples.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MachineBackward<T>(pub Machine<T>);

// SAFETY: `machine.cu` has the same struct.
unsafe impl<T: Element> Kernel for MachineBackward<T> {
    const ID: Id = Family::MachineBackward.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}
