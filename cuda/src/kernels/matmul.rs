//! `matmul.cu`.

use std::ffi::c_void;

use cudarc::driver::sys;
use half::bf16;

use super::Kernel;
use crate::runtime::{DriverResult, Matrix, Pointer, Result};

/// The architecture of the kernels' machine code, as the driver reports it for a function.
pub(super) const TARGET: i32 = 90;
/// Columns and samples of a tile.
pub(super) const COLUMNS: usize = 128;
pub(super) const SAMPLES: usize = 160;
/// Bytes per row of a factor's tile in shared memory: the part of the depth that is multiplied at a time.
pub(super) const ROW_BYTES: usize = 128;
/// Elements of one row of a tile.
const DEPTH: usize = ROW_BYTES / 2;
const STAGES: usize = 4;
/// All stages of factors, and their barriers.
pub(super) const STAGES_BYTES: usize = STAGES * (COLUMNS + SAMPLES) * ROW_BYTES + 8 * (2 * STAGES + 2);
/// Samples per slice, in boxes of [`DEPTH`] columns.
const SLICE: usize = 32;
/// The most slice buffers of each of two warpgroups.
const BUFFERS: usize = 5;
/// The stages, the slice buffers, and their barriers.
pub(super) const SHARED_BYTES: u32 = (STAGES_BYTES + 2 * BUFFERS * (2 * SLICE * ROW_BYTES + 2 * 8)) as u32;

/// Descriptor with which the GPU reads or writes a matrix tile by tile.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorMap {
    words: [u64; 16],
}

impl TensorMap {
    /// Of no matrix; it must not be read.
    pub(super) const NONE: Self = Self { words: [0; 16] };

    /// Tiles of `rows` rows and 64 columns.
    pub(super) fn new(matrix: Matrix<bf16>, rows: usize) -> Result<Self> {
        let swizzle = sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B;
        Self::of(matrix, sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rows, DEPTH, swizzle)
    }

    /// Tiles of `rows` rows and some columns, of elements that the driver knows as `kind`.
    pub(super) fn of<T>(
        matrix: Matrix<T>,
        kind: sys::CUtensorMapDataType,
        rows: usize,
        columns: usize,
        swizzle: sys::CUtensorMapSwizzle,
    ) -> Result<Self> {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let sizes = [matrix.columns as u64, matrix.rows as u64];
        let strides = [(matrix.stride * size_of::<T>()) as u64];
        let (tile, steps) = ([columns as u32, rows as u32], [1, 1]);
        // SAFETY: the map is live and aligned, and all arrays have the length that two dimensions need; the driver
        // checks their contents and does not follow the address.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                kind,
                2,
                matrix.pointer.address() as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .named("cuTensorMapEncodeTiled")?;
        Ok(Self { words: map.opaque })
    }
}

/// Parameters of all kernels of `matmul.cu`.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
struct Matmul {
    weights: TensorMap,
    samples: TensorMap,
    inputs: [TensorMap; 2],
    outputs: [TensorMap; 2],
    parts: Pointer<f32>,
    bias: Pointer<f32>,
    count: u32,
    columns: u32,
    depth: u32,
    second: u32,
    reserved: [u32; 8],
}

const _: () = assert!(size_of::<Matmul>() == 832);

/// The factors of a product: `[sample][depth]` and either `[depth][column]` or `[column][depth]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors {
    pub samples: Matrix<bf16>,
    pub weights: Matrix<bf16>,
}

/// The matrices that a product is combined with, `[sample][column]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs {
    pub first: Matrix<bf16>,
    /// None if the first one takes its place, or if only one is needed.
    pub second: Option<Matrix<bf16>>,
}

/// Returns whether the GPU can read and write a matrix tile by tile: its rows must start at multiples of 16 bytes.
pub(crate) fn is_tiled(matrix: &Matrix<bf16>) -> bool {
    matrix.stride.is_multiple_of(8) && matrix.pointer.address().is_multiple_of(16)
}

/// Number of pieces in which this many samples are summed.
pub(crate) const fn pieces(samples: usize) -> usize {
    samples.div_ceil(SAMPLES)
}

