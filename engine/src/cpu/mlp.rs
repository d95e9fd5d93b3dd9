//! Fully connected layers over one tile of samples, forward and back, and their weight gradients over all tiles.

use rayon::prelude::*;

use super::matmul::{Matrix, MatrixMut, Write, matmul};
use crate::model::{Layer, MlpSpec};

/// Rows of a weight gradient that one task sums.
const WGRAD_ROWS: usize = 64;

/// What an MLP keeps of one tile between its passes.
#[derive(Debug, Default)]
pub(super) struct MlpTile {
    /// Each layer's outputs, `[samples, outputs]`, behind the ReLU.
    pub(super) outputs: Vec<Vec<f32>>,
    /// The loss's gradients by each layer's outputs, before the ReLU.
    pub(super) output_gradients: Vec<Vec<f32>>,
}

impl MlpTile {
    /// Makes room for a tile of `samples` samples.
    pub(super) fn resize(&mut self, mlp: &MlpSpec, samples: usize) {
        for buffers in [&mut self.outputs, &mut self.output_gradients] {
            buffers.resize_with(mlp.layers.len(), Vec::new);
            for (buffer, layer) in buffers.iter_mut().zip(&mlp.layers) {
                buffer.resize(samples * layer.outputs, 0.0);
            }
        }
    }

    /// `input` is `[samples, inputs]`. The result is the last of `outputs`.
    pub(super) fn forward(&mut self, mlp: &MlpSpec, parameters: &[f32], input: &[f32], samples: usize) {
        for (number, layer) in mlp.layers.iter().enumerate() {
            let (before, from) = self.outputs.split_at_mut(number);
            let input = before.last().map_or(input, |output| output.as_slice());
            layer_forward(layer, parameters, input, samples, &mut from[0]);
        }
    }

    /// From the last of `output_gradients`, which the caller has filled, to all others, and to the gradients by the
    /// input where they are wanted. Gradients by a ReLU's output become those by its input on the way.
    pub(super) fn backward(
        &mut self,
        mlp: &MlpSpec,
        parameters: &[f32],
        samples: usize,
        input_gradients: Option<&mut [f32]>,
    ) {
        let mut input_gradients = input_gradients;
        for (number, layer) in mlp.layers.iter().enumerate().rev() {
            let (before, from) = self.output_gradients.split_at_mut(number);
            let output_gradients = &mut from[0];
            if layer.relu {
                mask_by_relu(output_gradients, &self.outputs[number]);
            }
            let input_gradients = match before.last_mut() {
                Some(gradients) => gradients.as_mut_slice(),
                None => match input_gradients.take() {
                    Some(gradients) => gradients,
                    None => return,
                },
            };
            let weight = Matrix::new(&parameters[layer.weight()], layer.outputs, layer.inputs, layer.inputs);
            matmul(
                MatrixMut::new(input_gradients, samples, layer.inputs, layer.inputs),
                Write::Replace,
                Matrix::new(output_gradients, samples, layer.outputs, layer.outputs),
                weight,
            );
        }
    }
}

fn layer_forward(layer: &Layer, parameters: &[f32], input: &[f32], samples: usize, output: &mut [f32]) {
    let weight = Matrix::new(&parameters[layer.weight()], layer.outputs, layer.inputs, layer.inputs);
    matmul(
        MatrixMut::new(output, samples, layer.outputs, layer.outputs),
        Write::Replace,
        Matrix::new(input, samples, layer.inputs, layer.inputs),
        weight.transposed(),
    );
    let bias = &parameters[layer.bias()];
    for row in output.chunks_exact_mut(layer.outputs) {
        if layer.relu {
            row.iter_mut().zip(bias).for_each(|(y, b)| *y = relu(*y + b));
        } else {
            row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
    }
}

/// `max(x, 0)`, but NaN stays NaN, where `f32::max` makes it 0: training on broken weights would go on unnoticed.
fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

fn mask_by_relu(gradients: &mut [f32], outputs: &[f32]) {
    for (gradient, &output) in gradients.iter_mut().zip(outputs) {
        *gradient = if output > 0.0 { *gradient } else { 0.0 };
    }
}

/// One tile's share in a layer's weight gradient.
pub(super) struct WgradTile<'a> {
    /// The layer's input, `[samples, inputs]`.
    pub(super) input: &'a [f32],
    /// The gradients by its outputs before the ReLU, `[samples, outputs]`.
    pub(super) output_gradients: &'a [f32],
    /// Samples of the tile.
    pub(super) samples: usize,
}

/// Sums a layer's gradients over all tiles, in order: `dW = sum dyᵀ x`, `db = sum dy`. `gradients` is the layer's piece
/// of the dense gradients, W then b.
pub(super) fn weight_gradients(layer: &Layer, tiles: &[WgradTile<'_>], gradients: &mut [f32]) {
    let (weights, bias) = gradients.split_at_mut(layer.inputs * layer.outputs);
    // Without a bias each piece of W has an empty piece of it.
    let bias = bias.chunks_mut(WGRAD_ROWS).map(Some).chain(std::iter::repeat_with(|| None));
    let bias = bias.take(layer.outputs.div_ceil(WGRAD_ROWS)).map(Option::unwrap_or_default);
    let bias: Vec<&mut [f32]> = bias.collect();
    let pieces = weights.par_chunks_mut(WGRAD_ROWS * layer.inputs).zip(bias);
    pieces.enumerate().for_each(|(piece, (weights, bias))| {
        let first = piece * WGRAD_ROWS;
        let rows = weights.len() / layer.inputs;
        bias.fill(0.0);
        for (number, tile) in tiles.iter().enumerate() {
            let columns = Matrix::new(&tile.output_gradients[first..], tile.samples, rows, layer.outputs);
            matmul(
                MatrixMut::new(weights, rows, layer.inputs, layer.inputs),
                if number == 0 { Write::Replace } else { Write::Add },
                columns.transposed(),
                Matrix::new(tile.input, tile.samples, layer.inputs, layer.inputs),
            );
            for row in tile.output_gradients.chunks_exact(layer.outputs) {
                bias.iter_mut().zip(&row[first..]).for_each(|(sum, gradient)| *sum += gradient);
            }
        }
    });
}
