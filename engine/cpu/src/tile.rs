//! The forward and backward pass of one tile of samples through a model, on one thread.

use std::ops::Range;

use rankine_cpu::{Arithmetic, Matrix};
use rankine_model::ModelSpec;
use rankine_reader::Samples;
use rayon::prelude::*;

use super::attention::{Attention, AttentionTile, EmbeddedPositions};
use super::interaction::{InteractionPart, InteractionTile};
use super::loss::HeadLabels;
use super::mlp::{Mlp, MlpTile};
use super::tables::LookUp;
use super::verdict;

/// The layers of a model, as tiles use them.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) spec: ModelSpec,
    /// The dense parameters, laid out as [`rankine_model::DenseLayout::named_layers`] describes.
    pub(super) parameters: Vec<f32>,
    bottom: Mlp,
    attention: Vec<Attention>,
    interaction: InteractionPart,
    top: Mlp,
    linear: Mlp,
}

/// The activations that one tile of samples keeps between the passes of a step.
#[derive(Debug, Default)]
pub(super) struct Tile {
    /// The range of these samples in the batch.
    pub(super) samples: Range<usize>,
    bottom: MlpTile,
    /// `[samples, vector elements]`: the dense columns' vector, the pooled embeddings and the sums of attention.
    vectors: Vec<f32>,
    attention: Vec<AttentionTile>,
    interaction: InteractionTile,
    top: MlpTile,
    linear: MlpTile,
    /// The buffer into which first-order terms are looked up.
    scratch: Vec<f32>,
    /// The weighted sum of the samples' losses, one per head.
    pub(super) loss_sums: Vec<f64>,
    /// Whether the gradients with respect to the samples' vectors are finite and within bounds.
    pub(super) vectors_finite: bool,
}

/// Where the gradients of a tile's samples are written.
#[derive(Debug)]
pub(super) struct TileGradients<'a> {
    /// `[sample, vector elements]`
    pub(super) vectors: &'a mut [f32],
    /// With respect to the keys of each sequence that attention reads: `[position, elements of a key]`.
    pub(super) keys: Vec<&'a mut [f32]>,
    /// `[sample, heads]`
    pub(super) logits: &'a mut [f32],
}

impl Parts {
    /// # Panics
    /// If the parameters do not match the spec.
    pub(super) fn new(spec: ModelSpec, parameters: Vec<f32>) -> Self {
        let layout = spec.dense_layout();
        assert_eq!(parameters.len(), layout.parameters());
        let mut parts = Self {
            attention: Attention::all(&spec, layout.attention, layout.positions),
            interaction: InteractionPart::new(&spec, layout.cross),
            bottom: Mlp::new(layout.bottom),
            top: Mlp::new(layout.top),
            linear: Mlp::new(layout.linear),
            parameters,
            spec,
        };
        parts.pack_weights();
        parts
    }

