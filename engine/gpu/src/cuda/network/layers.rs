//! Dense parameters in their layout on a GPU: the rows and columns of every matrix are padded with zeros, as its
//! inputs and outputs are.
//!
//! Zeros stay zeros: a padded column is multiplied by 0, and so its gradient is 0.

use rankine_model::{Layer, MlpSpec, ModelSpec};

use super::vector_layout::{PaddedRow, VectorLayout};

/// Layers with their sizes on the GPU, in the order of their parameters.
#[derive(Debug, Clone)]
pub(in crate::cuda) struct Layers {
    pub(super) bottom: Vec<Layer>,
    /// The layers of the activation unit over each sequence that attention reads.
    pub(super) attention: Vec<Vec<Layer>>,
    /// The vectors of the positions of each sequence, `[position, key]`, if they have some.
    pub(super) positions: Vec<Option<Layer>>,
    /// The layers of each cross layer: W, or V and U.
    pub(super) cross: Vec<Vec<Layer>>,
    /// The hidden layers of the top MLP.
    pub(super) hidden: Vec<Layer>,
    /// The last layer of the top MLP, with one output per head, which are not padded.
    pub(super) head: Layer,
    /// The first-order terms of the dense columns, after the head; neither inputs nor outputs are padded.
    pub(super) linear: Option<Layer>,
    paddings: Vec<LayerPadding>,
    /// The number of all elements.
    len: usize,
}

/// How a network's vectors and layers are laid out on the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layouts<'a> {
    pub(super) vectors: &'a VectorLayout,
    pub(super) layers: &'a Layers,
}

/// A layer of the model and its layout on the GPU.
#[derive(Debug, Clone)]
struct LayerPadding {
    model: Layer,
    padded_layer: Layer,
    inputs: PaddedRow,
    outputs: PaddedRow,
}

impl Layers {
    pub(in crate::cuda) fn new(spec: &ModelSpec, vector_layout: &VectorLayout) -> Self {
        let layout = spec.dense_layout();
        let (mut paddings, mut len) = (Vec::new(), 0);
        let mut layer = |model: &Layer, inputs: &PaddedRow, outputs: PaddedRow| {
            let padded_layer = Layer { inputs: inputs.len, outputs: outputs.len, offset: len, ..*model };
            len = padded_layer.end();
            paddings.push(LayerPadding { model: *model, padded_layer, inputs: inputs.clone(), outputs });
            padded_layer
        };
        let mut mlp =
            |mlp: &MlpSpec, mut inputs: PaddedRow, last: &dyn Fn(usize) -> PaddedRow| -> Vec<Layer> {
                let count = mlp.layers.len();
                let numbered = mlp.layers.iter().enumerate();
                let layers = numbered.map(|(number, model)| {
                    let outputs =
                        if number + 1 == count { last(model.outputs) } else { PaddedRow::of(model.outputs) };
                    let layer = layer(model, &inputs, outputs.clone());
                    inputs = outputs;
                    layer
                });
                layers.collect()
            };
        // The bottom MLP's output is the first of the vectors, with the same padding.
        let first = |outputs| PaddedRow::new([(outputs, vector_layout.first)]);
        let bottom = mlp(&layout.bottom, PaddedRow::of(spec.dense_columns), &first);
        let units = layout.attention.iter().enumerate();
        let attention =
            units.map(|(number, unit)| mlp(unit, vector_layout.unit_inputs(number), &PaddedRow::of));
        let attention = attention.collect();
        let of_positions = layout.positions.iter().zip(&vector_layout.keys);
        let positions = of_positions.map(|(vectors, key)| {
            let vectors = vectors.map(|layer| MlpSpec { layers: vec![layer] })?;
            mlp(&vectors, key.clone(), &PaddedRow::of).pop()
        });
        let positions = positions.collect();
        let vectors = |_| vector_layout.vectors.clone();
        let cross =
            layout.cross.iter().map(|cross| mlp(cross, vector_layout.vectors.clone(), &vectors)).collect();
        let mut hidden = mlp(&layout.top, vector_layout.top_inputs(spec), &PaddedRow::exact);
        let head = hidden.pop().expect("the top MLP has a layer");
        let linear = mlp(&layout.linear, PaddedRow::exact(spec.dense_columns), &PaddedRow::exact).pop();
        Self { bottom, attention, positions, cross, hidden, head, linear, paddings, len }
    }

