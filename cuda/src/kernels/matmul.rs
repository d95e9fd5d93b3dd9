//! `matmul.cu`.

use std::ffi::c_void;

use cudarc::driver::sys;
use half::bf16;

use super::{Id, Kernel};
use crate::blas::Matrix;
use crate::buffer::Pointer;
use crate::error::{Named, Result};

/// What the kernels' machine code was made from: the architecture, as functions tell it.
pub(super) const TARGET: i32 = 90;
/// Of a tile: the columns and the samples.
const COLUMNS: usize = 128;
const SAMPLES: usize = 160;
/// How much of the depth is multiplied at a time, and elements of a row of a tile in shared memory.
const DEPTH: usize = 64;
const STAGES: usize = 5;
/// The stages, a tile of the output, and barriers.
pub(super) const SHARED_BYTES: u32 =
    (2 * (STAGES * (COLUMNS + SAMPLES) * DEPTH + COLUMNS * SAMPLES) + 8 * (2 * STAGES + 5)) as u32;

/// How the GPU reads or writes a matrix tile by tile.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
struct TensorMap([u64; 16]);

impl TensorMap {
    /// Tiles of so many rows and 64 columns.
    fn new(matrix: Matrix<bf16>, rows: usize) -> Result<Self> {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let sizes = [matrix.columns as u64, matrix.rows as u64];
        let (strides, tile, steps) = ([matrix.stride as u64 * 2], [DEPTH as u32, rows as u32], [1, 1]);
        // SAFETY: the map is live and aligned, and all arrays are as long as two dimensions ask for; the driver checks
        // what they say and does not follow the address.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                matrix.pointer.address() as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .named("cuTensorMapEncodeTiled")?;
        Ok(Self(map.opaque))
    }
}

/// What all kernels of `matmul.cu` take.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
struct Matmul {
    weights: TensorMap,
    samples: TensorMap,
    out: TensorMap,
    outputs: TensorMap,
    parts: Pointer<f32>,
    count: u32,
    columns: u32,
    depth: u32,
    reserved: [u32; 11],
}

const _: () = assert!(size_of::<Matmul>() == 576);

/// A product's matrices: `out = samples weights`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrices {
    /// `[sample][depth]`
    pub samples: Matrix<bf16>,
    /// `[depth][column]`
    pub weights: Matrix<bf16>,
    /// `[sample][column]`
    pub out: Matrix<bf16>,
}

impl Matrices {
    /// Whether the GPU can read and write the matrices tile by tile: rows begin at multiples of 16 bytes.
    pub(crate) fn tiled(&self) -> bool {
        [&self.samples, &self.weights, &self.out].into_iter().all(Self::is_tiled)
    }

    /// The same, of one matrix.
    pub(crate) fn is_tiled(matrix: &Matrix<bf16>) -> bool {
        matrix.stride.is_multiple_of(8) && matrix.pointer.address().is_multiple_of(16)
    }

    fn matmul(&self, outputs: TensorMap, parts: Pointer<f32>) -> Result<Matmul> {
        let Self { samples, weights, out } = *self;
        Ok(Matmul {
            // Two blocks fetch half of the samples' tiles each.
            samples: TensorMap::new(samples, SAMPLES / 2)?,
            weights: TensorMap::new(weights, DEPTH)?,
            out: TensorMap::new(out, SAMPLES)?,
            outputs,
            parts,
            count: out.rows as u32,
            columns: out.columns as u32,
            depth: samples.columns as u32,
            reserved: [0; 11],
        })
    }
}

impl Matmul {
    /// Blocks, two of which work together: as many as there is work for, and one a multiprocessor at most.
    fn grid(&self, multiprocessors: u32) -> (u32, u32) {
        let pairs = self.count.div_ceil(SAMPLES as u32) * self.columns.div_ceil(2 * COLUMNS as u32);
        (2 * pairs.min(multiprocessors / 2), 1)
    }
}

/// A product that is a gradient by a ReLU's outputs: what it is by those that are not above 0 becomes 0, and its columns
/// are summed over tiles of the samples.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatmulReluGradient(Matmul);

impl MatmulReluGradient {
    /// `outputs` are the ReLU's, `[sample][column]`; `parts` has [`MatmulReluGradient::pieces`] of them, `[piece][column]`.
    ///
    /// # Errors
    /// Where the driver refuses to describe a matrix.
    pub(crate) fn new(matrices: &Matrices, outputs: Matrix<bf16>, parts: Pointer<f32>) -> Result<Self> {
        Ok(Self(matrices.matmul(TensorMap::new(outputs, SAMPLES)?, parts)?))
    }

    /// Pieces that so many samples are summed in.
    pub(crate) const fn pieces(samples: usize) -> usize {
        samples.div_ceil(SAMPLES)
    }

    /// Blocks for a GPU of so many multiprocessors.
    pub(crate) fn grid(&self, multiprocessors: u32) -> (u32, u32) {
        self.0.grid(multiprocessors)
    }
}

// SAFETY: `matmul.cu` has the same struct.
unsafe impl Kernel for MatmulReluGradient {
    const ID: Id = Id::MatmulReluGradient;
    const NAME: &'static str = "matmul_relu_gradient";
    const THREADS: u32 = 384;

    fn shared_bytes(&self) -> u32 {
        SHARED_BYTES
    }
}