    /// Sets the arithmetic of all matrix products, which is f32 at first.
    pub(super) fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        let Self { bottom, attention, interaction, top, linear, .. } = self;
        let mlps = [bottom, top, linear].into_iter().chain(interaction.mlps_mut());
        let mlps = mlps.chain(attention.iter_mut().map(Attention::mlp_mut));
        mlps.for_each(|mlp| mlp.set_arithmetic(arithmetic));
        self.pack_weights();
    }

    /// Packs the weights of all layers; to be repeated after each change of the parameters.
    pub(super) fn pack_weights(&mut self) {
        let Self { parameters, bottom, attention, interaction, top, linear, .. } = self;
        let mlps = [bottom, top, linear].into_iter().chain(interaction.mlps_mut());
        let mlps = mlps.chain(attention.iter_mut().map(Attention::mlp_mut));
        let layers: Vec<_> = mlps.flat_map(Mlp::layers_mut).collect();
        layers.into_par_iter().for_each(|(layer, packed)| {
            packed.pack(Matrix::dense(&parameters[layer.weight()], layer.outputs, layer.inputs));
        });
    }

    /// Sizes the buffers for a tile of these samples. Buffers of attention depend on the batch, too.
    pub(super) fn resize(&self, tile: &mut Tile, samples: Range<usize>) {
        let len = samples.len();
        tile.samples = samples;
        tile.bottom.resize(&self.bottom, len);
        tile.vectors.resize(len * self.spec.vector_elements(), 0.0);
        tile.attention.resize_with(self.attention.len(), AttentionTile::default);
        self.interaction.resize(&mut tile.interaction, len);
        tile.top.resize(&self.top, len);
        tile.linear.resize(&self.linear, len);
    }

    /// Computes the logits of a batch's samples.
    pub(super) fn forward(&self, tables: &impl LookUp, batch: &Samples, tile: &mut Tile) {
        let Tile { samples, bottom, vectors, attention, interaction, top, linear, scratch, .. } = tile;
        let (len, heads) = (samples.len(), self.spec.heads.len());
        tables.pool(batch, samples, vectors);
        for (part, tile) in self.attention.iter().zip(attention) {
            part.forward((&self.parameters, tables), (batch, samples), vectors, tile);
        }
        let dense = dense_of(batch, samples);
        bottom.forward(&self.bottom, &self.parameters, dense, len);
        let dense_vectors = bottom.outputs().unwrap_or(dense);
        let dim = self.spec.bottom_outputs();
        if dim > 0 {
            let rows = vectors.chunks_exact_mut(self.spec.vector_elements());
            rows.zip(dense_vectors.chunks_exact(dim))
                .for_each(|(row, dense)| row[..dim].copy_from_slice(dense));
        }
        let top_input = self.interaction.forward(&self.parameters, vectors, len, interaction);
        top.forward(&self.top, &self.parameters, top_input, len);
        let logits = top.outputs_mut().expect("the top MLP has a layer");
        self.interaction.add_to_logits(vectors, interaction, heads, logits);
        tables.add_first_order(batch, samples, scratch, logits);
        linear.forward(&self.linear, &self.parameters, dense, len);
        if let Some(terms) = linear.outputs() {
            logits.iter_mut().zip(terms).for_each(|(logit, term)| *logit += term);
        }
    }

    /// Computes, from the labels of the samples, the gradients with respect to every layer's outputs, which stay in
    /// the tile, and all `gradients`.
    pub(super) fn backward(
        &self,
        heads: &[HeadLabels<'_>],
        tile: &mut Tile,
        gradients: &mut TileGradients<'_>,
    ) {
        let TileGradients { vectors: vector_gradients, keys, logits: logit_gradients } = gradients;
        let Tile {
            samples,
            bottom,
            vectors,
            attention,
            interaction,
            top,
            linear,
            loss_sums,
            vectors_finite,
            ..
        } = tile;
        let len = samples.len();
        let logits = top.outputs().expect("the top MLP has a layer");
        loss_sums.clear();
        loss_sums.extend(heads.iter().enumerate().map(|(number, head)| {
            let gradients = &mut logit_gradients[number..];
            head.gradients(samples.clone(), heads.len(), &logits[number..], gradients)
        }));
        for layer in [&mut *top, linear] {
            if let Some((_, gradients)) = layer.output_gradients_mut() {
                gradients.copy_from_slice(logit_gradients);
            }
        }
        let top_input_gradients = self.interaction.top_input_gradients(interaction, vector_gradients);
        top.backward(&self.top, len, Some(top_input_gradients));
        linear.backward(&self.linear, len, None);
        self.interaction.backward(vectors, (heads.len(), logit_gradients), interaction, vector_gradients);
        // Checked here because they are still in this core's cache.
        *vectors_finite = true;
        for ((part, tile), keys) in self.attention.iter().zip(attention).zip(keys) {
            part.backward(vector_gradients, tile, keys);
            *vectors_finite &= verdict::all_finite(keys);
        }
        *vectors_finite &= verdict::all_finite(vector_gradients);
        if let Some((_, output_gradients)) = bottom.output_gradients_mut() {
            let dim = self.spec.bottom_outputs();
            let rows = vector_gradients.chunks_exact(self.spec.vector_elements());
            for (gradients, row) in output_gradients.chunks_exact_mut(dim).zip(rows) {
                gradients.copy_from_slice(&row[..dim]);
            }
            bottom.backward(&self.bottom, len, None);
        }
    }

    /// Returns the learned vectors of positions with the numbers of their sequences.
    pub(super) fn embedded_positions(&self) -> impl Iterator<Item = (usize, EmbeddedPositions)> {
        let numbered = self.attention.iter().enumerate();
        numbered.filter_map(|(number, attention)| Some((number, attention.positions()?)))
    }

    /// Returns every MLP of the model with a tile's activations of it, in the order of their parameters.
    pub(super) fn mlps<'a>(&'a self, tile: &'a Tile) -> Vec<(&'a Mlp, &'a MlpTile)> {
        let mut mlps = vec![(&self.bottom, &tile.bottom)];
        mlps.extend(
            self.attention.iter().map(Attention::mlp).zip(tile.attention.iter().map(AttentionTile::mlp)),
        );
        mlps.extend(self.interaction.mlps(&tile.interaction));
        mlps.extend([(&self.top, &tile.top), (&self.linear, &tile.linear)]);
        mlps
    }
}

impl Tile {
    /// `[samples, heads]`
    pub(super) fn logits(&self) -> &[f32] {
        self.top.outputs().expect("the top MLP has a layer")
    }
}

fn dense_of<'a>(batch: &'a Samples, samples: &Range<usize>) -> &'a [f32] {
    &batch.dense[samples.start * batch.dense_columns..samples.end * batch.dense_columns]
}
