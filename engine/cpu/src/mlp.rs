//! Fully connected layers over one tile of samples, forward and backward, and their weight gradients over all tiles.

use rankine_cpu::{Arithmetic, Epilogue, Matrix, MatrixMut, Operand, PackedWeights};
use rayon::prelude::*;

use rankine_model::{Layer, MlpSpec};

/// Rows of a weight gradient per task: few if there are many threads. Each task reads the layer's whole input. The
/// split changes no result: each element is summed sample by sample, and in all tasks but the last, the rows are a
/// multiple of those of all kernels' blocks.
fn wgrad_rows() -> usize {
    (256 / rayon::current_num_threads()).next_multiple_of(48).clamp(48, 288)
}

/// An MLP with its weights, packed.
#[derive(Debug)]
pub(super) struct Mlp {
    /// Its layers.
    pub(super) spec: MlpSpec,
    arithmetic: Arithmetic,
    /// One entry per layer, always in step with the model's parameters.
    weights: Vec<PackedWeights>,
}

impl Mlp {
    /// Creates an MLP whose weights are not yet packed. Its products are in f32.
    pub(super) fn new(spec: MlpSpec) -> Self {
        let mut mlp = Self { spec, arithmetic: Arithmetic::F32, weights: Vec::new() };
        mlp.set_arithmetic(Arithmetic::F32);
        mlp
    }

    /// Sets the arithmetic of all products. The weights have to be packed again.
    pub(super) fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.arithmetic = arithmetic;
        self.weights = self.spec.layers.iter().map(|_| PackedWeights::new(arithmetic)).collect();
    }

    /// Returns every layer with its packed weights, to pack them again.
    pub(super) fn layers_mut(&mut self) -> impl Iterator<Item = (&Layer, &mut PackedWeights)> {
        self.spec.layers.iter().zip(&mut self.weights)
    }
}

/// The activations that an MLP keeps of one tile between its passes. Matrices that only products read are in the form
/// of their arithmetic.
#[derive(Debug, Default)]
pub(super) struct MlpTile {
    input: Operand,
    /// The outputs of each layer but the last, after the ReLU.
    hidden: Vec<Operand>,
    /// The gradients of the loss with respect to the outputs of each layer, before the ReLU.
    gradients: Vec<Operand>,
    outputs: Vec<f32>,
    /// The gradients with respect to `outputs`, as the caller of the backward pass computes them.
    output_gradients: Vec<f32>,
}

impl MlpTile {
    /// Sizes the buffers for a tile of `samples` samples.
    pub(super) fn resize(&mut self, mlp: &Mlp, samples: usize) {
        let layers = &mlp.spec.layers;
        let Some((last, hidden)) = layers.split_last() else { return };
        self.input.resize(mlp.arithmetic, samples, layers[0].inputs);
        for (buffers, layers) in [(&mut self.hidden, hidden), (&mut self.gradients, layers)] {
            buffers.resize_with(layers.len(), Operand::default);
            let buffers = buffers.iter_mut().zip(layers);
            buffers.for_each(|(buffer, layer)| buffer.resize(mlp.arithmetic, samples, layer.outputs));
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
                Some(hidden) => hidden.into(),
                None => MatrixMut::dense(&mut self.outputs, samples, last.outputs).into(),
            };
            weights.forward(input, epilogue, out);
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
        let last_gradients = self.gradients.last_mut().expect("one per layer");
        last_gradients.pack(Matrix::dense(&self.output_gradients, samples, last.outputs));
        for (number, before) in hidden.iter().enumerate().rev() {
            let (gradients, from) = self.gradients.split_at_mut(number + 1);
            let outputs = &self.hidden[number];
            mlp.weights[number + 1].input_gradients(
                &from[0],
                if before.relu { Epilogue::WherePositive(outputs.into()) } else { Epilogue::Replace },
                (&mut gradients[number]).into(),
            );
        }
        if let Some(input_gradients) = input_gradients {
            let out = MatrixMut::dense(input_gradients, samples, mlp.spec.layers[0].inputs);
            mlp.weights[0].input_gradients(&self.gradients[0], Epilogue::Replace, out.into());
        }
    }

    /// Returns what the tile contributes to a layer's weight gradient.
    pub(super) fn layer(&self, number: usize) -> WgradTile<'_> {
        WgradTile {
            input: if number == 0 { &self.input } else { &self.hidden[number - 1] },
            output_gradients: &self.gradients[number],
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
    input: &'a Operand,
    /// The gradients with respect to its outputs before the ReLU, `[samples, outputs]`.
    output_gradients: &'a Operand,
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
            rankine_cpu::weight_gradients(
                tile.output_gradients,
                first..first + rows,
                tile.input,
                if starts { Epilogue::Replace } else { Epilogue::Add },
                MatrixMut::dense(weights, rows, layer.inputs),
            );
            tile.output_gradients.add_rows_to(first, bias);
        }
    });
}
