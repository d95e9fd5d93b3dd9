//! `fp8_cross.cu`.

use super::fp8_matmul::{SLICE, factors, tiles};
use super::matmul::{COLUMNS, STAGES_BYTES, TensorMap, matmul};
use super::{Fp8Factors, Fp8Matrix, Fp8Scaling, Fp8Tensor, Kernel};
use crate::runtime::{Pointer, Result};

/// Slice buffers of each of two warpgroups; each buffer holds three slices.
const BUFFERS: usize = 3;
/// The stages, the slice buffers, and their barriers.
pub(super) const SHARED_BYTES: u32 = (STAGES_BYTES + 2 * BUFFERS * (3 * SLICE * COLUMNS + 2 * 8)) as u32;

/// Parameters of both kernels.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
struct Fp8Cross {
    weights: TensorMap,
    samples: TensorMap,
    inputs: [TensorMap; 2],
    outputs: [TensorMap; 2],
    turned: TensorMap,
    parts: Pointer<f32>,
    bias: Pointer<f32>,
    weights_scaling: Pointer<Fp8Scaling>,
    samples_scaling: Pointer<Fp8Scaling>,
    inputs_scalings: [Pointer<Fp8Scaling>; 2],
    outputs_scalings: [Pointer<Fp8Scaling>; 2],
    count: u32,
    columns: u32,
    depth: u32,
    second: u32,
    learns: u32,
    reserved: [u32; 11],
}

const _: () = assert!(size_of::<Fp8Cross>() == 1024);

impl Fp8Cross {
    /// `straight` is written row by row only, `both` transposed as well.
    fn new(
        own: Fp8Factors,
        first: Fp8Matrix,
        second: Option<Fp8Matrix>,
        straight: Fp8Matrix,
        both: Fp8Tensor,
    ) -> Result<Self> {
        let slices = |matrix: Fp8Matrix| tiles(matrix.numbers, SLICE, COLUMNS);
        let [weights_tiles, samples_tiles] = factors(own)?;
        let Fp8Factors { samples, weights } = own;
        // Without a second input, its map is not read.
        let other = second.unwrap_or(first);
        Ok(Self {
            weights: weights_tiles,
            samples: samples_tiles,
            inputs: [slices(first)?, slices(other)?],
            outputs: [slices(straight)?, slices(both.straight())?],
            turned: tiles(both.turned, COLUMNS, SLICE)?,
            parts: Pointer::NULL,
            bias: Pointer::NULL,
            weights_scaling: weights.scaling,
            samples_scaling: samples.scaling,
            inputs_scalings: [first.scaling, other.scaling],
            outputs_scalings: [straight.scaling, both.scaling],
            count: straight.numbers.rows as u32,
            columns: straight.numbers.columns as u32,
            depth: samples.numbers.columns as u32,
            second: u32::from(second.is_some()),
            learns: 1,
            reserved: [0; 11],
        })
    }
}

/// The matrices of a cross layer: `out = first * (product + bias) + input`. All but the factors are
/// `[sample][column]`.
#[derive(Debug, Clone, Copy)]
pub struct Fp8CrossMatrices {
    /// The factors of the product.
    pub factors: Fp8Factors,
    /// One per column.
    pub bias: Pointer<f32>,
    /// The factor of the product and the bias.
    pub first: Fp8Matrix,
    /// The matrix that is added; none if it is `first`.
    pub input: Option<Fp8Matrix>,
    /// Receives the product.
    pub product: Fp8Matrix,
    /// Receives the result.
    pub out: Fp8Tensor,
}

/// The matrices of a cross layer's backward pass: `out = gradients weightsᵀ + added` and `product = first * out`. All
/// but the factors are `[sample][column]`.
#[derive(Debug, Clone, Copy)]
pub struct Fp8CrossGradientMatrices {
    /// The gradients and the weights.
    pub factors: Fp8Factors,
    /// The factor of the layer's product.
    pub first: Fp8Matrix,
    /// Added to the gradients, if given.
    pub added: Option<Fp8Matrix>,
    /// Receives the gradients with respect to the layer's result.
    pub out: Fp8Matrix,
    /// Receives the gradients with respect to the layer's product.
    pub product: Fp8Tensor,
}

matmul! {
    /// A cross layer: `out = first * (product + bias) + input`.
    Fp8CrossLayer(Fp8Cross)
}

impl Fp8CrossLayer {
    /// `learns` is whether a backward pass follows; otherwise only the rows of `out` are written, and scalings are
    /// not updated.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(matrices: Fp8CrossMatrices, learns: bool) -> Result<Self> {
        let Fp8CrossMatrices { factors, bias, first, input, product, out } = matrices;
        let all = Fp8Cross::new(factors, first, input, product, out)?;
        Ok(Self(Fp8Cross { bias, learns: u32::from(learns), ..all }))
    }
}

matmul! {
    /// A product that, with what is added, is the gradient with respect to a cross layer's result: `out`. The
    /// gradients with respect to the layer's own product, `first * out`, are written too, and their columns are
    /// summed over tiles of the samples.
    Fp8CrossGradient(Fp8Cross)
}

impl Fp8CrossGradient {
    /// `parts` has [`super::matmul_pieces`] pieces, `[piece][column]`.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(matrices: Fp8CrossGradientMatrices, parts: Pointer<f32>) -> Result<Self> {
        let Fp8CrossGradientMatrices { factors, first, added, out, product } = matrices;
        Ok(Self(Fp8Cross { parts, ..Fp8Cross::new(factors, first, added, out, product)? }))
    }
}
