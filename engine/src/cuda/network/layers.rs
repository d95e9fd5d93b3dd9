//! Dense parameters as they lie on a GPU: the rows and columns of every matrix filled up with zeros, as their inputs
//! and outputs are.
//!
//! Zeros stay zeros: what a filled-up column is multiplied with is 0, and so is its gradient.

use super::places::{Filled, Places};
use crate::model::{Interaction, Layer, MlpSpec, ModelSpec};

/// Layers with their sizes on the GPU, in the order of their parameters.
#[derive(Debug, Clone)]
pub(in crate::cuda) struct Layers {
    pub(super) bottom: Vec<Layer>,
    /// Those of each cross layer: W, or V and U.
    pub(super) cross: Vec<Vec<Layer>>,
    /// The hidden ones of the top MLP.
    pub(super) hidden: Vec<Layer>,
    /// The top MLP's last one, an output a head, which are not filled up.
    pub(super) head: Layer,
    /// The first-order terms of the dense columns, behind the head; neither inputs nor outputs are filled up.
    pub(super) linear: Option<Layer>,
    pairs: Vec<Pair>,
    /// Elements of all parameters.
    len: usize,
}

/// A layer of the model and how it lies on the GPU.
#[derive(Debug, Clone)]
struct Pair {
    ours: Layer,
    theirs: Layer,
    inputs: Filled,
    outputs: Filled,
}

impl Layers {
    pub(in crate::cuda) fn new(spec: &ModelSpec, places: &Places) -> Self {
        let layout = spec.dense_layout();
        let (mut pairs, mut len) = (Vec::new(), 0);
        let mut layer = |ours: &Layer, inputs: &Filled, outputs: Filled| {
            let theirs = Layer { inputs: inputs.len, outputs: outputs.len, offset: len, ..*ours };
            len = theirs.end();
            pairs.push(Pair { ours: *ours, theirs, inputs: inputs.clone(), outputs });
            theirs
        };
        let mut mlp = |mlp: &MlpSpec, mut inputs: Filled, last: &dyn Fn(usize) -> Filled| -> Vec<Layer> {
            let count = mlp.layers.len();
            let numbered = mlp.layers.iter().enumerate();
            let layers = numbered.map(|(number, ours)| {
                let outputs = if number + 1 == count { last(ours.outputs) } else { Filled::of(ours.outputs) };
                let layer = layer(ours, &inputs, outputs.clone());
                inputs = outputs;
                layer
            });
            layers.collect()
        };
        // The bottom MLP's output is the first of the vectors, with as many zeros behind it.
        let first = |outputs| Filled::new([(outputs, places.first)]);
        let bottom = mlp(&layout.bottom, Filled::of(spec.dense_columns), &first);
        let vectors = |_| places.vectors.clone();
        let cross = layout.cross.iter().map(|cross| mlp(cross, places.vectors.clone(), &vectors)).collect();
        let top_inputs = match spec.interaction {
            Interaction::Dot => places.products(spec),
            Interaction::Cross { .. } | Interaction::FactorizationMachine | Interaction::Concat => {
                places.vectors.clone()
            }
        };
        let mut hidden = mlp(&layout.top, top_inputs, &Filled::exact);
        let head = hidden.pop().expect("the top MLP has a layer");
        let linear = mlp(&layout.linear, Filled::exact(spec.dense_columns), &Filled::exact).pop();
        Self { bottom, cross, hidden, head, linear, pairs, len }
    }

    /// Where the parameters of the bottom MLP, of the interaction and of the top MLP end. The first two are multiples
    /// of eight.
    pub(super) fn parts(&self) -> [usize; 3] {
        let bottom = self.bottom.last().map_or(0, |layer| layer.end());
        [bottom, self.cross.iter().flatten().last().map_or(bottom, |layer| layer.end()), self.len]
    }

    /// The model's parameters, or whatever there is of each, as they lie on the GPU: in the same order, and what is of
    /// none between them.
    pub(super) fn fill_up<V: Copy + Default>(&self, parameters: &[V]) -> Vec<V> {
        let mut filled = vec![V::default(); self.len];
        for Pair { ours, theirs, inputs, outputs } in &self.pairs {
            let rows = parameters[ours.weight()].chunks_exact(ours.inputs);
            for (row, place) in rows.zip(outputs.places()) {
                inputs.put(row, &mut filled[theirs.offset + place * theirs.inputs..][..theirs.inputs]);
            }
            if ours.bias {
                outputs.put(&parameters[ours.bias()], &mut filled[theirs.bias()]);
            }
        }
        filled
    }

