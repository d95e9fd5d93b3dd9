//! The parts of a model and their sizes.

use rankine_embedding::{Dtype, Pooling, TableSpec};
use serde::{Deserialize, Serialize};

use super::attention::AttentionSpec;
use super::interaction::{Interaction, VectorSizes};

/// A ranking model. All families are one chain of parts, some of which are replaced or absent:
///
/// ```text
/// dense columns ── bottom MLP ──┐
///                               ├── interaction ── top MLP ──┬── one logit per head
/// categorical ──── embeddings ──┘                            │
/// dense and categorical columns ──── first-order terms ──────┘
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Dense columns of a sample.
    pub dense_columns: usize,
    /// Outputs of the bottom MLP's layers, each followed by a ReLU. If empty, the dense columns enter the interaction
    /// as they are.
    pub bottom_mlp: Vec<usize>,
    /// How the bottom MLP's output and the embeddings interact.
    pub interaction: Interaction,
    /// Whether first-order terms are added to the logits: a linear layer over the dense columns, and for each
    /// categorical column a table with one element per head.
    pub wide: bool,
    /// Outputs of the top MLP's hidden layers, shared by all heads; the last layer, one logit per head, follows them.
    pub top_mlp: Vec<usize>,
    /// The labels to predict.
    pub heads: Vec<HeadSpec>,
    /// The embedding tables.
    pub tables: Vec<TableSpec>,
    /// One per categorical column, in the dataset's order.
    pub features: Vec<FeatureSpec>,
    /// Attention over sequences of features. Its sums take the place of the embeddings of these features.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<AttentionSpec>,
}

/// A label that the model predicts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadSpec {
    /// The label column.
    pub label: String,
    /// Its number among the dataset's label columns.
    pub label_number: usize,
    /// The factor of its loss in the sum over all heads.
    pub weight: f64,
}

/// A categorical column, as the model looks it up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureSpec {
    /// The column.
    pub column: String,
    /// The number of its table; features may share one.
    pub table: usize,
    /// How a bag of rows becomes a vector, both from the table and among the first-order terms.
    pub pooling: Pooling,
    /// Whether the ids of a bag have weights, by which their rows are multiplied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub weighted: bool,
}

impl ModelSpec {
    /// Returns the elements of the vector made of the dense columns; 0 without dense columns.
    pub fn bottom_outputs(&self) -> usize {
        if self.dense_columns == 0 { 0 } else { *self.bottom_mlp.last().unwrap_or(&self.dense_columns) }
    }

    /// Returns the elements of a feature's embedding.
    pub fn feature_dim(&self, feature: &FeatureSpec) -> usize {
        self.tables[feature.table].dim
    }

    /// Returns the elements of a key of a sequence.
    pub fn key_elements(&self, attention: &AttentionSpec) -> usize {
        attention.features.iter().map(|&feature| self.feature_dim(&self.features[feature])).sum()
    }

    /// Returns the number of the attention that reads a feature, if one does.
    pub fn attention_of(&self, feature: usize) -> Option<usize> {
        self.attention.iter().position(|attention| attention.features.contains(&feature))
    }

    /// Returns the number of vectors of a sample.
    pub fn vectors(&self) -> usize {
        usize::from(self.dense_columns > 0) + self.features.len()
    }

    /// Returns the elements of all vectors of a sample.
    pub fn vector_elements(&self) -> usize {
        self.bottom_outputs() + self.features.iter().map(|feature| self.feature_dim(feature)).sum::<usize>()
    }

    /// Returns the sizes of a sample's vectors.
    pub fn vector_sizes(&self) -> VectorSizes {
        let first = self.bottom_outputs();
        let mut lengths = self.features.iter().map(|feature| self.feature_dim(feature));
        let own = (self.dense_columns > 0).then_some(first).or_else(|| lengths.clone().next());
        VectorSizes {
            count: self.vectors(),
            elements: self.vector_elements(),
            first,
            are_equal: lengths.all(|length| Some(length) == own),
        }
    }

    /// Returns the number of inputs of the top MLP.
    pub fn top_inputs(&self) -> usize {
        self.interaction.top_inputs(self.vector_sizes())
    }

    /// Returns the tables of first-order terms, one per feature; none if the model has no such terms.
    pub fn wide_tables(&self) -> Vec<TableSpec> {
        let table = |feature: &FeatureSpec| TableSpec {
            name: feature.column.clone(),
            rows: self.tables[feature.table].rows,
            dim: self.heads.len(),
            dtype: Dtype::Fp32,
            dynamic: None,
        };
        if self.wide { self.features.iter().map(table).collect() } else { Vec::new() }
    }

