//! Fully connected layers over one tile of samples, forward and backward, and their weight gradients over all tiles.

use rayon::prelude::*;

use super::matmul::{Epilogue, Matrix, MatrixMut, Panels, product, transposed_product};
use crate::model::{Layer, MlpSpec};

/// Rows of a weight gradient per task: few if there are many threads, and a multiple of the kernels' rows. Each task
/// reads the layer's whole input. The split changes no result: each element is summed sample by sample.
fn wgrad_rows() -> usize {
    (256 / rayon::current_num_threads()).next_multiple_of(6).clamp(48, 258)
}

/// The weights of a fully connected layer in the form that its products read: `y = x Wᵀ + b`, W `[outputs, inputs]`.
#[derive(Debug, Clone, Default)]
pub(super) struct PackedWeights {
    transposed: Panels,
    untransposed: Panels,
}

impl PackedWeights {
    /// Packs W; to be repeated after each change of it.
    pub(super) fn pack(&mut self, weights: Matrix<'_>) {
        self.transposed.pack_transposed(weights);
        self.untransposed.pack(weights);
    }

    /// Computes `out = x Wᵀ` with an epilogue; x is `[samples, inputs]`, out `[samples, outputs]`.
    pub(super) fn forward(&self, x: Matrix<'_>, epilogue: Epilogue<'_>, out: MatrixMut<'_>) {
        product(out, epilogue, x, &self.transposed);
    }

    /// Computes `out = dy W` with an epilogue: the gradients with respect to x, given those with respect to the
    /// outputs.
    pub(super) fn input_gradients(&self, dy: Matrix<'_>, epilogue: Epilogue<'_>, out: MatrixMut<'_>) {
        product(out, epilogue, dy, &self.untransposed);
    }
}

/// An MLP with its weights, packed.
#[derive(Debug)]
pub(super) struct Mlp {
    /// Its layers.
    pub(super) spec: MlpSpec,
    /// One entry per layer, always in step with the model's parameters.
    weights: Vec<PackedWeights>,
}

impl Mlp {
    /// Creates an MLP whose weights are not yet packed.
    pub(super) fn new(spec: MlpSpec) -> Self {
        Self { weights: vec![PackedWeights::default(); spec.layers.len()], spec }
    }

    /// Returns every layer with its packed weights, to pack them again.
    pub(super) fn layers_mut(&mut self) -> impl Iterator<Item = (&Layer, &mut PackedWeights)> {
        self.spec.layers.iter().zip(&mut self.weights)
    }
}

/// The activations that an MLP keeps of one tile between its passes. Matrices that only products read are in panels.
#[derive(Debug, Default)]
pub(super) struct MlpTile {
    input: Panels,
    /// The outputs of each layer but the last, after the ReLU.
    hidden: Vec<Panels>,
    /// The gradients of the loss with respect to those, before the ReLU.
    hidden_gradients: Vec<Panels>,
    outputs: Vec<f32>,
    output_gradients: Vec<f32>,
}

impl MlpTile {
    /// Sizes the buffers for a tile of `samples` samples.
    pub(super) fn resize(&mut self, mlp: &Mlp, samples: usize) {
        let Some((last, hidden)) = mlp.spec.layers.split_last() else { return };
        for buffers in [&mut self.hidden, &mut self.hidden_gradients] {
            buffers.resize_with(hidden.len(), Panels::default);
            buffers.iter_mut().zip(hidden).for_each(|(buffer, layer)| buffer.resize(samples, layer.outputs));
        }
        for buffer in [&mut self.outputs, &mut self.output_gradients] {
            buffer.resize(samples * last.outputs, 0.0);
        }
    }

    /// Returns the last layer's outputs, `[samples, outputs]`, after the ReLU; `None` if the MLP has no layers.
    pub(super) fn outputs(&self) -> Option<&[f32]> {
        (!self.outputs.is_empty()).then_some(&self.outputs)
    }

    /// Returns the same outputs as a mutable slice.
    pub(super) fn outputs_mut(&mut self) -> Option<&mut [f32]> {
        (!self.outputs.is_empty()).then_some(&mut self.outputs)
    }

    /// Returns the last layer's outputs, and the buffer for the gradients with respect to them; `None` if the MLP has
    /// no layers.
    pub(super) fn output_gradients_mut(&mut self) -> Option<(&[f32], &mut [f32])> {
        (!self.outputs.is_empty()).then_some((&self.outputs, &mut self.output_gradients))
    }