    /// Returns where the parameters of bottom MLP and attention, of the interaction and of the top MLP end. The first
    /// two are multiples of eight.
    pub(super) fn parts(&self) -> [usize; 3] {
        let bottom = self.bottom.iter().chain(self.attention.iter().flatten());
        let bottom = bottom.chain(self.positions.iter().flatten()).last();
        let bottom = bottom.map_or(0, |layer| layer.end());
        [bottom, self.cross.iter().flatten().last().map_or(bottom, |layer| layer.end()), self.len]
    }

    /// Returns the model's parameters, or one value of another kind for each, in the layout of the GPU: in the same
    /// order, with default values as padding.
    pub(super) fn pad<V: Copy + Default>(&self, parameters: &[V]) -> Vec<V> {
        let mut padded = vec![V::default(); self.len];
        for LayerPadding { model, padded_layer, inputs, outputs } in &self.paddings {
            let rows = parameters[model.weight()].chunks_exact(model.inputs);
            for (row, position) in rows.zip(outputs.positions()) {
                inputs.put(
                    row,
                    &mut padded[padded_layer.offset + position * padded_layer.inputs..]
                        [..padded_layer.inputs],
                );
            }
            if model.bias {
                outputs.put(&parameters[model.bias()], &mut padded[padded_layer.bias()]);
            }
        }
        padded
    }

    /// Returns the number of the model's parameters.
    pub(super) fn parameters(&self) -> usize {
        self.paddings.last().map_or(0, |padding| padding.model.end())
    }

    /// Returns the model's parameters, given those of the GPU.
    pub(in crate::cuda) fn unpad(&self, padded: &[f32]) -> Vec<f32> {
        let mut parameters = vec![0.0; self.parameters()];
        for LayerPadding { model, padded_layer, inputs, outputs } in &self.paddings {
            let rows = parameters[model.weight()].chunks_exact_mut(model.inputs);
            for (row, position) in rows.zip(outputs.positions()) {
                inputs.take(
                    &padded[padded_layer.offset + position * padded_layer.inputs..][..padded_layer.inputs],
                    row,
                );
            }
            if model.bias {
                outputs.take(&padded[padded_layer.bias()], &mut parameters[model.bias()]);
            }
        }
        parameters
    }
}

#[cfg(test)]
mod tests {
    use rankine_embedding::{Dtype, Pooling, TableSpec};

