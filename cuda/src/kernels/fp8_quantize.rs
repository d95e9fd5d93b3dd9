//! `fp8_quantize.cu`.

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::E4m3;
use super::names::Family;
use super::{Fp8Scaling, Id, Kernel};
use crate::runtime::Pointer;

/// Columns of activations and gradients in fp8, and inputs and outputs of layers, are multiples of this.
pub const FP8_MULTIPLE: usize = 16;

/// The position of a sample in the rows of transposed matrices: within 16 samples the order is 0, 1, 8, 9, 2, 3, 10,
/// ...
pub fn transposed_position(sample: usize) -> usize {
    let (group, within) = (sample / FP8_MULTIPLE, sample % FP8_MULTIPLE);
    group * FP8_MULTIPLE + within % 8 / 2 * 4 + within / 8 * 2 + within % 2
}

/// The position of a row in a matrix of weights whose rows are in pairs: within 16 rows, the even ones first.
pub fn paired_position(row: usize) -> usize {
    let (group, within) = (row / FP8_MULTIPLE, row % FP8_MULTIPLE);
    group * FP8_MULTIPLE + within / 2 + within % 2 * 8
}

/// Converts activations or gradients to fp8, both row by row and transposed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Fp8Quantize {
    /// `[sample][stride]`
    pub values: Pointer<bf16>,
    /// `[sample][rows_stride]`
    pub rows: Pointer<E4m3>,
    /// `[column][turned_stride]`, with samples ordered by [`transposed_position`].
    pub turned: Pointer<E4m3>,
    /// Their scaling.
    pub scaling: Pointer<Fp8Scaling>,
    /// Samples.
    pub samples: u32,
    /// A multiple of 8.
    pub columns: u32,
    /// Elements from one sample to the next, a multiple of 8.
    pub stride: u32,
    /// Elements from one transposed row to the next: the samples rounded up to a multiple of [`FP8_MULTIPLE`], or
    /// more.
    pub turned_stride: u32,
    /// 1 if the transposed matrix is written and the largest magnitude is recorded, else 0.
    pub learns: u32,
    /// Numbers in fp8 from one sample to the next, a multiple of 8.
    pub rows_stride: u32,
}

impl Fp8Quantize {
    /// Blocks.
    pub fn grid(&self) -> (u32, u32) {
        (self.samples.div_ceil(128), self.columns.div_ceil(128))
    }
}

// SAFETY: `fp8_quantize.cu` has the same struct.
unsafe impl Kernel for Fp8Quantize {
    const ID: Id = Family::Fp8Quantize.variant([]);
    const THREADS: u32 = 256;
}

/// A layer's weights.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Fp8Weights {
    /// `[output][input]`, with rows ordered by [`paired_position`].
    pub values: Pointer<f32>,
    /// `[input][output]`, with rows ordered by [`paired_position`].
    pub rows: Pointer<E4m3>,
    /// Their scaling.
    pub turned: Pointer<E4m3>,
    /// Theirs.
    pub scaling: Pointer<Fp8Scaling>,
    /// A multiple of [`FP8_MULTIPLE`], as is `inputs`.
    pub outputs: u32,
    /// Inputs.
    pub inputs: u32,
}

/// Converts weights to fp8, and records their largest magnitudes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Fp8QuantizeWeights {
    /// One per y of the grid.
    pub layers: Pointer<Fp8Weights>,
}

impl Fp8QuantizeWeights {
    /// Grid for these layers.
    pub fn grid(layers: &[Fp8Weights]) -> (u32, u32) {
        let tiles = |layer: &Fp8Weights| layer.inputs.div_ceil(64) * layer.outputs.div_ceil(64);
        (layers.iter().map(tiles).max().unwrap_or(0), layers.len() as u32)
    }
}

// SAFETY: `fp8_quantize.cu` has the same struct.
unsafe impl Kernel for Fp8QuantizeWeights {
    const ID: Id = Family::Fp8QuantizeWeights.variant([]);
    const THREADS: u32 = 256;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_permutations_of_sixteen() {
        let turned: Vec<_> = (16..32).map(transposed_position).collect();
        assert_eq!(turned, [16, 17, 20, 21, 24, 25, 28, 29, 18, 19, 22, 23, 26, 27, 30, 31]);
        let paired: Vec<_> = (16..32).map(paired_position).collect();
        assert_eq!(paired, [16, 24, 17, 25, 18, 26, 19, 27, 20, 28, 21, 29, 22, 30, 23, 31]);
    }
}
