//! Where each dense parameter of a model is stored: layer after layer in one array.

use std::ops::Range;

use super::interaction::Outputs;
use super::spec::ModelSpec;

/// One fully connected layer: `y = W x + b`, W `[outputs, inputs]` row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Elements of x.
    pub inputs: usize,
    /// Elements of y.
    pub outputs: usize,
    /// Where W starts in the dense parameters; b follows it.
    pub offset: usize,
    /// Whether the layer has a b.
    pub bias: bool,
    /// Whether negative outputs become 0.
    pub relu: bool,
}

impl Layer {
    /// Returns the range of W in the dense parameters.
    pub fn weight(&self) -> Range<usize> {
        self.offset..self.offset + self.inputs * self.outputs
    }

    /// Returns the range of b in the dense parameters; empty if the layer has none.
    pub fn bias(&self) -> Range<usize> {
        self.weight().end..self.end()
    }

    /// Returns the index after the layer's last parameter.
    pub fn end(&self) -> usize {
        self.weight().end + if self.bias { self.outputs } else { 0 }
    }
}

/// Layers, each fed by the one before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlpSpec {
    /// From the input to the output.
    pub layers: Vec<Layer>,
}

/// The dense parts of a model. Their parameters are stored in the order of these fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseLayout {
    /// The bottom MLP; without layers if the dense columns are used as they are, or if there are none.
    pub bottom: MlpSpec,
    /// One per attention: the MLP that computes the weights of positions; without layers if it has none.
    pub attention: Vec<MlpSpec>,
    /// One per attention: the vectors of its positions as the W of a layer, `[position, elements of a key]`; `None` if
    /// positions have no vectors.
    pub positions: Vec<Option<Layer>>,
    /// The sequences of these.
    sequences: Vec<String>,
    /// One per cross layer: W only, or V and U.
    pub cross: Vec<MlpSpec>,
    /// The top MLP, with a ReLU after every layer but the last.
    pub top: MlpSpec,
    /// The first-order terms of the dense columns, one layer without bias or ReLU; no layer if the model has no such
    /// terms.
    pub linear: MlpSpec,
}

impl DenseLayout {
    fn new(spec: &ModelSpec) -> Self {
        let mut end = 0;
        let mut mlp = |inputs: usize, outputs: &mut dyn Iterator<Item = Outputs>| {
            let mut inputs = inputs;
            let layers = outputs.map(|Outputs { outputs, bias, relu }| {
                let layer = Layer { inputs, outputs, offset: end, bias, relu };
                (inputs, end) = (outputs, layer.end());
                layer
            });
            MlpSpec { layers: layers.collect() }
        };
        let hidden = |widths: &[usize]| -> Vec<_> {
            widths.iter().map(|&outputs| Outputs { outputs, bias: true, relu: true }).collect()
        };
        let plain = |outputs, bias| Outputs { outputs, bias, relu: false };
        let bottom = mlp(spec.dense_columns, &mut hidden(&spec.bottom_mlp).into_iter());
        let attention = spec
            .attention
            .iter()
            .map(|attention| mlp(4 * spec.key_elements(attention), &mut attention.unit.layers().into_iter()));
        let attention = attention.collect();
        let positions = spec.attention.iter().map(|attention| {
            let vectors = attention.position_embedding.map(|_| plain(attention.length_max, false));
            mlp(spec.key_elements(attention), &mut vectors.into_iter()).layers.pop()
        });
        let positions = positions.collect();
        let width = spec.vector_elements();
        let layers = spec.interaction.layers(width).into_iter();
        let cross = layers.map(|layer| mlp(width, &mut layer.into_iter())).collect();
        let heads = spec.heads.len();
        let top = mlp(spec.top_inputs(), &mut hidden(&spec.top_mlp).into_iter().chain([plain(heads, true)]));
        let has_linear = spec.wide && spec.dense_columns > 0;
        let linear = mlp(spec.dense_columns, &mut has_linear.then(|| plain(heads, false)).into_iter());
        let sequences = spec.attention.iter().map(|attention| attention.sequence.clone()).collect();
        Self { bottom, attention, positions, sequences, cross, top, linear }
    }

    /// The number of dense parameters.
    pub fn parameters(&self) -> usize {
        self.named_layers().last().map_or(0, |(_, layer)| layer.end())
    }

    /// Every layer with its name, in the order of their parameters: `bottom.0`, ..., `attention.SEQUENCE.0`, ...,
    /// `positions.SEQUENCE`, ..., `cross.0` or `cross.0.v` and `cross.0.u`, ..., `top.0`, ..., `linear`.
    pub fn named_layers(&self) -> Vec<(String, Layer)> {
        let numbered = |name: &str, mlp: &MlpSpec| -> Vec<_> {
            let layers = mlp.layers.iter().enumerate();
            layers.map(|(number, &layer)| (format!("{name}.{number}"), layer)).collect()
        };
        let cross = self.cross.iter().enumerate().flat_map(|(number, mlp)| match mlp.layers.as_slice() {
            &[v, u] => vec![(format!("cross.{number}.v"), v), (format!("cross.{number}.u"), u)],
            layers => layers.iter().map(|&w| (format!("cross.{number}"), w)).collect(),
        });
        let linear = self.linear.layers.iter().map(|&layer| ("linear".to_owned(), layer));
        let bottom = numbered("bottom", &self.bottom).into_iter();
        let attention = self.sequences.iter().zip(&self.attention);
        let attention = attention.flat_map(|(name, mlp)| numbered(&format!("attention.{name}"), mlp));
        let positions = self.sequences.iter().zip(&self.positions);
        let positions = positions.filter_map(|(name, layer)| Some((format!("positions.{name}"), (*layer)?)));
        bottom
            .chain(attention)
            .chain(positions)
            .chain(cross)
            .chain(numbered("top", &self.top))
            .chain(linear)
            .collect()
    }

    /// Returns whether a layer starts with weights of 0: first-order terms, and the vectors of positions.
    pub(super) fn starts_at_zero(&self, layer: &Layer) -> bool {
        self.linear.layers.first() == Some(layer) || self.positions.contains(&Some(*layer))
    }
}

impl ModelSpec {
    /// Returns where each dense parameter is stored.
    pub fn dense_layout(&self) -> DenseLayout {
        DenseLayout::new(self)
    }

    /// The number of dense parameters.
    pub fn dense_parameters(&self) -> usize {
        self.dense_layout().parameters()
    }
}
