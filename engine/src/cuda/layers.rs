//! Dense parameters as they lie on a GPU: the rows and columns of every matrix filled up with zeros to a multiple of
//! eight, so that each row begins where tensor cores read from.
//!
//! Zeros stay zeros: what a filled-up column is multiplied with is 0, and so is its gradient.

use crate::model::{Layer, ModelSpec};

/// Elements that a row is filled up to a multiple of.
pub(super) const MULTIPLE: usize = 8;

/// Layers with their sizes on the GPU.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    pub(super) bottom: Vec<Layer>,
    /// The hidden ones of the top MLP.
    pub(super) hidden: Vec<Layer>,
    /// The last one, with one output, which is not filled up.
    pub(super) head: Layer,
    /// Of the model, in the order of the others.
    ours: Vec<Layer>,
}

impl Layers {
    /// Of a model with one head.
    pub(super) fn new(spec: &ModelSpec) -> Self {
        let layout = spec.dense_layout();
        let mut end = 0;
        let mut filled_up = |layer: &Layer, outputs: usize| {
            let inputs = layer.inputs.next_multiple_of(MULTIPLE);
            let layer = Layer { inputs, outputs, offset: end, ..*layer };
            end = layer.end();
            layer
        };
        let mut all = |layers: &[Layer]| -> Vec<_> {
            layers.iter().map(|layer| filled_up(layer, layer.outputs.next_multiple_of(MULTIPLE))).collect()
        };
        let (last, hidden) = layout.top.layers.split_last().expect("the top MLP has a layer");
        let (bottom, hidden) = (all(&layout.bottom.layers), all(hidden));
        let head = filled_up(last, last.outputs);
        let ours = layout.bottom.layers.iter().chain(&layout.top.layers).copied().collect();
        Self { bottom, hidden, head, ours }
    }

    /// Elements of all parameters.
    pub(super) fn len(&self) -> usize {
        self.head.end()
    }

    fn pairs(&self) -> impl Iterator<Item = (&Layer, &Layer)> {
        self.ours.iter().zip(self.bottom.iter().chain(&self.hidden).chain([&self.head]))
    }

    /// The model's parameters as they lie on the GPU.
    pub(super) fn fill_up(&self, parameters: &[f32]) -> Vec<f32> {
        let mut filled = vec![0.0; self.len()];
        for (ours, theirs) in self.pairs() {
            let rows = filled[theirs.weight()].chunks_exact_mut(theirs.inputs);
            for (to, from) in rows.zip(parameters[ours.weight()].chunks_exact(ours.inputs)) {
                to[..ours.inputs].copy_from_slice(from);
            }
            filled[theirs.bias()][..ours.outputs].copy_from_slice(&parameters[ours.bias()]);
        }
        filled
    }

    /// The model's parameters, from those of the GPU.
    pub(super) fn cut_out(&self, filled: &[f32]) -> Vec<f32> {
        let mut parameters = vec![0.0; self.ours.last().map_or(0, Layer::end)];
        for (ours, theirs) in self.pairs() {
            let rows = filled[theirs.weight()].chunks_exact(theirs.inputs);
            for (to, from) in parameters[ours.weight()].chunks_exact_mut(ours.inputs).zip(rows) {
                to.copy_from_slice(&from[..ours.inputs]);
            }
            parameters[ours.bias()].copy_from_slice(&filled[theirs.bias()][..ours.outputs]);
        }
        parameters
    }
}

#[cfg(test)]
mod tests {
    use rankine_embedding::{Pooling, TableSpec};

    use super::*;
    use crate::model::{FeatureSpec, HeadSpec, Interaction};

    #[test]
    fn parameters_come_back_as_they_went() {
        let features =
            ["a", "b"].map(|name| FeatureSpec { column: name.into(), table: 0, pooling: Pooling::Sum });
        let spec = ModelSpec {
            dense_columns: 13,
            bottom_mlp: vec![9, 16],
            interaction: Interaction::Dot,
            wide: false,
            top_mlp: vec![7, 24],
            heads: vec![HeadSpec { label: "l".into(), label_number: 0, weight: 1.0 }],
            tables: vec![TableSpec { name: "t".into(), rows: 3, dim: 16 }],
            features: features.into(),
        };
        let layers = Layers::new(&spec);
        let parameters: Vec<_> = (1..=spec.dense_parameters()).map(|number| number as f32).collect();
        let filled = layers.fill_up(&parameters);
        assert_eq!(layers.cut_out(&filled), parameters);
        let kept: f64 = filled.iter().map(|&value| f64::from(value)).sum();
        assert_eq!(kept, parameters.iter().map(|&value| f64::from(value)).sum::<f64>());
        for layer in layers.bottom.iter().chain(&layers.hidden) {
            assert!(
                layer.offset % MULTIPLE == 0 && layer.inputs % MULTIPLE == 0 && layer.outputs % MULTIPLE == 0
            );
        }
        assert_eq!((layers.head.inputs, layers.head.outputs), (24, 1));
    }
}
