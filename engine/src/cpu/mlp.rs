//! Fully connected layers over one tile of samples, forward and back, and their weight gradients over all tiles.

use rayon::prelude::*;

use super::matmul::{Finish, Matrix, MatrixMut, Panels, product, transposed_product};
use crate::model::{Layer, MlpSpec};

/// Rows of a weight gradient that one task sums: few for many threads, and a multiple of the kernels' rows. Each task
/// reads and packs the layer's whole input. The cut changes no result: each element is summed sample by sample.
fn wgrad_rows() -> usize {
    (256 / rayon::current_num_threads()).next_multiple_of(6).clamp(48, 258)
}

/// The weights of a fully connected layer as its products read them: `y = x Wᵀ + b`, W `[outputs, inputs]`.
#[derive(Debug, Clone, Default)]
pub(super) struct PackedWeights {
    transposed: Panels,
    straight: Panels,
}

impl PackedWeights {
    /// Packs W, after each change of it.
    pub(super) fn pack(&mut self, weights: Matrix<'_>) {
        self.transposed.pack_transposed(weights);
        self.straight.pack(weights);
    }

    /// `out = x Wᵀ`, with what `finish` says; x is `[samples, inputs]`, out `[samples, outputs]`.
    pub(super) fn forward(&self, x: Matrix<'_>, finish: Finish<'_>, out: MatrixMut<'_>) {
        product(out, finish, x, &self.transposed);
    }

    /// `out = dy W`, with what `finish` says: the gradients by x from those by the outputs.
    pub(super) fn input_gradients(&self, dy: Matrix<'_>, finish: Finish<'_>, out: MatrixMut<'_>) {
        product(out, finish, dy, &self.straight);
    }
}

/// An MLP with its weights, packed.
#[derive(Debug)]
pub(super) struct Mlp {
    /// Its layers.
    pub(super) spec: MlpSpec,
    /// One entry a layer: always those of the model's parameters.
    weights: Vec<PackedWeights>,
}

impl Mlp {
    /// Nothing is packed yet.
    pub(super) fn new(spec: MlpSpec) -> Self {
        Self { weights: vec![PackedWeights::default(); spec.layers.len()], spec }
    }

    /// Every layer with its packed weights, to be packed again.
    pub(super) fn layers_mut(&mut self) -> impl Iterator<Item = (&Layer, &mut PackedWeights)> {
        self.spec.layers.iter().zip(&mut self.weights)
    }
}

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
    pub(super) fn resize(&mut self, mlp: &Mlp, samples: usize) {
        for buffers in [&mut self.outputs, &mut self.output_gradients] {
            buffers.resize_with(mlp.spec.layers.len(), Vec::new);
            for (buffer, layer) in buffers.iter_mut().zip(&mlp.spec.layers) {
                buffer.resize(samples * layer.outputs, 0.0);
            }
        }
    }

    /// `input` is `[samples, inputs]`, `parameters` are the model's. The result is the last of `outputs`.
    pub(super) fn forward(&mut self, mlp: &Mlp, parameters: &[f32], input: &[f32], samples: usize) {
        for (number, (layer, weights)) in mlp.spec.layers.iter().zip(&mlp.weights).enumerate() {
            let (before, from) = self.outputs.split_at_mut(number);
            let input = before.last().map_or(input, |output| output.as_slice());
            let bias = &parameters[layer.bias()];
            let finish = match (layer.bias, layer.relu) {
                (false, _) => Finish::Replace,
                (true, false) => Finish::Bias(bias),
                (true, true) => Finish::BiasRelu(bias),
            };
            weights.forward(
                Matrix::dense(input, samples, layer.inputs),
                finish,
                MatrixMut::dense(&mut from[0], samples, layer.outputs),
            );
        }
    }

    /// From the last of `output_gradients`, which the caller has filled, to all others, and to the gradients by the
    /// input where they are wanted. Gradients by a ReLU's output become those by its input on the way.
    pub(super) fn backward(&mut self, mlp: &Mlp, samples: usize, input_gradients: Option<&mut [f32]>) {
        let (Some(last), Some(gradients)) = (mlp.spec.layers.last(), self.output_gradients.last_mut()) else {
            return;
        };
        if last.relu {
            mask_by_relu(gradients, &self.outputs[mlp.spec.layers.len() - 1]);
        }
        for number in (1..mlp.spec.layers.len()).rev() {
            let (layer, before) = (&mlp.spec.layers[number], &mlp.spec.layers[number - 1]);
            let (gradients, from) = self.output_gradients.split_at_mut(number);
            let outputs = Matrix::dense(&self.outputs[number - 1], samples, before.outputs);
            mlp.weights[number].input_gradients(
                Matrix::dense(&from[0], samples, layer.outputs),
                if before.relu { Finish::WherePositive(outputs) } else { Finish::Replace },
                MatrixMut::dense(&mut gradients[number - 1], samples, layer.inputs),
            );
        }
        if let Some(input_gradients) = input_gradients {
            let layer = &mlp.spec.layers[0];
            mlp.weights[0].input_gradients(
                Matrix::dense(&self.output_gradients[0], samples, layer.outputs),
                Finish::Replace,
                MatrixMut::dense(input_gradients, samples, layer.inputs),
            );
        }
    }
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

/// Whether gradients are summed from nothing, or added to what earlier tiles gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sum {
    Begin,
    Continue,
}

/// Sums a layer's gradients over tiles, in order: `dW = sum dyᵀ x`, `db = sum dy`. `gradients` is the layer's piece of
/// the dense gradients, W then b.
pub(super) fn weight_gradients(layer: &Layer, tiles: &[WgradTile<'_>], sum: Sum, gradients: &mut [f32]) {
    let piece_rows = wgrad_rows();
    let (weights, bias) = gradients.split_at_mut(layer.inputs * layer.outputs);
    // Without a bias each piece of W has an empty piece of it.
    let bias = bias.chunks_mut(piece_rows).map(Some).chain(std::iter::repeat_with(|| None));
    let bias = bias.take(layer.outputs.div_ceil(piece_rows)).map(Option::unwrap_or_default);
    let bias: Vec<&mut [f32]> = bias.collect();
    let pieces = weights.par_chunks_mut(piece_rows * layer.inputs).zip(bias);
    pieces.enumerate().for_each(|(piece, (weights, bias))| {
        let (first, rows) = (piece * piece_rows, weights.len() / layer.inputs);
        if sum == Sum::Begin {
            bias.fill(0.0);
        }
        let mut scratch = Panels::default();
        for (number, tile) in tiles.iter().enumerate() {
            let begins = number == 0 && sum == Sum::Begin;
            transposed_product(
                MatrixMut::dense(weights, rows, layer.inputs),
                if begins { Finish::Replace } else { Finish::Add },
                Matrix::new(&tile.output_gradients[first..], tile.samples, rows, layer.outputs),
                Matrix::dense(tile.input, tile.samples, layer.inputs),
                &mut scratch,
            );
            for row in tile.output_gradients.chunks_exact(layer.outputs) {
                bias.iter_mut().zip(&row[first..]).for_each(|(sum, gradient)| *sum += gradient);
            }
        }
    });
}
