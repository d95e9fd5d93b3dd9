//! `fp8_cross.cu`.

use super::fp8_matmul::{SLICE, factors, tiles};
use super::matmul::{COLUMNS, STAGES_BYTES, TensorMap, matmul};
use super::{Fp8Matrix, Fp8Tensor};
use super::{Fp8Scaling, Kernel};
use crate::error::Result;
use crate::pointer::Pointer;

/// Slice buffers of each of two warpgroups; each buffer holds three slices.
const PLACES: usize = 3;
/// The stages, the slice buffers, and their barriers.
pub(super) const SHARED_BYTES: u32 = (STAGES_BYTES + 2 * PLACES * (3 * SLICE * COLUMNS + 2 * 8)) as u32;

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
    fn new(
        samples: Fp8Matrix,
        weights: Fp8Matrix,
        (first, second): (Fp8Matrix, Option<Fp8Matrix>),
        (straight, both): (Fp8Matrix, Fp8Tensor),
    ) -> Result<Self> {
        let slices = |matrix: Fp8Matrix| tiles(matrix.numbers, SLICE, COLUMNS);
        let [weights_tiles, samples_tiles] = factors(samples, weights)?;
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

matmul! {
    /// A cross layer: `out = first * (product + bias) + input`.
    Fp8CrossLayer(Fp8Cross)
}

impl Fp8CrossLayer {
    /// The rows of `weights`, `[column][depth]`, are in pairs. Without an input it is `first`. `learns` is whether a
    /// backward pass follows; otherwise only the rows of `out` are written, and scalings are not updated.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(
        (samples, weights): (Fp8Matrix, Fp8Matrix),
        bias: Pointer<f32>,
        inputs: (Fp8Matrix, Option<Fp8Matrix>),
        (product, out): (Fp8Matrix, Fp8Tensor),
        learns: bool,
    ) -> Result<Self> {
        let all = Fp8Cross::new(samples, weights, inputs, (product, out))?;
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
    /// The rows of `weights`, `[column][depth]`, are in pairs; `parts` has [`super::matmul_pieces`] pieces,
    /// `[piece][column]`.
    ///
    /// # Errors
    /// If the driver refuses to describe a matrix.
    pub(crate) fn new(
        (gradients, weights): (Fp8Matrix, Fp8Matrix),
        (first, added): (Fp8Matrix, Option<Fp8Matrix>),
        (out, product): (Fp8Matrix, Fp8Tensor),
        parts: Pointer<f32>,
    ) -> Result<Self> {
        Ok(Self(Fp8Cross { parts, ..Fp8Cross::new(gradients, weights, (first, added), (out, product))? }))
    }
}
