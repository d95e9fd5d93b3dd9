//! `fp8_matmul.cu`.

use cudarc::driver::sys;
use half::bf16;

use super::matmul::{COLUMNS, SAMPLES, STAGES, TensorMap, matmul};
use super::{Fp8Scaling, Id, Kernel};
use crate::blas::{Fp8Tensor, Matrix};
use crate::buffer::Pointer;
use crate::error::Result;
use crate::fp8::E4m3;

/// How much of the depth is multiplied at a time.
const DEPTH: usize = 128;
/// Samples of a slice, in which turned tiles are written.
const SLICE: usize = 32;
/// The stages, a tile for each warpgroup twice, and barriers.
pub(super) const SHARED_BYTES: u32 =
    (STAGES * (COLUMNS + SAMPLES) * DEPTH + 4 * COLUMNS * SAMPLES + 8 * (2 * STAGES + 2)) as u32;

/// Tiles of so many rows and columns, of which the latter are as many as swizzling is wide.
fn tiles(matrix: Matrix<E4m3>, rows: usize, columns: usize) -> Result<TensorMap> {
    let swizzle = match columns {
        SLICE => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
    };
    TensorMap::of(matrix, sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8, rows, columns, swizzle)
}

/// What all kernels of `fp8_matmul.cu` take.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
struct Fp8Matmul {
    weights: TensorMap,
    samples: TensorMap,
    rows: TensorMap,
    turned: TensorMap,
    bits: Pointer<u32>,
    parts: Pointer<f32>,
    bias: Pointer<f32>,
    weights_scaling: Pointer<Fp8Scaling>,
    samples_scaling: Pointer<Fp8Scaling>,
    scaling: Pointer<Fp8Scaling>,
    count: u32,
    columns: u32,
    depth: u32,
    learns: u32,
    reserved: [u32; 16],
}

const _: () = assert!(size_of::<Fp8Matmul>() == 640);

impl Fp8Matmul {
    fn new(
        samples: (Matrix<E4m3>, Pointer<Fp8Scaling>),
        weights: (Matrix<E4m3>, Pointer<Fp8Scaling>),
        [rows, turned]: [TensorMap; 2],
        columns: usize,
    ) -> Result<Self> {
        Ok(Self {
            weights: tiles(weights.0, COLUMNS, DEPTH)?,
            // Two blocks fetch half of the samples' tiles each.
            samples: tiles(samples.0, SAMPLES / 2, DEPTH)?,
            rows,
            turned,
            bits: Pointer::NULL,
            parts: Pointer::NULL,
            bias: Pointer::NULL,
            weights_scaling: weights.1,
            samples_scaling: samples.1,
            scaling: Pointer::NULL,
            count: samples.0.rows as u32,
            columns: columns as u32,
            depth: samples.0.columns as u32,
            learns: 1,
            reserved: [0; 16],
        })
    }

    /// With results in fp8.
    fn to_fp8(
        samples: (Matrix<E4m3>, Pointer<Fp8Scaling>),
        weights: (Matrix<E4m3>, Pointer<Fp8Scaling>),
        out: Fp8Tensor,
        bits: Pointer<u32>,
    ) -> Result<Self> {
        let maps = [tiles(out.rows, SAMPLES, COLUMNS)?, tiles(out.turned, COLUMNS, SLICE)?];
        let all = Self::new(samples, weights, maps, out.rows.columns)?;
        Ok(Self { bits, scaling: out.scaling, ..all })
    }
}

matmul! {
    /// A layer with its bias and ReLU.
    Fp8Relu(Fp8Matmul), "fp8_relu"
}

impl Fp8Relu {
    /// Words of bits that say which of a ReLU's outputs are above 0.
    pub(crate) const fn words(samples: usize, columns: usize) -> usize {
        samples.div_ceil(SAMPLES) * columns.div_ceil(2 * COLUMNS) * 2 * COLUMNS * SAMPLES / 32
    }

    /// The rows of `weights` lie in pairs, `[column][depth]`. `learns` says whether there is a way back: else neither
    /// bits nor the turned matrix are written, and the scaling is not told.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix.
    pub(crate) fn new(
        samples: Fp8Tensor,
        weights: Fp8Tensor,
        bias: Pointer<f32>,
        (out, bits): (Fp8Tensor, Pointer<u32>),
        learns: bool,
    ) -> Result<Self> {
        let factors = ((samples.rows, samples.scaling), (weights.rows, weights.scaling));
        let all = Fp8Matmul::to_fp8(factors.0, factors.1, out, bits)?;
        Ok(Self(Fp8Matmul { bias, learns: u32::from(learns), ..all }))
    }
}

matmul! {
    /// Gradients by a ReLU's outputs, taken through it and summed over tiles of the samples.
    Fp8ReluGradient(Fp8Matmul), "fp8_relu_gradient"
}

impl Fp8ReluGradient {
    /// The turned rows of `weights` lie in pairs, `[column][depth]`; `bits` are those of [`Fp8Relu`]; `parts` has
    /// [`super::matmul_pieces`] of them, `[piece][column]`.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix.
    pub(crate) fn new(
        gradients: Fp8Tensor,
        weights: Fp8Tensor,
        bits: Pointer<u32>,
        out: Fp8Tensor,
        parts: Pointer<f32>,
    ) -> Result<Self> {
        let factors = ((gradients.rows, gradients.scaling), (weights.turned, weights.scaling));
        Ok(Self(Fp8Matmul { parts, ..Fp8Matmul::to_fp8(factors.0, factors.1, out, bits)? }))
    }
}

matmul! {
    /// A product with results in bf16; with a bias they are taken through a ReLU.
    Fp8ToBf16(Fp8Matmul), "fp8_to_bf16"
}

impl Fp8ToBf16 {
    /// The rows of `weights`, `[column][depth]`, lie in pairs; the bias may be null.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix.
    pub(crate) fn new(
        samples: (Matrix<E4m3>, Pointer<Fp8Scaling>),
        weights: (Matrix<E4m3>, Pointer<Fp8Scaling>),
        bias: Pointer<f32>,
        out: Matrix<bf16>,
    ) -> Result<Self> {
        let rows = TensorMap::new(out, SAMPLES)?;
        Ok(Self(Fp8Matmul { bias, ..Fp8Matmul::new(samples, weights, [rows; 2], out.columns)? }))
    }
}
