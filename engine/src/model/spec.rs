//! The sizes of a DLRM and where each of its dense parameters lies.

use rankine_embedding::TableSpec;
use serde::{Deserialize, Serialize};

/// A DLRM (Naumov et al., "Deep Learning Recommendation Model", 2019): bottom MLP over the dense features, one pooled
/// embedding a categorical column, dot products of every pair of those vectors, top MLP to one logit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Dense features of a sample.
    pub dense_columns: usize,
    /// Elements of every embedding row and of the bottom MLP's output.
    pub embedding_dim: usize,
    /// Outputs of the bottom MLP's layers; empty where there are no dense features.
    pub bottom_mlp: Vec<usize>,
    /// Outputs of the top MLP's layers but the last, which has one.
    pub top_mlp: Vec<usize>,
    /// One table a categorical column.
    pub tables: Vec<TableSpec>,
}

/// One fully connected layer: `y = W x + b`, W `[outputs, inputs]` row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Elements of x.
    pub inputs: usize,
    /// Elements of y.
    pub outputs: usize,
    /// Where W begins in the dense parameters; b follows it.
    pub offset: usize,
    /// Whether negative outputs become 0.
    pub relu: bool,
}

impl Layer {
    /// Where W lies in the dense parameters.
    pub fn weight(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.inputs * self.outputs
    }

    /// Where b lies in the dense parameters.
    pub fn bias(&self) -> std::ops::Range<usize> {
        self.weight().end..self.end()
    }

    fn end(&self) -> usize {
        self.offset + (self.inputs + 1) * self.outputs
    }
}

/// Layers, each fed by the one before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlpSpec {
    /// From the input on.
    pub layers: Vec<Layer>,
}

impl MlpSpec {
    fn new(inputs: usize, outputs: impl Iterator<Item = (usize, bool)>, mut offset: usize) -> Self {
        let mut layers = Vec::new();
        let mut inputs = inputs;
        for (outputs, relu) in outputs {
            let layer = Layer { inputs, outputs, offset, relu };
            offset = layer.end();
            inputs = outputs;
            layers.push(layer);
        }
        Self { layers }
    }

    /// The first parameter behind this MLP's, given where its first one is.
    fn end(&self, start: usize) -> usize {
        self.layers.last().map_or(start, Layer::end)
    }
}

impl ModelSpec {
    /// Vectors that interact: the bottom MLP's output, where there is one, and a pooled embedding a table.
    pub fn features(&self) -> usize {
        self.bottom_features() + self.tables.len()
    }

    /// 1 where there is a bottom MLP, else 0: the number of features before the tables'.
    pub fn bottom_features(&self) -> usize {
        usize::from(self.dense_columns > 0)
    }

    /// Elements of all interacting vectors of a sample.
    pub fn feature_elements(&self) -> usize {
        self.features() * self.embedding_dim
    }

    /// Inputs of the top MLP: the bottom MLP's output, then one dot product a pair of features.
    pub fn interaction_outputs(&self) -> usize {
        self.bottom_features() * self.embedding_dim + self.features() * (self.features() - 1) / 2
    }

    /// The bottom MLP, ReLU behind every layer.
    pub fn bottom(&self) -> MlpSpec {
        MlpSpec::new(self.dense_columns, self.bottom_mlp.iter().map(|&outputs| (outputs, true)), 0)
    }

    /// The top MLP, ReLU behind every layer but the last.
    pub fn top(&self) -> MlpSpec {
        let outputs = self.top_mlp.iter().map(|&outputs| (outputs, true)).chain([(1, false)]);
        MlpSpec::new(self.interaction_outputs(), outputs, self.bottom().end(0))
    }

    /// The number of dense parameters, those of both MLPs.
    pub fn dense_parameters(&self) -> usize {
        self.top().end(0)
    }

    /// The number of embedding parameters.
    pub fn embedding_parameters(&self) -> u64 {
        self.tables.iter().map(|table| table.rows * table.dim as u64).sum()
    }

    /// Every layer with its name: `bottom.0`, ..., `top.0`, ...
    pub fn named_layers(&self) -> Vec<(String, Layer)> {
        let named = |name: &'static str, mlp: MlpSpec| {
            mlp.layers.into_iter().enumerate().map(move |(number, layer)| (format!("{name}.{number}"), layer))
        };
        named("bottom", self.bottom()).chain(named("top", self.top())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankine_embedding::Pooling;

    #[test]
    fn the_reference_model_has_the_published_sizes() {
        let table = |i: usize| TableSpec { name: format!("C{i}"), rows: 10, dim: 128, pooling: Pooling::Sum };
        let spec = ModelSpec {
            dense_columns: 13,
            embedding_dim: 128,
            bottom_mlp: vec![512, 256, 128],
            top_mlp: vec![1024, 1024, 512, 256],
            tables: (0..26).map(table).collect(),
        };
        assert_eq!(spec.features(), 27);
        assert_eq!(spec.interaction_outputs(), 479);
        // Published as 2.369 million.
        assert_eq!(spec.dense_parameters(), 2_368_897);
        let layers = spec.named_layers();
        assert_eq!(layers.len(), 8);
        assert!(layers.windows(2).all(|pair| pair[0].1.end() == pair[1].1.offset));
    }
}