    /// Runs the forward pass. `input` is `[samples, inputs]`, `parameters` are the model's.
    pub(super) fn forward(&mut self, mlp: &Mlp, parameters: &[f32], input: &[f32], samples: usize) {
        let Some((last, _)) = mlp.spec.layers.split_last() else { return };
        self.input.pack(Matrix::dense(input, samples, mlp.spec.layers[0].inputs));
        for (number, (layer, weights)) in mlp.spec.layers.iter().zip(&mlp.weights).enumerate() {
            let (before, from) = self.hidden.split_at_mut(number);
            let input = before.last().unwrap_or(&self.input);
            let bias = &parameters[layer.bias()];
            let epilogue = match (layer.bias, layer.relu) {
                (false, _) => Epilogue::Replace,
                (true, false) => Epilogue::Bias(bias),
                (true, true) => Epilogue::BiasRelu(bias),
            };
            let out = match from.first_mut() {
                Some(hidden) => hidden.matrix_mut(),
                None => MatrixMut::dense(&mut self.outputs, samples, last.outputs),
            };
            weights.forward(input.matrix(), epilogue, out);
        }
    }

    /// Runs the backward pass: from the gradients with respect to the outputs, which the caller has filled in, to all
    /// others, and on request to those with respect to the input. Gradients with respect to a ReLU's output are turned
    /// into those with respect to its input on the way.
    pub(super) fn backward(&mut self, mlp: &Mlp, samples: usize, input_gradients: Option<&mut [f32]>) {
        let Some((last, hidden)) = mlp.spec.layers.split_last() else { return };
        if last.relu {
            mask_by_relu(&mut self.output_gradients, &self.outputs);
        }
        for (number, before) in hidden.iter().enumerate().rev() {
            let (gradients, from) = self.hidden_gradients.split_at_mut(number + 1);
            let dy = match from.first() {
                Some(hidden) => hidden.matrix(),
                None => Matrix::dense(&self.output_gradients, samples, last.outputs),
            };
            let outputs = self.hidden[number].matrix();
            mlp.weights[number + 1].input_gradients(
                dy,
                if before.relu { Epilogue::WherePositive(outputs) } else { Epilogue::Replace },
                gradients[number].matrix_mut(),
            );
        }
        if let Some(input_gradients) = input_gradients {
            let (dy, layer) = (self.layer(0, mlp, samples).output_gradients, &mlp.spec.layers[0]);
            let out = MatrixMut::dense(input_gradients, samples, layer.inputs);
            mlp.weights[0].input_gradients(dy, Epilogue::Replace, out);
        }
    }

    /// Returns what the tile contributes to a layer's weight gradient.
    pub(super) fn layer(&self, number: usize, mlp: &Mlp, samples: usize) -> WgradTile<'_> {
        WgradTile {
            input: if number == 0 { &self.input } else { &self.hidden[number - 1] },
            output_gradients: match self.hidden_gradients.get(number) {
                Some(hidden) => hidden.matrix(),
                None => Matrix::dense(&self.output_gradients, samples, mlp.spec.layers[number].outputs),
            },
        }
    }
}

fn mask_by_relu(gradients: &mut [f32], outputs: &[f32]) {
    for (gradient, &output) in gradients.iter_mut().zip(outputs) {
        *gradient = if output > 0.0 { *gradient } else { 0.0 };
    }
}

/// One tile's contribution to a layer's weight gradient.
pub(super) struct WgradTile<'a> {
    /// The layer's input, `[samples, inputs]`.
    input: &'a Panels,
    /// The gradients with respect to its outputs before the ReLU, `[samples, outputs]`.
    output_gradients: Matrix<'a>,
}

/// Whether gradients start from zero or are added to those of earlier tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accumulation {
    Start,
    Continue,
}

/// Sums a layer's gradients over tiles, in order: `dW = sum dyᵀ x`, `db = sum dy`. `gradients` is the layer's piece of
/// the dense gradients, W then b.
pub(super) fn weight_gradients(
    layer: &Layer,
    tiles: &[WgradTile<'_>],
    sum: Accumulation,
    gradients: &mut [f32],
) {
    let piece_rows = wgrad_rows();
    let (weights, bias) = gradients.split_at_mut(layer.inputs * layer.outputs);
    // Without a bias, each piece of W goes with an empty piece of it.
    let bias = bias.chunks_mut(piece_rows).map(Some).chain(std::iter::repeat_with(|| None));
    let bias = bias.take(layer.outputs.div_ceil(piece_rows)).map(Option::unwrap_or_default);
    let bias: Vec<&mut [f32]> = bias.collect();
    let pieces = weights.par_chunks_mut(piece_rows * layer.inputs).zip(bias);
    pieces.enumerate().for_each(|(piece, (weights, bias))| {
        let (first, rows) = (piece * piece_rows, weights.len() / layer.inputs);
        if sum == Accumulation::Start {
            bias.fill(0.0);
        }
        for (number, tile) in tiles.iter().enumerate() {
            let starts = number == 0 && sum == Accumulation::Start;
            transposed_product(
                MatrixMut::dense(weights, rows, layer.inputs),
                if starts { Epilogue::Replace } else { Epilogue::Add },
                (tile.output_gradients, first..first + rows),
                tile.input,
            );
            tile.output_gradients.add_rows_to(first, bias);
        }
    });
}