    /// How many parameters the model has.
    pub(super) fn parameters(&self) -> usize {
        self.pairs.last().map_or(0, |pair| pair.ours.end())
    }

    /// The model's parameters, from those of the GPU.
    pub(in crate::cuda) fn cut_out(&self, filled: &[f32]) -> Vec<f32> {
        let mut parameters = vec![0.0; self.parameters()];
        for Pair { ours, theirs, inputs, outputs } in &self.pairs {
            let rows = parameters[ours.weight()].chunks_exact_mut(ours.inputs);
            for (row, place) in rows.zip(outputs.places()) {
                inputs.take(&filled[theirs.offset + place * theirs.inputs..][..theirs.inputs], row);
            }
            if ours.bias {
                outputs.take(&filled[theirs.bias()], &mut parameters[ours.bias()]);
            }
        }
        parameters
    }
}

#[cfg(test)]
mod tests {
    use rankine_embedding::{Dtype, Pooling, TableSpec};

    use super::super::places::MULTIPLE;
    use super::*;
    use crate::model::{FeatureSpec, HeadSpec};

    fn spec(interaction: Interaction) -> ModelSpec {
        let dims = match interaction {
            Interaction::Cross { .. } | Interaction::Concat => [5, 12],
            Interaction::Dot | Interaction::FactorizationMachine => [9, 9],
        };
        let tables = dims.iter().enumerate();
        ModelSpec {
            dense_columns: 13,
            bottom_mlp: vec![10, 9],
            interaction,
            wide: true,
            top_mlp: vec![7, 24],
            heads: ["l", "m", "n"]
                .map(|label| HeadSpec { label: label.into(), label_number: 0, weight: 1.0 })
                .into(),
            features: (tables.clone())
                .map(|(table, _)| FeatureSpec { column: format!("c{table}"), table, pooling: Pooling::Sum })
                .collect(),
            tables: tables
                .map(|(table, &dim)| TableSpec {
                    name: format!("t{table}"),
                    rows: 3,
                    dim,
                    dtype: Dtype::Fp32,
                })
                .collect(),
        }
    }

    #[test]
    fn parameters_come_back_as_they_went() {
        for interaction in [
            Interaction::Dot,
            Interaction::Cross { layers: 2, rank: None },
            Interaction::Cross { layers: 2, rank: Some(3) },
            Interaction::FactorizationMachine,
            Interaction::Concat,
        ] {
            let spec = spec(interaction);
            let layers = Layers::new(&spec, &Places::new(&spec));
            let parameters: Vec<_> = (1..=spec.dense_parameters()).map(|number| number as f32).collect();
            let filled = layers.fill_up(&parameters);
            assert_eq!(layers.cut_out(&filled), parameters);
            assert!(filled.iter().filter(|&&number| number > 0.0).is_sorted(), "they lie in another order");
            let kept: f64 = filled.iter().map(|&value| f64::from(value)).sum();
            assert_eq!(kept, parameters.iter().map(|&value| f64::from(value)).sum::<f64>());
            for layer in layers.bottom.iter().chain(layers.cross.iter().flatten()).chain(&layers.hidden) {
                let sizes = [layer.offset, layer.inputs, layer.outputs];
                assert!(sizes.iter().all(|size| size.is_multiple_of(MULTIPLE)), "{layer:?}");
            }
            let [bottom, interaction, len] = layers.parts();
            assert!(bottom.is_multiple_of(MULTIPLE) && interaction.is_multiple_of(MULTIPLE), "{layers:?}");
            assert_eq!((interaction, len), (layers.hidden[0].offset, filled.len()));
            let linear = layers.linear.expect("there are dense columns");
            assert_eq!((layers.head.inputs, layers.head.outputs), (24, 3));
            assert_eq!((linear.inputs, linear.outputs, linear.offset), (13, 3, layers.head.end()));
        }
    }

    #[test]
    fn vectors_have_places_of_their_own() {
        let spec = spec(Interaction::Concat);
        let places = Places::new(&spec);
        // 9, 5 and 12 elements, filled up; then two features with terms of three heads.
        assert_eq!((places.first, &places.features[..]), (16, &[16, 24][..]));
        assert_eq!((&places.wide[..], places.stride), (&[40, 44][..], 48));
        assert_eq!(places.vectors.places().filter(|place| place % 8 == 0).count(), 5);
        assert_eq!(Places::new(&ModelSpec { dense_columns: 0, bottom_mlp: vec![], ..spec }).first, 0);
    }
}
