//! Matrices in fp8, as products take them.

use super::E4m3;
use super::Fp8Scaling;
use crate::runtime::{Matrix, Pointer};

/// A matrix in fp8. Its sizes are multiples of 16, except for the number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Tensor {
    /// `[sample][column]`; for weights `[output][input]`, with rows ordered by [`crate::kernels::paired_position`].
    pub rows: Matrix<E4m3>,
    /// `[column][sample]`, with samples ordered by [`crate::kernels::transposed_position`] and padded to a multiple of
    /// 16; for weights `[input][output]`, with rows in pairs as well.
    pub turned: Matrix<E4m3>,
    /// The scaling of both.
    pub scaling: Pointer<Fp8Scaling>,
}

impl Fp8Tensor {
    /// Returns [`Fp8Tensor::rows`] with their scaling.
    pub fn straight(&self) -> Fp8Matrix {
        Fp8Matrix { numbers: self.rows, scaling: self.scaling }
    }

    /// Returns [`Fp8Tensor::turned`] with their scaling.
    pub fn across(&self) -> Fp8Matrix {
        Fp8Matrix { numbers: self.turned, scaling: self.scaling }
    }
}

/// A matrix in fp8 with its scaling.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Matrix {
    /// The numbers.
    pub numbers: Matrix<E4m3>,
    /// Their scaling.
    pub scaling: Pointer<Fp8Scaling>,
}

/// The factors of a product: `samples weightsᵀ`.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Factors {
    /// `[sample][depth]`
    pub samples: Fp8Matrix,
    /// `[column][depth]`, with rows in pairs.
    pub weights: Fp8Matrix,
}

/// What a cross layer keeps for the gradients with respect to x0.
#[derive(Debug, Clone, Copy)]
pub struct Fp8CrossKept {
    /// Its product.
    pub product: Fp8Matrix,
    /// The gradients with respect to its result.
    pub gradients: Fp8Matrix,
    /// One per column.
    pub bias: Pointer<f32>,
}
