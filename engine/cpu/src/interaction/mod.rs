//! The interaction of a sample's vectors, between embeddings and top MLP.

mod cross;
mod machine;

use rankine_cpu::{DotInteraction, DotScratch};
use rankine_model::{Interaction, MlpSpec, ModelSpec};

use super::mlp::{Mlp, MlpTile};
use cross::{CrossNetwork, CrossTile};
use machine::FactorizationMachine;

/// A model's interaction, with its sizes.
#[derive(Debug)]
pub(super) enum InteractionPart {
    Dot(DotInteraction),
    Cross(CrossNetwork),
    FactorizationMachine(FactorizationMachine),
    Concat,
}

/// The activations that an interaction keeps of one tile between forward and backward pass.
#[derive(Debug, Default)]
pub(super) struct InteractionTile {
    /// `[samples, outputs]`: the dot interaction's results, for the top MLP.
    outputs: Vec<f32>,
    /// Gradients with respect to the top MLP's input, if that is not the vectors themselves.
    output_gradients: Vec<f32>,
    cross: CrossTile,
    dot: DotScratch,
    /// Working memory of the other interactions.
    scratch: Vec<f32>,
}

impl InteractionPart {
    /// `cross` are the spec's cross layers.
    pub(super) fn new(spec: &ModelSpec, cross: Vec<MlpSpec>) -> Self {
        match spec.interaction {
            Interaction::Dot => Self::Dot(Self::dot(spec)),
            Interaction::Cross { .. } => Self::Cross(CrossNetwork::new(cross)),
            Interaction::FactorizationMachine => {
                let vectors = spec.vectors();
                let dim = spec.vector_elements() / vectors;
                Self::FactorizationMachine(FactorizationMachine { vectors, dim })
            }
            Interaction::Concat => Self::Concat,
        }
    }

    /// Returns the bytes of the buffers of a tile of samples.
    pub(super) fn bytes(spec: &ModelSpec, samples: usize) -> u64 {
        let (vectors, elements) = (spec.vectors(), spec.vector_elements());
        match spec.interaction {
            Interaction::Dot => {
                let dot = Self::dot(spec);
                dot.scratch_bytes().saturating_add(floats(samples, dot.outputs()).saturating_mul(2))
            }
            // The results of the layers, the gradients with respect to the last one, and working memory.
            Interaction::Cross { layers, .. } => floats(samples, elements).saturating_mul(layers as u64 + 2),
            Interaction::FactorizationMachine => floats(2, elements / vectors),
            Interaction::Concat => 0,
        }
    }

    fn dot(spec: &ModelSpec) -> DotInteraction {
        let vectors = spec.vectors();
        DotInteraction { vectors, dim: spec.vector_elements() / vectors, passed: spec.bottom_outputs() }
    }

    /// Sizes the buffers for a tile of `samples` samples.
    pub(super) fn resize(&self, tile: &mut InteractionTile, samples: usize) {
        match self {
            Self::Dot(dot) => {
                tile.outputs.resize(samples * dot.outputs(), 0.0);
                tile.output_gradients.resize(samples * dot.outputs(), 0.0);
            }
            Self::Cross(network) => {
                network.resize(&mut tile.cross, samples);
                tile.output_gradients.resize(samples * network.width(), 0.0);
            }
            Self::FactorizationMachine(_) | Self::Concat => {}
        }
    }

    /// From `vectors`, `[samples, elements]`, to the top MLP's input.
    pub(super) fn forward<'a>(
        &self,
        parameters: &[f32],
        vectors: &'a [f32],
        samples: usize,
        tile: &'a mut InteractionTile,
    ) -> &'a [f32] {
        match self {
            Self::Dot(dot) => dot.forward(vectors, &mut tile.dot, &mut tile.outputs),
            Self::Cross(network) => network.forward(parameters, vectors, samples, &mut tile.cross),
            Self::FactorizationMachine(_) | Self::Concat => {}
        }
        self.top_input(vectors, tile)
    }

    /// The top MLP's input, `[samples, top inputs]`, after [`InteractionPart::forward`].
    fn top_input<'a>(&self, vectors: &'a [f32], tile: &'a InteractionTile) -> &'a [f32] {
        match self {
            Self::Dot(_) => &tile.outputs,
            Self::Cross(_) => tile.cross.output(),
            Self::FactorizationMachine(_) | Self::Concat => vectors,
        }
    }

    /// Adds the terms that bypass the top MLP to all `heads` logits of each sample.
    pub(super) fn add_to_logits(
        &self,
        vectors: &[f32],
        tile: &mut InteractionTile,
        heads: usize,
        logits: &mut [f32],
    ) {
        if let Self::FactorizationMachine(machine) = self {
            machine.add_to_logits(vectors, &mut tile.scratch, heads, logits);
        }
    }

    /// Returns the buffer for the gradients with respect to the top MLP's input.
    pub(super) fn top_input_gradients<'a>(
        &self,
        tile: &'a mut InteractionTile,
        vector_gradients: &'a mut [f32],
    ) -> &'a mut [f32] {
        match self {
            Self::Dot(_) | Self::Cross(_) => &mut tile.output_gradients,
            Self::FactorizationMachine(_) | Self::Concat => vector_gradients,
        }
    }

    /// From the gradients with respect to the top MLP's input and the logits to those with respect to the vectors.
    pub(super) fn backward(
        &self,
        vectors: &[f32],
        (heads, logit_gradients): (usize, &[f32]),
        tile: &mut InteractionTile,
        vector_gradients: &mut [f32],
    ) {
        let InteractionTile { output_gradients, cross, dot: dot_scratch, scratch, .. } = tile;
        match self {
            Self::Dot(dot) => dot.backward(vectors, output_gradients, dot_scratch, vector_gradients),
            Self::Cross(network) => {
                network.backward(vectors, output_gradients, cross, scratch, vector_gradients);
            }
            Self::FactorizationMachine(machine) => {
                machine.backward(vectors, heads, logit_gradients, scratch, vector_gradients);
            }
            Self::Concat => {}
        }
    }

    /// Returns the MLPs of the interaction, in the order of their parameters.
    pub(super) fn mlps_mut(&mut self) -> &mut [Mlp] {
        match self {
            Self::Cross(network) => network.mlps_mut(),
            Self::Dot(_) | Self::FactorizationMachine(_) | Self::Concat => &mut [],
        }
    }

    /// Returns the same MLPs with a tile's activations of each.
    pub(super) fn mlps<'a>(&'a self, tile: &'a InteractionTile) -> Vec<(&'a Mlp, &'a MlpTile)> {
        match self {
            Self::Cross(network) => network.mlps(&tile.cross),
            Self::Dot(_) | Self::FactorizationMachine(_) | Self::Concat => Vec::new(),
        }
    }
}

/// Returns the bytes of `samples` times `columns` numbers.
pub(super) fn floats(samples: usize, columns: usize) -> u64 {
    (size_of::<f32>() as u64).saturating_mul(samples as u64).saturating_mul(columns as u64)
}
