//! Products of fp8 matrices, for GPUs on which [`crate::Device::multiplies_fp8`] returns true.
//!
//! Hopper's tensor cores take fp8 factors only with the depth along their rows, so every matrix is stored twice: row
//! by row and transposed. `fp8_matmul.cu` writes both for the next product; weight gradients are computed by
//! cuBLASLt.

use half::bf16;

use super::{Blas, BlasElement, Compute, Epilogue, Factor, Library, Product, launcher, total};
use crate::kernels::{
    CROSS_LAYERS, Fp8CrossGradient, Fp8CrossGradientMatrices, Fp8CrossKept, Fp8CrossLayer, Fp8CrossMatrices,
    Fp8Factors, Fp8GradientByFirst, Fp8Matrix, Fp8Outputs, Fp8Plain, Fp8Relu, Fp8ReluGradient, Fp8Tensor,
    Fp8ToBf16, Guard, matmul_pieces,
};
use crate::runtime::{Matrix, Pointer, Result};

impl Product {
    /// A layer with bias and ReLU: `out = relu(x weightsᵀ + bias)`. `learns` is whether a backward pass follows;
    /// otherwise only `out.outputs.rows` is written.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub fn fp8_relu(
        blas: &Blas,
        x: Fp8Tensor,
        weights: Fp8Tensor,
        bias: Pointer<f32>,
        out: Fp8Outputs,
        learns: bool,
    ) -> Result<Self> {
        let rows = out.outputs.rows;
        fits(x.straight(), weights.straight(), rows);
        let own = Fp8Relu::new(x, weights, bias, out, learns)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None })
    }

    /// The gradients with respect to the inputs of a ReLU, computed from those with respect to the outputs of the
    /// layer after it, and their sums over the samples, one per column.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix, or there is not enough memory.
    pub fn fp8_relu_gradient(
        blas: &Blas,
        gradients: Fp8Tensor,
        weights: Fp8Tensor,
        bits: Pointer<u32>,
        out: Fp8Tensor,
        sums: Pointer<f32>,
    ) -> Result<Self> {
        let (rows, columns) = (out.rows.rows, out.rows.columns);
        fits(gradients.straight(), weights.across(), out.rows);
        let sums = total(blas, matmul_pieces(rows), columns, sums)?;
        let own = Fp8ReluGradient::new(gradients, weights, bits, out, sums.parts)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: Some(sums) })
    }

    /// `out = x weightsᵀ`. `learns` is whether a backward pass follows; otherwise only `out.rows` is written.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub fn fp8_plain(
        blas: &Blas,
        x: Fp8Matrix,
        weights: Fp8Matrix,
        out: Fp8Tensor,
        learns: bool,
    ) -> Result<Self> {
        fits(x, weights, out.rows);
        let own = Fp8Plain::new(x, weights, out, learns)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None })
    }

    /// A cross layer, which also keeps the product. `learns` is whether a backward pass follows; otherwise only
    /// `out.rows` is written.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub fn fp8_cross(blas: &Blas, matrices: Fp8CrossMatrices, learns: bool) -> Result<Self> {
        let Fp8CrossMatrices { factors, first, input, product, out, .. } = matrices;
        fits(factors.samples, factors.weights, out.rows);
        alike([Some(first), input, Some(product)], out.rows);
        let own = Fp8CrossLayer::new(matrices, learns)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None })
    }

    /// The backward pass of a cross layer. The gradients with respect to its product are also summed over the samples,
    /// one sum per column.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix, or there is not enough memory.
    pub fn fp8_cross_gradient(
        blas: &Blas,
        matrices: Fp8CrossGradientMatrices,
        sums: Pointer<f32>,
    ) -> Result<Self> {
        let Fp8CrossGradientMatrices { factors, first, added, out, product } = matrices;
        let (rows, columns) = (product.rows.rows, product.rows.columns);
        fits(factors.samples, factors.weights, product.rows);
        alike([Some(first), added, Some(out)], product.rows);
        let sums = total(blas, matmul_pieces(rows), columns, sums)?;
        let own = Fp8CrossGradient::new(matrices, sums.parts)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: Some(sums) })
    }

    /// The gradients with respect to the input of the first of some cross layers, which is x0, including what these
    /// layers add because x0 is the factor of their products: `out = gradients weightsᵀ + g + (u + bias) * g`, where
    /// the second term is the first layer's and the last term is summed over the layers. The guard records non-finite
    /// gradients.
    ///
    /// # Panics
    /// If there are no layers, or more than [`CROSS_LAYERS`].
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub fn fp8_by_first(
        blas: &Blas,
        factors: Fp8Factors,
        layers: &[Fp8CrossKept],
        out: Matrix<bf16>,
        guard: Pointer<Guard>,
    ) -> Result<Self> {
        fits(factors.samples, factors.weights, out);
        assert!((1..=CROSS_LAYERS).contains(&layers.len()), "{} layers", layers.len());
        for layer in layers {
            alike([Some(layer.product), Some(layer.gradients)], out);
        }
        let own = Fp8GradientByFirst::new(factors, layers, out, guard)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None })
    }

    /// `out = x weightsᵀ`, or with a bias `relu(x weightsᵀ + bias)`, in bf16.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub fn fp8_to_bf16(
        blas: &Blas,
        x: Fp8Matrix,
        weights: Fp8Matrix,
        bias: Option<Pointer<f32>>,
        out: Matrix<bf16>,
    ) -> Result<Self> {
        fits(x, weights, out);
        let own = Fp8ToBf16::new(x, weights, bias.unwrap_or(Pointer::NULL), out)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None })
    }

    /// The gradients with respect to a layer's weights, `out = gradientsᵀ x`, computed by cuBLASLt.
    ///
    /// # Errors
    /// If the library has no algorithm for it, or there is not enough memory.
    pub fn fp8_by_weights(blas: &Blas, gradients: Fp8Tensor, x: Fp8Tensor, out: Matrix<f32>) -> Result<Self> {
        Self::fp8_by_library(blas, [gradients.across(), x.across()], out)
    }

    /// `out = x xᵀ`, computed by cuBLASLt: used to measure what a GPU reaches.
    ///
    /// # Errors
    /// As for [`Product::fp8_by_weights`].
    pub fn fp8_square(blas: &Blas, x: Fp8Tensor, out: Matrix<bf16>) -> Result<Self> {
        Self::fp8_by_library(blas, [x.straight(); 2], out)
    }

    fn fp8_by_library<O: BlasElement>(blas: &Blas, [x, y]: [Fp8Matrix; 2], out: Matrix<O>) -> Result<Self> {
        fits(x, y, out);
        let factors = [Factor::straight(x.numbers), Factor::transposed(y.numbers)];
        let scales = Some([x.scaling.inverse(), y.scaling.inverse()]);
        let library = Library::new(blas, Compute::Fp8, factors, out, Epilogue::None, scales)?;
        Ok(Self { library: Some(library), kernels: Vec::new(), sums: None })
    }
}

/// Asserts that `out` has the shape of `x yᵀ`.
fn fits<O>(x: Fp8Matrix, y: Fp8Matrix, out: Matrix<O>) {
    let (x, y) = (x.numbers, y.numbers);
    assert_eq!((x.columns, x.rows, y.rows), (y.columns, out.rows, out.columns));
}

/// Asserts that all matrices have the shape of `out`.
fn alike<O, const COUNT: usize>(matrices: [Option<Fp8Matrix>; COUNT], out: Matrix<O>) {
    for Fp8Matrix { numbers, .. } in matrices.into_iter().flatten() {
        assert_eq!((numbers.rows, numbers.columns), (out.rows, out.columns));
    }
}
