//! What the parts of a network share: the GPU, the dense parameters, the guard, and buffers for activations and sums.

use std::sync::Arc;

use rankine_cuda::blas::{Blas, Compute, Epilogue, Matrix, Product};
use rankine_cuda::kernels::{Element, Guard, Total};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::Result;

use super::dense::Dense;
use super::quantization::Fp8;
use super::rows::NetworkRows;

/// The algorithms of products that score are those for this many samples.
const SCORED_ROWS: usize = 65536;
/// Blocks per multiprocessor, for kernels that loop.
const BLOCKS_EACH: u32 = 8;

/// The resources that the parts of a network share.
#[derive(Debug)]
pub(super) struct Resources<T> {
    pub(super) device: Arc<Device>,
    pub(super) blas: Blas,
    /// For weight gradients, which may be computed in parallel with all other products.
    pub(super) weights_blas: Blas,
    pub(super) compute: Compute,
    /// Samples of a training batch.
    pub(super) samples: usize,
    pub(super) dense: Dense<T>,
    pub(super) guard: Buffer<Guard>,
    /// The shared resources of parts in fp8, if there are any.
    pub(super) fp8: Option<Fp8>,
}

impl<T: Element> Resources<T> {
    /// Returns the grid of kernels that loop.
    pub(super) fn blocks(&self) -> (u32, u32) {
        (BLOCKS_EACH * self.device.multiprocessors(), 1)
    }

    /// Returns the shared resources of parts in fp8.
    ///
    /// # Panics
    /// If there are no such parts.
    pub(super) fn fp8(&self) -> &Fp8 {
        self.fp8.as_ref().expect("parts in fp8 are created together with their shared resources")
    }

    /// Plans a product of a forward pass, `x weightsᵀ`; `learns` is whether a backward pass follows. Otherwise all
    /// numbers of samples have the same algorithm, so that the logits of a sample do not depend on how many are scored
    /// at a time.
    pub(super) fn forward_product(
        &self,
        [x, weights]: [Matrix<T>; 2],
        out: Matrix<T>,
        epilogue: Epilogue<T>,
        learns: bool,
    ) -> Result<Product> {
        let rows = if learns { x.rows } else { SCORED_ROWS };
        Ok(Product::by_transposed_like(&self.blas, self.compute, [x, weights], out, epilogue, rows)?)
    }

    /// Returns the samples of a training batch, in the type that kernels use.
    pub(super) fn samples_count(&self) -> u32 {
        self.samples as u32
    }
}

/// Partial sums over the samples, `[piece][columns]`, which a separate kernel adds up.
#[derive(Debug)]
pub(super) struct PartialSums {
    parts: Buffer<f32>,
    pieces: u32,
    columns: u32,
}

impl PartialSums {
    pub(super) fn new(device: &Arc<Device>, pieces: u32, columns: usize) -> Result<Self> {
        let parts = Buffer::filled(device, pieces as usize * columns, 0xff)?;
        Ok(Self { parts, pieces, columns: columns as u32 })
    }

    /// The same for kernels that do not write padding.
    pub(super) fn zeroed(device: &Arc<Device>, pieces: u32, columns: usize) -> Result<Self> {
        let parts = Buffer::filled(device, pieces as usize * columns, 0)?;
        Ok(Self { parts, pieces, columns: columns as u32 })
    }

    pub(super) fn pointer(&self) -> Pointer<f32> {
        self.parts.pointer()
    }

    /// Enqueues adding them up.
    ///
    /// # Safety
    /// They must be computed, and `sums` must have one element per column; see [`Lane::launch`].
    pub(super) unsafe fn add_up(&self, lane: &Lane, sums: Pointer<f32>) -> Result<()> {
        let total = Total { parts: self.pointer(), sums, pieces: self.pieces, columns: self.columns };
        // SAFETY: the parts are this value's; the caller vouches for the rest.
        unsafe { lane.launch(&total, total.grid()) }?;
        Ok(())
    }
}

/// A matrix of activations, one row per sample of a training batch, and the gradients with respect to them. Behind
/// the values there is memory for the other samples that are scored at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct ActivationMatrices<T> {
    pub(super) values: Matrix<T>,
    pub(super) gradients: Matrix<T>,
}

impl<T: Copy> ActivationMatrices<T> {
    /// Returns the same matrices, with another element type of the same size.
    pub(super) fn cast<U>(self) -> ActivationMatrices<U> {
        ActivationMatrices { values: self.values.cast(), gradients: self.gradients.cast() }
    }

    /// Returns only the first columns.
    pub(super) fn first_columns(self, columns: usize) -> Self {
        let first = |matrix: Matrix<T>| Matrix { columns, ..matrix };
        Self { values: first(self.values), gradients: first(self.gradients) }
    }
}

/// Buffers for activations and the gradients with respect to them.
#[derive(Debug)]
pub(super) struct Activations<T> {
    values: Buffer<T>,
    gradients: Buffer<T>,
    rows: NetworkRows,
    columns: usize,
}

impl<T: Element> Activations<T> {
    /// Allocates zeros.
    pub(super) fn new(device: &Arc<Device>, rows: NetworkRows, columns: usize) -> Result<Self> {
        Self::with_more_gradients(device, rows, columns, 0)
    }

    /// The same, with `more` elements for each sample behind all gradients.
    pub(super) fn with_more_gradients(
        device: &Arc<Device>,
        rows: NetworkRows,
        columns: usize,
        more: usize,
    ) -> Result<Self> {
        let values = Buffer::filled(device, rows.values() * columns, 0)?;
        let gradients = Buffer::filled(device, rows.trained * (columns + more), 0)?;
        Ok(Self { values, gradients, rows, columns })
    }

    pub(super) fn matrices(&self) -> ActivationMatrices<T> {
        let matrix =
            |buffer: &Buffer<T>| Matrix::contiguous(buffer.pointer(), self.rows.trained, self.columns);
        ActivationMatrices { values: matrix(&self.values), gradients: matrix(&self.gradients) }
    }
}
