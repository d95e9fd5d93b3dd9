//! `fp8_by_first.cu`.

use half::bf16;

use super::fp8_matmul::{factors, tiles};
use super::matmul::{COLUMNS, STAGES_BYTES, TensorMap, matmul};
use super::{CROSS_LAYERS, Fp8CrossKept, Fp8Factors, Fp8Scaling, Guard, Kernel};
use crate::runtime::{Matrix, Pointer, Result};

/// Samples of a slice.
const THIN: usize = 16;
/// Bytes of one warpgroup's slice buffers, of which there are ten at most, and their barriers.
const BUFFERS_BYTES: usize = (40 << 10) + 10 * 2 * 8;
/// The stages, and the buffers of both warpgroups.
pub(super) const SHARED_BYTES: u32 = (STAGES_BYTES + 2 * BUFFERS_BYTES) as u32;

/// The kernel's parameters.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
struct Fp8ByFirst {
    weights: TensorMap,
    samples: TensorMap,
    products: [TensorMap; CROSS_LAYERS],
    gradients: [TensorMap; CROSS_LAYERS],
    output: TensorMap,
    biases: [Pointer<f32>; CROSS_LAYERS],
    products_scalings: [Pointer<Fp8Scaling>; CROSS_LAYERS],
    gradients_scalings: [Pointer<Fp8Scaling>; CROSS_LAYERS],
    weights_scaling: Pointer<Fp8Scaling>,
    samples_scaling: Pointer<Fp8Scaling>,
    guard: Pointer<Guard>,
    count: u32,
    columns: u32,
    depth: u32,
    layers: u32,
    reserved: [u32; 14],
}

const _: () = assert!(size_of::<Fp8ByFirst>() == 1600);

impl Fp8ByFirst {
    fn new(
        own: Fp8Factors,
        layers: &[Fp8CrossKept],
        out: Matrix<bf16>,
        guard: Pointer<Guard>,
    ) -> Result<Self> {
        let [weights_tiles, samples_tiles] = factors(own)?;
        let Fp8Factors { samples, weights } = own;
        let mut all = Self {
            weights: weights_tiles,
            samples: samples_tiles,
            products: [TensorMap::NONE; CROSS_LAYERS],
            gradients: [TensorMap::NONE; CROSS_LAYERS],
            output: TensorMap::new(out, THIN)?,
            biases: [Pointer::NULL; CROSS_LAYERS],
            products_scalings: [Pointer::NULL; CROSS_LAYERS],
            gradients_scalings: [Pointer::NULL; CROSS_LAYERS],
            weights_scaling: weights.scaling,
            samples_scaling: samples.scaling,
            guard,
            count: out.rows as u32,
            columns: out.columns as u32,
            depth: samples.numbers.columns as u32,
            layers: layers.len() as u32,
            reserved: [0; 14],
        };
        for (index, layer) in layers.iter().enumerate() {
            all.products[index] = tiles(layer.product.numbers, THIN, COLUMNS)?;
            all.gradients[index] = tiles(layer.gradients.numbers, THIN, COLUMNS)?;
            all.products_scalings[index] = layer.product.scaling;
            all.gradients_scalings[index] = layer.gradients.scaling;
            all.biases[index] = layer.bias;
        }
        Ok(all)
    }
}

matmul! {
    /// The gradients with respect to the first cross layer's input, x0, including what the cross layers add because
    /// x0 is the factor of their products: `product + g + (u + b) * g`, with the last term for each layer.
    Fp8GradientByFirst(Fp8ByFirst)
}

impl Fp8GradientByFirst {
    /// The factors are the gradients and the weights. The guard records non-finite results.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(
        factors: Fp8Factors,
        layers: &[Fp8CrossKept],
        out: Matrix<bf16>,
        guard: Pointer<Guard>,
    ) -> Result<Self> {
        Ok(Self(Fp8ByFirst::new(factors, layers, out, guard)?))
    }
}
