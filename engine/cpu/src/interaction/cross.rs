//! Cross layers (DCN v2): `x' = x0 * (W x + b) + x`, or with `W = U V`, products element by element.

use rankine_embedding::vectorized;
use rankine_model::MlpSpec;

use crate::mlp::{Mlp, MlpTile};

/// The linear part of each cross layer: W, or V and U.
#[derive(Debug)]
pub(crate) struct CrossNetwork {
    layers: Vec<Mlp>,
}

/// The activations that a cross network keeps of one tile between forward and backward pass.
#[derive(Debug, Default)]
pub(super) struct CrossTile {
    /// Inputs and outputs of each layer's linear part.
    linear: Vec<MlpTile>,
    /// Each layer's result, `[samples, width]`.
    outputs: Vec<Vec<f32>>,
}

impl CrossTile {
    /// Returns the last layer's result.
    pub(super) fn output(&self) -> &[f32] {
        self.outputs.last().expect("a cross network has a layer")
    }
}

impl CrossNetwork {
    pub(super) fn new(layers: Vec<MlpSpec>) -> Self {
        Self { layers: layers.into_iter().map(Mlp::new).collect() }
    }

    pub(super) fn mlps_mut(&mut self) -> &mut [Mlp] {
        &mut self.layers
    }

    /// Returns the elements of a sample before and after each layer.
    pub(super) fn width(&self) -> usize {
        self.layers[0].spec.layers[0].inputs
    }

    pub(super) fn resize(&self, tile: &mut CrossTile, samples: usize) {
        tile.linear.resize_with(self.layers.len(), MlpTile::default);
        tile.outputs.resize_with(self.layers.len(), Vec::new);
        for ((mlp, linear), output) in self.layers.iter().zip(&mut tile.linear).zip(&mut tile.outputs) {
            linear.resize(mlp, samples);
            output.resize(samples * self.width(), 0.0);
        }
    }

    pub(super) fn forward(&self, parameters: &[f32], x0: &[f32], samples: usize, tile: &mut CrossTile) {
        for (number, (mlp, linear)) in self.layers.iter().zip(&mut tile.linear).enumerate() {
            let (before, from) = tile.outputs.split_at_mut(number);
            let x = before.last().map_or(x0, Vec::as_slice);
            linear.forward(mlp, parameters, x, samples);
            cross(x0, linear.outputs().expect("a cross layer has a matrix"), x, &mut from[0]);
        }
    }

    /// `gradients` holds the gradients with respect to the last layer's result, and is overwritten.
    pub(super) fn backward(
        &self,
        x0: &[f32],
        gradients: &mut [f32],
        tile: &mut CrossTile,
        scratch: &mut Vec<f32>,
        x0_gradients: &mut [f32],
    ) {
        let samples = x0.len() / self.width();
        scratch.resize(x0.len(), 0.0);
        x0_gradients.fill(0.0);
        for (mlp, linear) in self.layers.iter().zip(&mut tile.linear).rev() {
            let (y, linear_gradients) = linear.output_gradients_mut().expect("a cross layer has a matrix");
            cross_back(x0, y, gradients, linear_gradients, x0_gradients);
            linear.backward(mlp, samples, Some(scratch));
            add(gradients, scratch);
        }
        add(x0_gradients, gradients);
    }

    pub(super) fn mlps<'a>(&'a self, tile: &'a CrossTile) -> Vec<(&'a Mlp, &'a MlpTile)> {
        self.layers.iter().zip(&tile.linear).collect()
    }
}

vectorized! {
    /// `out = x0 * y + x`
    fn cross(x0: &[f32], y: &[f32], x: &[f32], out: &mut [f32]) {
        for (((out, x0), y), x) in out.iter_mut().zip(x0).zip(y).zip(x) {
            *out = x0 * y + x;
        }
    }
}

vectorized! {
    /// From the gradients with respect to `x0 * y + x`, computes those with respect to y, and adds the direct share to
    /// those with respect to x0.
    fn cross_back(x0: &[f32], y: &[f32], gradients: &[f32], y_gradients: &mut [f32], x0_gradients: &mut [f32]) {
        let values = x0.iter().zip(y).zip(gradients);
        for ((y_gradient, x0_gradient), ((x0, y), gradient)) in y_gradients.iter_mut().zip(x0_gradients).zip(values) {
            *y_gradient = x0 * gradient;
            *x0_gradient += y * gradient;
        }
    }
}

vectorized! {
    fn add(sums: &mut [f32], values: &[f32]) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value;
        }
    }
}