    /// Returns the number of parameters in tables, including those of first-order terms.
    pub fn embedding_parameters(&self) -> u64 {
        let parameters = |table: &TableSpec| table.rows.saturating_mul(table.dim as u64);
        self.tables.iter().chain(&self.wide_tables()).map(parameters).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layer;

    fn reference(interaction: Interaction) -> ModelSpec {
        let table = |i: usize| TableSpec {
            name: format!("C{i}"),
            rows: 10,
            dim: 128,
            dtype: Dtype::Fp32,
            dynamic: None,
        };
        let feature = |table| FeatureSpec {
            column: format!("C{table}"),
            table,
            pooling: Pooling::Sum,
            weighted: false,
        };
        ModelSpec {
            dense_columns: 13,
            bottom_mlp: vec![512, 256, 128],
            interaction,
            wide: false,
            top_mlp: vec![1024, 1024, 512, 256],
            heads: vec![HeadSpec { label: "click".into(), label_number: 0, weight: 1.0 }],
            tables: (0..26).map(table).collect(),
            features: (0..26).map(feature).collect(),
            attention: Vec::new(),
        }
    }

    #[test]
    fn the_reference_models_have_the_published_sizes() {
        let dlrm = reference(Interaction::Dot);
        assert_eq!((dlrm.vectors(), dlrm.top_inputs()), (27, 479));
        // Published as 2.369 million.
        assert_eq!(dlrm.dense_parameters(), 2_368_897);
        // MLPerf Training v3.0's DCN v2: three cross layers of rank 512 over 27 x 128 elements.
        let dcn = reference(Interaction::Cross { layers: 3, rank: Some(512) });
        let cross = 3 * (3456 * 512 + 512 * 3456 + 3456);
        assert_eq!(dcn.top_inputs(), 3456);
        assert_eq!(dcn.dense_parameters() - dlrm.dense_parameters(), cross + (3456 - 479) * 1024);
    }

    /// Names, inputs, outputs, biases and ReLUs of all layers.
    #[test]
    fn layers_are_those_of_the_kind() {
        let layers = |interaction| {
            let spec = ModelSpec {
                bottom_mlp: vec![8, 128],
                top_mlp: vec![7],
                wide: true,
                ..reference(interaction)
            };
            let layers = spec.dense_layout().named_layers();
            let layer = |(name, layer): (String, Layer)| {
                assert_eq!(layer.end() - layer.weight().end, if layer.bias { layer.outputs } else { 0 });
                (name, layer.inputs, layer.outputs, layer.bias, layer.relu)
            };
            layers.into_iter().map(layer).collect::<Vec<_>>()
        };
        let layer = |name: &str, inputs, outputs, bias, relu| (name.to_owned(), inputs, outputs, bias, relu);
        let bottom = [layer("bottom.0", 13, 8, true, true), layer("bottom.1", 8, 128, true, true)];
        let top = |inputs| [layer("top.0", inputs, 7, true, true), layer("top.1", 7, 1, true, false)];
        let linear = [layer("linear", 13, 1, false, false)];
        assert_eq!(layers(Interaction::Dot), [&bottom[..], &top(128 + 27 * 26 / 2), &linear].concat());
        assert_eq!(layers(Interaction::Concat), [&bottom[..], &top(27 * 128), &linear].concat());
        let cross = [layer("cross.0", 3456, 3456, true, false), layer("cross.1", 3456, 3456, true, false)];
        let full = layers(Interaction::Cross { layers: 2, rank: None });
        assert_eq!(full, [&bottom[..], &cross, &top(3456), &linear].concat());
        let cross = [layer("cross.0.v", 3456, 5, false, false), layer("cross.0.u", 5, 3456, true, false)];
        let low_rank = layers(Interaction::Cross { layers: 1, rank: Some(5) });
        assert_eq!(low_rank, [&bottom[..], &cross, &top(3456), &linear].concat());
    }

    #[test]
    fn layers_are_stored_one_after_another() {
        for interaction in [
            Interaction::Dot,
            Interaction::Cross { layers: 2, rank: None },
            Interaction::Cross { layers: 2, rank: Some(4) },
            Interaction::FactorizationMachine,
            Interaction::Concat,
        ] {
            let spec = ModelSpec { wide: true, ..reference(interaction) };
            let layers = spec.dense_layout().named_layers();
            let mut end = 0;
            for (name, layer) in &layers {
                assert_eq!(layer.weight().start, end, "{name}");
                end = layer.end();
            }
            assert_eq!(end, spec.dense_parameters());
            let mut names: Vec<_> = layers.iter().map(|(name, _)| name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), layers.len());
        }
    }
}