    use super::*;
    use crate::cuda::network::vector_layout::MULTIPLE;
    use rankine_model::{AttentionSpec, AttentionUnit, FeatureSpec, HeadSpec, Interaction};
    use rankine_reader::schema::Keep;

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
                .map(|(table, _)| FeatureSpec {
                    column: format!("c{table}"),
                    table,
                    pooling: Pooling::Sum,
                    weighted: false,
                })
                .collect(),
            tables: tables
                .map(|(table, &dim)| TableSpec {
                    name: format!("t{table}"),
                    rows: 3,
                    dim,
                    dtype: Dtype::Fp32,
                    dynamic: None,
                })
                .collect(),
            attention: Vec::new(),
        }
    }

    #[test]
    fn padding_parameters_can_be_undone() {
        for interaction in [
            Interaction::Dot,
            Interaction::Cross { layers: 2, rank: None },
            Interaction::Cross { layers: 2, rank: Some(3) },
            Interaction::FactorizationMachine,
            Interaction::Concat,
        ] {
            let spec = spec(interaction);
            let layers = Layers::new(&spec, &VectorLayout::new(&spec));
            let parameters: Vec<_> = (1..=spec.dense_parameters()).map(|number| number as f32).collect();
            let padded = layers.pad(&parameters);
            assert_eq!(layers.unpad(&padded), parameters);
            assert!(padded.iter().filter(|&&number| number > 0.0).is_sorted(), "the order differs");
            let kept: f64 = padded.iter().map(|&value| f64::from(value)).sum();
            assert_eq!(kept, parameters.iter().map(|&value| f64::from(value)).sum::<f64>());
            for layer in layers.bottom.iter().chain(layers.cross.iter().flatten()).chain(&layers.hidden) {
                let sizes = [layer.offset, layer.inputs, layer.outputs];
                assert!(sizes.iter().all(|size| size.is_multiple_of(MULTIPLE)), "{layer:?}");
            }
            let [bottom, interaction, len] = layers.parts();
            assert!(bottom.is_multiple_of(MULTIPLE) && interaction.is_multiple_of(MULTIPLE), "{layers:?}");
            assert_eq!((interaction, len), (layers.hidden[0].offset, padded.len()));
            let linear = layers.linear.expect("there are dense columns");
            assert_eq!((layers.head.inputs, layers.head.outputs), (24, 3));
            assert_eq!((linear.inputs, linear.outputs, linear.offset), (13, 3, layers.head.end()));
        }
    }

    #[test]
    fn units_come_after_the_bottom_mlp() {
        let mut spec = spec(Interaction::Cross { layers: 1, rank: None });
        let feature = |(number, table): (usize, usize)| FeatureSpec {
            column: format!("s{number}"),
            table,
            pooling: Pooling::Sum,
            weighted: false,
        };
        spec.features.extend([0, 1, 1].into_iter().enumerate().map(feature));
        let attend = |sequence: &str, features, unit| AttentionSpec {
            sequence: sequence.into(),
            features,
            length_max: 9,
            unit,
            position_embedding: (sequence == "s").then_some(Keep::Last),
        };
        let unit = AttentionUnit::Din { query: vec![0, 1], hidden: vec![10] };
        spec.attention = vec![attend("s", vec![2, 3], unit), attend("t", vec![4], AttentionUnit::Mean)];
        let vector_layout = VectorLayout::new(&spec);
        // Rows of 5 and of 12 elements.
        assert_eq!(vector_layout.keys[0].padded_parts().collect::<Vec<_>>(), [(0, 8), (8, 12)]);
        assert_eq!(vector_layout.keys[1].padded_parts().collect::<Vec<_>>(), [(0, 12)]);
        let layers = Layers::new(&spec, &vector_layout);
        let [unit, of_mean] = &layers.attention[..] else { panic!("one per sequence") };
        let sizes: Vec<_> = unit.iter().map(|layer| (layer.inputs, layer.outputs)).collect();
        assert_eq!((sizes, of_mean.len()), (vec![(80, 16), (16, 8)], 0));
        let [before, after] = [layers.bottom[1].end(), layers.cross[0][0].offset];
        assert_eq!((unit[0].offset, unit[1].offset), (before, unit[0].end()));
        // Nine vectors of 20 elements, in 16 rows.
        let [Some(positions), None] = layers.positions[..] else { panic!("only s has vectors of positions") };
        assert_eq!((positions.inputs, positions.outputs, positions.offset), (20, 16, unit[1].end()));
        assert_eq!((positions.end(), layers.parts()[0]), (after, after));
        let parameters: Vec<_> = (1..=spec.dense_parameters()).map(|number| number as f32).collect();
        let padded = layers.pad(&parameters);
        assert_eq!(layers.unpad(&padded), parameters);
        // The second row of W: each piece of the input has the parts of a key.
        let row = &padded[unit[0].offset + 80..][..80];
        let first = parameters[spec.dense_layout().attention[0].layers[0].offset + 68];
        for piece in 0..4 {
            let of_piece = first + 17.0 * piece as f32;
            let row = &row[20 * piece..][..20];
            assert_eq!((row[0], row[4], row[5..8].to_vec()), (of_piece, of_piece + 4.0, vec![0.0; 3]));
            assert_eq!((row[8], row[19]), (of_piece + 5.0, of_piece + 16.0));
        }
    }

    #[test]
    fn vectors_do_not_overlap() {
        let spec = spec(Interaction::Concat);
        let vector_layout = VectorLayout::new(&spec);
        // 9, 5 and 12 elements, padded; then two features with terms of three heads.
        assert_eq!((vector_layout.first, &vector_layout.features[..]), (16, &[16, 24][..]));
        assert_eq!((&vector_layout.wide[..], vector_layout.stride), (&[40, 44][..], 48));
        assert_eq!(vector_layout.vectors.positions().filter(|position| position % 8 == 0).count(), 5);
        assert_eq!(VectorLayout::new(&ModelSpec { dense_columns: 0, bottom_mlp: vec![], ..spec }).first, 0);
    }
}
