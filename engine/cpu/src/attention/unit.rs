//! The weights of positions: how each kind of attention computes them, forward and backward.

use rankine_model::{AttentionUnit, MlpSpec};

use super::{Positions, add_times, dot};
use crate::mlp::{Mlp, MlpTile};

/// Pieces of the input of an activation unit: query, key, query - key, query * key.
const PIECES: usize = 4;

/// How the weights of positions are computed.
#[derive(Debug)]
pub(super) struct Unit {
    kind: Kind,
    /// The activation unit's layers; none for other kinds.
    mlp: Mlp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Din,
    Dot,
    Mean,
}

/// What a unit keeps of one tile between forward and backward pass.
#[derive(Debug, Default)]
pub(super) struct UnitTile {
    /// `[position, 4 width]`: the MLP's input, then the gradients with respect to it.
    inputs: Vec<f32>,
    mlp: MlpTile,
}

impl UnitTile {
    pub(super) fn mlp(&self) -> &MlpTile {
        &self.mlp
    }
}

impl Unit {
    pub(super) fn new(unit: &AttentionUnit, mlp: MlpSpec) -> Self {
        let kind = match unit {
            AttentionUnit::Din { .. } => Kind::Din,
            AttentionUnit::Dot { .. } => Kind::Dot,
            AttentionUnit::Mean => Kind::Mean,
        };
        Self { kind, mlp: Mlp::new(mlp) }
    }

    /// Returns the elements that a tile keeps per position, without the MLP's activations.
    pub(super) fn elements(unit: &AttentionUnit, width: u64) -> u64 {
        match unit {
            AttentionUnit::Din { .. } => PIECES as u64 * width,
            AttentionUnit::Dot { .. } | AttentionUnit::Mean => 0,
        }
    }

    pub(super) fn mlp(&self) -> &Mlp {
        &self.mlp
    }

    pub(super) fn mlp_mut(&mut self) -> &mut Mlp {
        &mut self.mlp
    }

    /// Computes the weight of each position.
    pub(super) fn forward(
        &self,
        parameters: &[f32],
        positions: Positions<'_>,
        weights: &mut [f32],
        tile: &mut UnitTile,
    ) {
        match self.kind {
            Kind::Din => self.forward_mlp(parameters, positions, weights, tile),
            Kind::Dot => {
                let scale = scale(positions.width);
                for (_, query, range) in positions.samples() {
                    let weights = &mut weights[range.clone()];
                    for (weight, position) in weights.iter_mut().zip(range) {
                        *weight = scale * dot(query, positions.key(position));
                    }
                    softmax(weights);
                }
            }
            Kind::Mean => {
                for (_, _, range) in positions.samples() {
                    let share = 1.0 / range.len().max(1) as f32;
                    weights[range].fill(share);
                }
            }
        }
    }

    fn forward_mlp(
        &self,
        parameters: &[f32],
        positions: Positions<'_>,
        weights: &mut [f32],
        tile: &mut UnitTile,
    ) {
        let width = positions.width;
        // The products need a row: without positions it is one of zeros, whose gradient is 0.
        let rows = positions.len().max(1);
        tile.inputs.clear();
        tile.inputs.resize(rows * PIECES * width, 0.0);
        for (_, query, range) in positions.samples() {
            for position in range {
                let row = &mut tile.inputs[position * PIECES * width..][..PIECES * width];
                let [queries, keys, differences, products] = pieces(row, width);
                let key = positions.key(position);
                queries.copy_from_slice(query);
                keys.copy_from_slice(key);
                for element in 0..width {
                    differences[element] = query[element] - key[element];
                    products[element] = query[element] * key[element];
                }
            }
        }
        tile.mlp.resize(&self.mlp, rows);
        tile.mlp.forward(&self.mlp, parameters, &tile.inputs, rows);
        let outputs = tile.mlp.outputs().expect("an activation unit has a layer");
        weights.copy_from_slice(&outputs[..weights.len()]);
    }

    /// From the gradients with respect to the weights to those with respect to queries and keys, which it adds to those
    /// that are known.
    pub(super) fn backward(
        &self,
        positions: Positions<'_>,
        (weights, weight_gradients): (&[f32], &[f32]),
        tile: &mut UnitTile,
        (query_gradients, key_gradients): (&mut [f32], &mut [f32]),
    ) {
        let width = positions.width;
        match self.kind {
            Kind::Din => {
                self.backward_mlp(positions, weight_gradients, tile, (query_gradients, key_gradients));
            }
            Kind::Dot => {
                let scale = scale(width);
                for (sample, query, range) in positions.samples() {
                    let mean = dot(&weights[range.clone()], &weight_gradients[range.clone()]);
                    let of_query = &mut query_gradients[sample * width..][..width];
                    for position in range {
                        let gradient = scale * weights[position] * (weight_gradients[position] - mean);
                        add_times(of_query, positions.key(position), gradient);
                        add_times(&mut key_gradients[position * width..][..width], query, gradient);
                    }
                }
            }
            Kind::Mean => {}
        }
    }

    fn backward_mlp(
        &self,
        positions: Positions<'_>,
        weight_gradients: &[f32],
        tile: &mut UnitTile,
        (query_gradients, key_gradients): (&mut [f32], &mut [f32]),
    ) {
        let width = positions.width;
        let (_, outputs) = tile.mlp.output_gradients_mut().expect("an activation unit has a layer");
        outputs.fill(0.0);
        outputs[..weight_gradients.len()].copy_from_slice(weight_gradients);
        // The input is packed in the MLP's tile, so that its memory is free.
        tile.mlp.backward(&self.mlp, positions.len().max(1), Some(&mut tile.inputs));
        for (sample, query, range) in positions.samples() {
            let of_query = &mut query_gradients[sample * width..][..width];
            for position in range {
                let row = &mut tile.inputs[position * PIECES * width..][..PIECES * width];
                let [queries, keys, differences, products] = pieces(row, width);
                let key = positions.key(position);
                let of_key = &mut key_gradients[position * width..][..width];
                for element in 0..width {
                    let (difference, product) = (differences[element], products[element]);
                    of_query[element] += queries[element] + difference + product * key[element];
                    of_key[element] += keys[element] - difference + product * query[element];
                }
            }
        }
    }
}

/// Divides a row into its pieces.
fn pieces(row: &mut [f32], width: usize) -> [&mut [f32]; PIECES] {
    let (queries, rest) = row.split_at_mut(width);
    let (keys, rest) = rest.split_at_mut(width);
    let (differences, products) = rest.split_at_mut(width);
    [queries, keys, differences, products]
}

/// The factor of dot products of this many elements.
fn scale(width: usize) -> f32 {
    1.0 / (width as f32).sqrt()
}

/// Replaces scores by their softmax.
fn softmax(scores: &mut [f32]) {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - most).exp());
    let total: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= total);
}
