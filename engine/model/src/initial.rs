//! The weights that a model starts with.

use rankine_embedding::random::UniformField;

use crate::spec::ModelSpec;

/// Random streams from here on belong to dense layers, those before to tables.
const DENSE_STREAMS: u32 = 1 << 31;

/// Returns the dense parameters at the start of training: a function of the seed only. Weights are uniform with
/// variance `2 / (inputs + outputs)` (Glorot and Bengio, 2010); biases, first-order terms and the vectors of
/// positions are 0.
pub fn initial_parameters(spec: &ModelSpec, seed: u64) -> Vec<f32> {
    let layout = spec.dense_layout();
    let mut parameters = vec![0.0; layout.parameters()];
    for (number, (_, layer)) in layout.named_layers().iter().enumerate() {
        if layout.starts_at_zero(layer) {
            continue;
        }
        let bound = (6.0 / (layer.inputs + layer.outputs) as f64).sqrt() as f32;
        let field = UniformField::new(seed, DENSE_STREAMS + number as u32);
        for (row, weights) in parameters[layer.weight()].chunks_exact_mut(layer.inputs).enumerate() {
            field.fill_row(row as u64, bound, weights);
        }
    }
    parameters
}

#[cfg(test)]
mod tests {
    use rankine_embedding::{Dtype, Pooling, TableSpec};

    use super::*;
    use crate::interaction::Interaction;
    use crate::spec::{FeatureSpec, HeadSpec};

    /// Layer by layer, row by row: uniform weights of variance `2 / (inputs + outputs)`, with one random stream per
    /// layer.
    #[test]
    fn layers_start_with_the_numbers_of_their_seed() {
        let spec = ModelSpec {
            dense_columns: 5,
            bottom_mlp: vec![19],
            interaction: Interaction::Cross { layers: 1, rank: Some(3) },
            wide: true,
            top_mlp: vec![6],
            heads: vec![HeadSpec { label: "click".into(), label_number: 0, weight: 1.0 }],
            tables: vec![TableSpec {
                name: "C1".into(),
                rows: 10,
                dim: 2,
                dtype: Dtype::Fp32,
                dynamic: None,
            }],
            features: vec![FeatureSpec {
                column: "C1".into(),
                table: 0,
                pooling: Pooling::Sum,
                weighted: false,
            }],
            attention: Vec::new(),
        };
        let parameters = initial_parameters(&spec, 77);
        // Inputs, outputs and whether the layer has a bias: bottom.0, cross.0.v, cross.0.u, top.0, top.1.
        let layers = [(5, 19, true), (21, 3, false), (3, 21, true), (21, 6, true), (6, 1, true)];
        let mut rest = &parameters[..];
        for (number, (inputs, outputs, bias)) in (0u32..).zip(layers) {
            // A uniform number within the square root of 6 / n has a variance of 2 / n.
            let bound = (6.0 / f64::from(inputs + outputs)).sqrt() as f32;
            for row in 0..outputs {
                let (weights, after) = rest.split_at(inputs as usize);
                rest = after;
                let mut expected = vec![0.0; inputs as usize];
                UniformField::new(77, (1 << 31) + number).fill_row(row as u64, bound, &mut expected);
                assert_eq!(weights, expected, "layer {number}, row {row}");
            }
            let (biases, after) = rest.split_at(if bias { outputs as usize } else { 0 });
            rest = after;
            assert!(biases.iter().all(|&bias| bias == 0.0), "layer {number}: {biases:?}");
        }
        // The first-order terms of the dense columns.
        assert_eq!(rest, [0.0; 5]);
    }
}
