//! Products of matrices in fp8, for GPUs for which [`crate::Device::multiplies_fp8`] holds.
//!
//! The tensor cores of Hopper take factors of fp8 with the depth along their rows alone. So whatever is multiplied lies
//! in memory twice, row by row and turned. `fp8_matmul.cu` writes both where the next product reads them; the gradients
//! by weights are cuBLASLt's.

use half::bf16;

use super::{Blas, Compute, Epilogue, Library, Matrix, Multiplied, Product, launcher, total};
use crate::buffer::Pointer;
use crate::error::Result;
use crate::fp8::E4m3;
use crate::kernels::{
    CROSS_LAYERS, Fp8CrossGradient, Fp8CrossLayer, Fp8GradientByFirst, Fp8Plain, Fp8Relu, Fp8ReluGradient,
    Fp8Scaling, Fp8ToBf16, Guard, matmul_pieces,
};

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

impl Fp8Tensor {
    /// [`Fp8Tensor::rows`], with their scaling.
    pub fn straight(&self) -> Fp8Matrix {
        Fp8Matrix { numbers: self.rows, scaling: self.scaling }
    }

    /// [`Fp8Tensor::turned`], with their scaling.
    pub fn across(&self) -> Fp8Matrix {
        Fp8Matrix { numbers: self.turned, scaling: self.scaling }
    }
}

/// A matrix in fp8 with its scaling.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Matrix {
    /// The numbers.
    pub numbers: Matrix<E4m3>,
    /// Theirs.
    pub scaling: Pointer<Fp8Scaling>,
}

/// What a cross layer has kept for the gradients by x0.
#[derive(Debug, Clone, Copy)]
pub struct Fp8CrossKept {
    /// Its product.
    pub product: Fp8Matrix,
    /// The gradients by its result.
    pub gradients: Fp8Matrix,
    /// One a column.
    pub bias: Pointer<f32>,
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
        fits(x.straight(), weights.straight(), rows);
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
        fits(gradients.straight(), weights.across(), out.rows);
        let sums = total(blas, matmul_pieces(rows), columns, sums)?;
        let own = Fp8ReluGradient::new(gradients, weights, bits, out, sums.parts)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: Some(sums) })
    }

    /// `out = x weightsᵀ`. `learns` says whether a way back follows: else only `out.rows` is written.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix.
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

    /// A cross layer: `out = first * (x weightsᵀ + bias) + input`, where the product is kept. Without an input it is
    /// `first`. `learns` says whether a way back follows: else only `out.rows` is written.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix.
    pub fn fp8_cross(
        blas: &Blas,
        (x, weights, bias): (Fp8Matrix, Fp8Matrix, Pointer<f32>),
        (first, input): (Fp8Matrix, Option<Fp8Matrix>),
        (product, out): (Fp8Matrix, Fp8Tensor),
        learns: bool,
    ) -> Result<Self> {
        fits(x, weights, out.rows);
        alike([Some(first), input, Some(product)], out.rows);
        let own = Fp8CrossLayer::new((x, weights), bias, (first, input), (product, out), learns)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None })
    }

    /// The way back of a cross layer: `out = gradients weightsᵀ + added` are the gradients by its result,
    /// `product = first * out` those by its product, which are summed over the samples, one a column.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix, or the memory does not suffice.
    pub fn fp8_cross_gradient(
        blas: &Blas,
        (gradients, weights): (Fp8Matrix, Fp8Matrix),
        (first, added): (Fp8Matrix, Option<Fp8Matrix>),
        (out, product): (Fp8Matrix, Fp8Tensor),
        sums: Pointer<f32>,
    ) -> Result<Self> {
        let (rows, columns) = (product.rows.rows, product.rows.columns);
        fits(gradients, weights, product.rows);
        alike([Some(first), added, Some(out)], product.rows);
        let sums = total(blas, matmul_pieces(rows), columns, sums)?;
        let own = Fp8CrossGradient::new((gradients, weights), (first, added), (out, product), sums.parts)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: Some(sums) })
    }

    /// The gradients by the input of the first of some cross layers, which is x0, and with them what these layers add
    /// as the factor of their products: `out = gradients weightsᵀ + g + (u + bias) * g`, the second term of the first
    /// layer and the last one of each. The guard is told where one is no finite number.
    ///
    /// # Panics
    /// Without layers, and with more than [`CROSS_LAYERS`].
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix.
    pub fn fp8_by_first(
        blas: &Blas,
        (gradients, weights): (Fp8Matrix, Fp8Matrix),
        layers: &[Fp8CrossKept],
        out: Matrix<bf16>,
        guard: Pointer<Guard>,
    ) -> Result<Self> {
        fits(gradients, weights, out);
        assert!((1..=CROSS_LAYERS).contains(&layers.len()), "{} layers", layers.len());
        for layer in layers {
            alike([Some(layer.product), Some(layer.gradients)], out);
        }
        let own = Fp8GradientByFirst::new((gradients, weights), layers, out, guard)?;
        let grid = own.grid(blas.device().multiprocessors());
        Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None })
    }

    /// `out = x weightsᵀ`, and with a bias `relu(x weightsᵀ + bias)`, in bf16.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix.
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

    /// The gradients by a layer's weights, `out = gradientsᵀ x`, by the library.
    ///
    /// # Errors
    /// Where there is no algorithm for it, or the memory does not suffice.
    pub fn fp8_by_weights(blas: &Blas, gradients: Fp8Tensor, x: Fp8Tensor, out: Matrix<f32>) -> Result<Self> {
        Self::fp8_by_library(blas, [gradients.across(), x.across()], out)
    }

    /// `out = x xᵀ` by the library, which shows what a GPU reaches.
    ///
    /// # Errors
    /// As for [`Product::fp8_by_weights`].
    pub fn fp8_square(blas: &Blas, x: Fp8Tensor, out: Matrix<bf16>) -> Result<Self> {
        Self::fp8_by_library(blas, [x.straight(); 2], out)
    }

    fn fp8_by_library<O: Multiplied>(blas: &Blas, [x, y]: [Fp8Matrix; 2], out: Matrix<O>) -> Result<Self> {
        fits(x, y, out);
        let factors = [(x.numbers, false), (y.numbers, true)];
        let scales = Some([x.scaling.inverse(), y.scaling.inverse()]);
        let library = Library::new(blas, Compute::Fp8, factors, out, Epilogue::None, scales)?;
        Ok(Self { library: Some(library), kernels: Vec::new(), sums: None })
    }
}

/// Asserts that `out` has the sizes of `x yᵀ`.
fn fits<O>(x: Fp8Matrix, y: Fp8Matrix, out: Matrix<O>) {
    let (x, y) = (x.numbers, y.numbers);
    assert_eq!((x.columns, x.rows, y.rows), (y.columns, out.rows, out.columns));
}

/// Asserts that matrices are as large as a product.
fn alike<O, const COUNT: usize>(matrices: [Option<Fp8Matrix>; COUNT], out: Matrix<O>) {
    for Fp8Matrix { numbers, .. } in matrices.into_iter().flatten() {
        assert_eq!((numbers.rows, numbers.columns), (out.rows, out.columns));
    }
}
