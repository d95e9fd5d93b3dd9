//! What the parts of a network share: the GPU, the dense parameters, the guard, and room for activations and sums.

use std::sync::Arc;

use rankine_cuda::blas::{Blas, Compute, Matrix};
use rankine_cuda::kernels::{Element, Guard, Total};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::Result;

use super::dense::Dense;
use super::fp8::Fp8;

/// Blocks a multiprocessor, for kernels that loop.
const BLOCKS_EACH: u32 = 8;

/// What the parts of a network work with.
#[derive(Debug)]
pub(super) struct Shared<T> {
    pub(super) device: Arc<Device>,
    pub(super) blas: Blas,
    /// Of the gradients by weights, which may be computed beside all other products.
    pub(super) beside: Blas,
    pub(super) compute: Compute,
    /// Samples of a batch.
    pub(super) samples: usize,
    pub(super) dense: Dense<T>,
    pub(super) guard: Buffer<Guard>,
    /// What parts in fp8 share, where there are any.
    pub(super) fp8: Option<Fp8>,
}

impl<T: Element> Shared<T> {
    /// Blocks of kernels that loop.
    pub(super) fn blocks(&self) -> (u32, u32) {
        (BLOCKS_EACH * self.device.multiprocessors(), 1)
    }

    /// What parts in fp8 share.
    ///
    /// # Panics
    /// Where there are none.
    pub(super) fn fp8(&self) -> &Fp8 {
        self.fp8.as_ref().expect("parts in fp8 were made with what they share")
    }

    /// The samples of a batch, as kernels count them.
    pub(super) fn samples_count(&self) -> u32 {
        self.samples as u32
    }
}

/// Room for sums over the samples in parts, `[piece][columns]`, which are added up apart from what makes them.
#[derive(Debug)]
pub(super) struct Parts {
    parts: Buffer<f32>,
    pieces: u32,
    columns: u32,
}

impl Parts {
    pub(super) fn new(device: &Arc<Device>, pieces: u32, columns: usize) -> Result<Self> {
        let parts = Buffer::filled(device, pieces as usize * columns, 0xff)?;
        Ok(Self { parts, pieces, columns: columns as u32 })
    }

    pub(super) fn pointer(&self) -> Pointer<f32> {
        self.parts.pointer()
    }

    /// Enqueues adding them up.
    ///
    /// # Safety
    /// They must be there, and `sums` must have a place for each column; see [`Lane::launch`].
    pub(super) unsafe fn add_up(&self, lane: &Lane, sums: Pointer<f32>) -> Result<()> {
        let total = Total { parts: self.pointer(), sums, pieces: self.pieces, columns: self.columns };
        // SAFETY: the parts are this value's; the caller vouches for the rest.
        unsafe { lane.launch(&total, total.grid()) }?;
        Ok(())
    }
}

/// A matrix of activations, a row a sample, and the gradients by them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Both<T> {
    pub(super) values: Matrix<T>,
    pub(super) gradients: Matrix<T>,
}

impl<T: Copy> Both<T> {
    /// The same matrices, of other elements of the same size.
    pub(super) fn cast<U>(self) -> Both<U> {
        Both { values: self.values.cast(), gradients: self.gradients.cast() }
    }

    /// Of the first columns alone.
    pub(super) fn first_columns(self, columns: usize) -> Self {
        let first = |matrix: Matrix<T>| Matrix { columns, ..matrix };
        Self { values: first(self.values), gradients: first(self.gradients) }
    }
}

/// Room for activations and the gradients by them.
#[derive(Debug)]
pub(super) struct Activations<T> {
    values: Buffer<T>,
    gradients: Buffer<T>,
    samples: usize,
    columns: usize,
}

impl<T: Element> Activations<T> {
    /// Of 0.
    pub(super) fn new(device: &Arc<Device>, samples: usize, columns: usize) -> Result<Self> {
        let buffer = || Buffer::filled(device, samples * columns, 0);
        Ok(Self { values: buffer()?, gradients: buffer()?, samples, columns })
    }

    pub(super) fn both(&self) -> Both<T> {
        let matrix = |buffer: &Buffer<T>| dense(buffer.pointer(), self.samples, self.columns);
        Both { values: matrix(&self.values), gradients: matrix(&self.gradients) }
    }
}

/// A matrix whose rows lie one behind the other.
pub(super) fn dense<T>(pointer: Pointer<T>, rows: usize, columns: usize) -> Matrix<T> {
    Matrix { pointer, rows, columns, stride: columns }
}

/// The first rows of a matrix: of a pass over fewer samples than there is room for.
pub(super) fn first_rows<T>(matrix: Matrix<T>, rows: usize) -> Matrix<T> {
    Matrix { rows, ..matrix }
}
