//! `fp8_matmul.cu`.

use cudarc::driver::sys;
use half::bf16;

use super::E4m3;
use super::matmul::{COLUMNS, ROW_BYTES, SAMPLES, STAGES_BYTES, TensorMap, matmul};
use super::{Fp8Factors, Fp8Matrix, Fp8Scaling, Fp8Tensor, Kernel};
use crate::runtime::{Matrix, Pointer, Result};

/// Samples per slice in which transposed tiles are written.
pub(super) const SLICE: usize = 32;
/// The stages, and two tiles for each warpgroup.
pub(super) const SHARED_BYTES: u32 = (STAGES_BYTES + 4 * COLUMNS * SAMPLES) as u32;

/// Maps a matrix in tiles of `rows` rows and `columns` columns; `columns` determines the swizzling.
pub(super) fn tiles(matrix: Matrix<E4m3>, rows: usize, columns: usize) -> Result<TensorMap> {
    let swizzle = match columns {
        SLICE => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
    };
    TensorMap::of(matrix, sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8, rows, columns, swizzle)
}

/// Maps of the weights, and of the samples, of which each of two blocks fetches half a tile.
pub(super) fn factors(Fp8Factors { samples, weights }: Fp8Factors) -> Result<[TensorMap; 2]> {
    Ok([tiles(weights.numbers, COLUMNS, ROW_BYTES)?, tiles(samples.numbers, SAMPLES / 2, ROW_BYTES)?])
}

/// Parameters of all kernels of `fp8_matmul.cu`.
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
    fn new(own: Fp8Factors, [rows, turned]: [TensorMap; 2], columns: usize) -> Result<Self> {
        let [weights_tiles, samples_tiles] = factors(own)?;
        let Fp8Factors { samples, weights } = own;
        Ok(Self {
            weights: weights_tiles,
            samples: samples_tiles,
            rows,
            turned,
            bits: Pointer::NULL,
            parts: Pointer::NULL,
            bias: Pointer::NULL,
            weights_scaling: weights.scaling,
            samples_scaling: samples.scaling,
            scaling: Pointer::NULL,
            count: samples.numbers.rows as u32,
            columns: columns as u32,
            depth: samples.numbers.columns as u32,
            learns: 1,
            reserved: [0; 16],
        })
    }

    /// A product with fp8 results.
    fn to_fp8(own: Fp8Factors, out: Fp8Tensor, bits: Pointer<u32>) -> Result<Self> {
        let maps = [tiles(out.rows, SAMPLES, COLUMNS)?, tiles(out.turned, COLUMNS, SLICE)?];
        let all = Self::new(own, maps, out.rows.columns)?;
        Ok(Self { bits, scaling: out.scaling, ..all })
    }
}

/// The outputs of a ReLU.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Outputs {
    /// The outputs.
    pub outputs: Fp8Tensor,
    /// One bit per output, set if it is above 0: [`Fp8Outputs::words`] words, in a layout known only to the kernels.
    pub bits: Pointer<u32>,
}

impl Fp8Outputs {
    /// Words of bits for this many outputs.
    pub const fn words(samples: usize, columns: usize) -> usize {
        samples.div_ceil(SAMPLES) * columns.div_ceil(2 * COLUMNS) * 2 * COLUMNS * SAMPLES / 32
    }
}

matmul! {
    /// A layer with its bias and ReLU.
    Fp8Relu(Fp8Matmul)
}

impl Fp8Relu {
    /// The rows of `weights`, `[column][depth]`, are in pairs. `learns` is whether a backward pass follows; otherwise
    /// neither bits nor the transposed matrix are written, and the scaling is not updated.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(
        samples: Fp8Tensor,
        weights: Fp8Tensor,
        bias: Pointer<f32>,
        Fp8Outputs { outputs, bits }: Fp8Outputs,
        learns: bool,
    ) -> Result<Self> {
        let factors = Fp8Factors { samples: samples.straight(), weights: weights.straight() };
        let all = Fp8Matmul::to_fp8(factors, outputs, bits)?;
        Ok(Self(Fp8Matmul { bias, learns: u32::from(learns), ..all }))
    }
}

matmul! {
    /// Gradients with respect to a ReLU's outputs, taken through it and summed over tiles of the samples.
    Fp8ReluGradient(Fp8Matmul)
}

impl Fp8ReluGradient {
    /// The transposed rows of `weights`, `[column][depth]`, are in pairs; `bits` are those of [`Fp8Relu`]; `parts`
    /// has [`super::matmul_pieces`] pieces, `[piece][column]`.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(
        gradients: Fp8Tensor,
        weights: Fp8Tensor,
        bits: Pointer<u32>,
        out: Fp8Tensor,
        parts: Pointer<f32>,
    ) -> Result<Self> {
        let factors = Fp8Factors { samples: gradients.straight(), weights: weights.across() };
        let all = Fp8Matmul::to_fp8(factors, out, bits)?;
        Ok(Self(Fp8Matmul { parts, ..all }))
    }
}

matmul! {
    /// A product without element-wise work.
    Fp8Plain(Fp8Matmul)
}

impl Fp8Plain {
    /// The rows of `weights`, `[column][depth]`, are in pairs. `learns` is whether a backward pass follows; otherwise
    /// the transposed matrix is not written, and the scaling is not updated.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(samples: Fp8Matrix, weights: Fp8Matrix, out: Fp8Tensor, learns: bool) -> Result<Self> {
        let all = Fp8Matmul::to_fp8(Fp8Factors { samples, weights }, out, Pointer::NULL)?;
        Ok(Self(Fp8Matmul { learns: u32::from(learns), ..all }))
    }
}

matmul! {
    /// A product with bf16 results; with a bias they go through a ReLU.
    Fp8ToBf16(Fp8Matmul)
}

impl Fp8ToBf16 {
    /// The rows of `weights`, `[column][depth]`, are in pairs; the bias may be null.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(
        samples: Fp8Matrix,
        weights: Fp8Matrix,
        bias: Pointer<f32>,
        out: Matrix<bf16>,
    ) -> Result<Self> {
        let (factors, rows) = (Fp8Factors { samples, weights }, TensorMap::new(out, SAMPLES)?);
        Ok(Self(Fp8Matmul { bias, ..Fp8Matmul::new(factors, [rows; 2], out.columns)? }))
    }
}