impl Matmul {
    /// Maps weights in tiles of `weight_rows` rows.
    fn new(
        Factors { samples, weights }: Factors,
        weight_rows: usize,
        Inputs { first, second }: Inputs,
        outputs: [Matrix<bf16>; 2],
    ) -> Result<Self> {
        let slices = |matrix| TensorMap::new(matrix, SLICE);
        Ok(Self {
            weights: TensorMap::new(weights, weight_rows)?,
            // Each of two blocks fetches half of a tile of samples.
            samples: TensorMap::new(samples, SAMPLES / 2)?,
            // Without a second input, its map is not read.
            inputs: [slices(first)?, slices(second.unwrap_or(first))?],
            outputs: [slices(outputs[0])?, slices(outputs[1])?],
            parts: Pointer::NULL,
            bias: Pointer::NULL,
            count: outputs[0].rows as u32,
            columns: outputs[0].columns as u32,
            depth: samples.columns as u32,
            second: u32::from(second.is_some()),
            reserved: [0; 8],
        })
    }
}

/// Grid: pairs of cooperating blocks, as many as there is work for, and at most one block per multiprocessor.
pub(super) fn grid(samples: u32, columns: u32, multiprocessors: u32) -> (u32, u32) {
    let pairs = samples.div_ceil(SAMPLES as u32) * columns.div_ceil(2 * COLUMNS as u32);
    (2 * pairs.min(multiprocessors / 2), 1)
}

/// A kernel with parameters `$of`, which have a `count` of samples and `columns`.
macro_rules! matmul {
    ($(#[$words:meta])+ $name:ident($of:ident)) => {
        $(#[$words])+
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name($of);

        impl $name {
            /// Grid on a GPU with this many multiprocessors.
            pub(crate) fn grid(&self, multiprocessors: u32) -> (u32, u32) {
                $crate::kernels::matmul::grid(self.0.count, self.0.columns, multiprocessors)
            }
        }

        // SAFETY: the kernel has the same struct.
        unsafe impl Kernel for $name {
            const ID: $crate::kernels::Id = $crate::kernels::names::Family::$name.variant([]);
            const THREADS: u32 = 384;

            fn shared_bytes(&self) -> u32 {
                SHARED_BYTES
            }
        }
    };
}
pub(super) use matmul;

matmul! {
    /// A product that is the gradient with respect to a ReLU's outputs: where an output is not above 0 the gradient
    /// becomes 0. Its columns are summed over tiles of the samples.
    MatmulReluGradient(Matmul)
}

impl MatmulReluGradient {
    /// Weights are `[depth][column]`; `outputs` are the ReLU's; `parts` has [`pieces`] pieces, `[piece][column]`.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(
        factors: Factors,
        out: Matrix<bf16>,
        outputs: Matrix<bf16>,
        parts: Pointer<f32>,
    ) -> Result<Self> {
        let inputs = Inputs { first: outputs, second: None };
        Ok(Self(Matmul { parts, ..Matmul::new(factors, DEPTH, inputs, [out; 2])? }))
    }
}

matmul! {
    /// A cross layer: `out = first * (product + bias) + input`.
    MatmulCross(Matmul)
}

impl MatmulCross {
    /// Weights are `[column][depth]`; all other matrices `[sample][column]`; the bias has one element per column. The
    /// second input is that of the layer; if none, it is the first.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(
        factors: Factors,
        inputs: Inputs,
        [product, out]: [Matrix<bf16>; 2],
        bias: Pointer<f32>,
    ) -> Result<Self> {
        Ok(Self(Matmul { bias, ..Matmul::new(factors, COLUMNS, inputs, [product, out])? }))
    }
}

matmul! {
    /// A product that, with what is added, is the gradient with respect to a cross layer's result: `out`. The
    /// gradients with respect to the layer's own product, `first * out`, are written too, and their columns are
    /// summed over tiles of the samples.
    MatmulCrossGradient(Matmul)
}

impl MatmulCrossGradient {
    /// Weights are `[depth][column]`; all other matrices `[sample][column]`. The second input, if given, is added;
    /// `parts` has [`pieces`] pieces, `[piece][column]`.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(
        factors: Factors,
        inputs: Inputs,
        outputs: [Matrix<bf16>; 2],
        parts: Pointer<f32>,
    ) -> Result<Self> {
        Ok(Self(Matmul { parts, ..Matmul::new(factors, DEPTH, inputs, outputs)? }))
    }
}
