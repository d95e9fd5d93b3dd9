//! Products of matrices in fp8, for GPUs for which [`crate::Device::multiplies_fp8`] holds.
//!
//! The tensor cores of Hopper take factors of fp8 with the depth along their rows alone. So whatever is multiplied lies
//! in memory twice, row by row and turned. `fp8_matmul.cu` writes both where the next product reads them; the gradients
//! by weights are cuBLASLt's.

use half::bf16;

use super::{
    Blas, Compute, Epilogue, Library, Matrix, Multiplied, Product, cross_gradient_behind, launcher, same,
    total,
};
use crate::buffer::Pointer;
use crate::error::Result;
use crate::fp8::E4m3;
use crate::kernels::{Element, Fp8Relu, Fp8ReluGradient, Fp8Scaling, Fp8ToBf16, matmul_pieces};

/// A matrix in fp8, whose sizes are multiples of 16, but that there may be any number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Tensor {
    /// `[sample][column]`; of weights `[output][input]`, the rows as [`crate::kernels::paired_place`] says.
    pub rows: Matrix<E4m3>,
    /// `[column][sample]`, the samples as [`crate::kernels::turned_place`] says and filled up to a multiple of 16; of
    /// weights `[input][output]`, the rows in pairs, too.
    pub turned: Matrix<E4m3>,
    /// Of both.
    pub scaling: Pointer<Fp8Scaling>,
}

/// The outputs of a ReLU.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Outputs {
    /// They themselves.
    pub outputs: Fp8Tensor,
    /// Which of them are above 0: [`Fp8Outputs::words`] of them, for kernels alone to read.
    pub bits: Pointer<u32>,
}

impl Fp8Outputs {
    /// Words of bits for so many outputs.
    pub const fn words(samples: usize, columns: usize) -> usize {
        Fp8Relu::words(samples, columns)
    }
}

impl Product {
    /// A layer with bias and ReLU: `out = relu(x weightsᵀ + bias)`. `learns` says whether a way back follows: else only
    /// `out.outputs.rows` is written.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix.
    pub fn fp8_relu(
        blas: &Blas,
        x: Fp8Tensor,
        weights: Fp8Tensor,
        bias: Pointer<f32>,
        out: Fp8Outputs,
        learns: bool,
    ) -> Result<Self> {
        let rows = out.outputs.rows;
        assert_eq!((x.rows.columns, x.rows.rows), (weights.rows.columns, rows.rows));
        assert_eq!(weights.rows.rows, rows.columns);
        let own = Fp8Relu::new(x, weights, bias, (out.outputs, out.bits), learns)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None })
    }

    /// The gradients by the inputs of a ReLU, and their sums over the samples, one a column: from those by what a layer
    /// made of its outputs.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix, or the memory does not suffice.
    pub fn fp8_relu_gradient(
        blas: &Blas,
        gradients: Fp8Tensor,
        weights: Fp8Tensor,
        bits: Pointer<u32>,
        out: Fp8Tensor,
        sums: Pointer<f32>,
    ) -> Result<Self> {
        let (rows, columns) = (out.rows.rows, out.rows.columns);
        assert_eq!((gradients.rows.columns, gradients.rows.rows), (weights.turned.columns, rows));
        assert_eq!(weights.turned.rows, columns);
        let sums = total(blas, matmul_pieces(rows), columns, sums)?;
        let own = Fp8ReluGradient::new(gradients, weights, bits, out, sums.parts)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: Some(sums) })
    }

    /// `out = x weightsᵀ`, and with a bias `relu(x weightsᵀ + bias)`.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix.
    pub fn fp8_to_bf16(
        blas: &Blas,
        x: Fp8Tensor,
        weights: Fp8Tensor,
        bias: Option<Pointer<f32>>,
        out: Matrix<bf16>,
    ) -> Result<Self> {
        let factors = [(x.rows, x.scaling), (weights.rows, weights.scaling)];
        Self::to_bf16(blas, factors, bias.unwrap_or(Pointer::NULL), out)
    }

    /// `out = gradients weights` in bf16, and what the epilogue says: nothing, or a cross layer's way back.
    ///
    /// # Panics
    /// At other epilogues, and where elements are not bf16.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix, or the memory does not suffice.
    pub fn fp8_by_inputs<T: Element>(
        blas: &Blas,
        gradients: Fp8Tensor,
        weights: Fp8Tensor,
        out: Matrix<T>,
        epilogue: Epilogue<T>,
    ) -> Result<Self> {
        let factors = [(gradients.rows, gradients.scaling), (weights.turned, weights.scaling)];
        let plain = Self::to_bf16(blas, factors, Pointer::NULL, same(out))?;
        match epilogue {
            Epilogue::None => Ok(plain),
            Epilogue::CrossGradient { added, first, product, sums } => {
                let (behind, sums) = cross_gradient_behind(blas, added, [first, product, out], sums)?;
                let kernels = plain.kernels.into_iter().chain([behind]).collect();
                Ok(Self { library: None, kernels, sums: Some(sums) })
            }
            _ => panic!("{epilogue:?} behind a product in fp8"),
        }
    }

    fn to_bf16(
        blas: &Blas,
        [x, y]: [(Matrix<E4m3>, Pointer<Fp8Scaling>); 2],
        bias: Pointer<f32>,
        out: Matrix<bf16>,
    ) -> Result<Self> {
        assert_eq!((x.0.columns, x.0.rows, y.0.rows), (y.0.columns, out.rows, out.columns));
        let own = Fp8ToBf16::new(x, y, bias, out)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None })
    }

    /// The gradients by a layer's weights, `out = gradientsᵀ x`, by the library.
    ///
    /// # Errors
    /// Where there is no algorithm for it, or the memory does not suffice.
    pub fn fp8_by_weights(blas: &Blas, gradients: Fp8Tensor, x: Fp8Tensor, out: Matrix<f32>) -> Result<Self> {
        let factors = [(gradients.turned, gradients.scaling), (x.turned, x.scaling)];
        Self::fp8_by_library(blas, factors, out)
    }

    /// `out = x xᵀ` by the library, which shows what a GPU reaches.
    ///
    /// # Errors
    /// As for [`Product::fp8_by_weights`].
    pub fn fp8_square(blas: &Blas, x: Fp8Tensor, out: Matrix<bf16>) -> Result<Self> {
        Self::fp8_by_library(blas, [(x.rows, x.scaling); 2], out)
    }

    fn fp8_by_library<O: Multiplied>(
        blas: &Blas,
        [(x, of_x), (y, of_y)]: [(Matrix<E4m3>, Pointer<Fp8Scaling>); 2],
        out: Matrix<O>,
    ) -> Result<Self> {
        assert_eq!((x.columns, x.rows, y.rows), (y.columns, out.rows, out.columns));
        let (factors, scales) = ([(x, false), (y, true)], Some([of_x.inverse(), of_y.inverse()]));
        let library = Library::new(blas, Compute::Fp8, factors, out, Epilogue::None, scales)?;
        Ok(Self { library: Some(library), kernels: Vec::new(), sums: None })
    }
}
