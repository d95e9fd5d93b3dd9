//! A DLRM in host memory: one training step, and scores.

use std::ops::Range;

use rankine_embedding::UpdateRule;
use rankine_embedding::cpu::{Bags, FeatureSlot, Route, Table};
use rankine_embedding::random::UniformField;
use rankine_reader::Samples;
use rayon::prelude::*;

use super::interaction::DotInteraction;
use super::loss;
use super::matmul::Matrix;
use super::mlp::{Mlp, MlpTile, PackedWeights, WgradTile, weight_gradients};
use crate::model::{MlpSpec, ModelSpec};

/// Streams of random numbers from here on belong to dense layers, those before to tables.
const DENSE_STREAMS: u32 = 1 << 31;
/// Dense parameters that one task updates.
const PARAMETERS_PER_TASK: usize = 1 << 14;
/// Rows of a table that one task looks at.
const ROWS_PER_TASK: usize = 1 << 10;

/// The learning rates of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRates {
    /// Of the MLPs' parameters.
    pub dense: f32,
    /// Of the tables' rows.
    pub sparse: f32,
}

/// A model, its optimizer's state, and the buffers of a step.
#[derive(Debug)]
pub struct CpuModel {
    spec: ModelSpec,
    bottom: MlpSpec,
    top: MlpSpec,
    interaction: DotInteraction,
    dense_rule: UpdateRule,
    parameters: Vec<f32>,
    state: Vec<f32>,
    tables: Vec<Table>,
    /// The layers' weights, in the order of [`ModelSpec::named_layers`]: always those of `parameters`.
    packed: Vec<PackedWeights>,
    // What a step works in; the contents mean nothing between steps.
    gradients: Vec<f32>,
    feature_gradients: Vec<f32>,
    tiles: Vec<Tile>,
    routes: Vec<Route>,
}

/// What one tile of samples keeps between the passes of a step.
#[derive(Debug, Default)]
struct Tile {
    samples: Range<usize>,
    bottom: MlpTile,
    top: MlpTile,
    /// `[samples, features, dim]`
    features: Vec<f32>,
    /// `[samples, interaction outputs]`: what the top MLP sees, and the gradients by it.
    interaction: Vec<f32>,
    interaction_gradients: Vec<f32>,
    /// What the interaction works in.
    scratch: Vec<f32>,
    /// The weighted sum of the samples' losses.
    loss_sum: f64,
}

impl CpuModel {
    /// A model as training starts with it: a function of the seed alone. Weights are uniform with variance
    /// `2 / (inputs + outputs)` (Glorot and Bengio, 2010), biases 0.
    pub fn initialized(spec: ModelSpec, dense_rule: UpdateRule, sparse_rule: UpdateRule, seed: u64) -> Self {
        let mut parameters = vec![0.0; spec.dense_parameters()];
        for (number, (_, layer)) in spec.named_layers().iter().enumerate() {
            let bound = (6.0 / (layer.inputs + layer.outputs) as f64).sqrt() as f32;
            let field = UniformField::new(seed, DENSE_STREAMS + number as u32);
            for (row, weights) in parameters[layer.weight()].chunks_exact_mut(layer.inputs).enumerate() {
                field.fill_row(row as u64, bound, weights);
            }
        }
        let tables = spec.tables.iter().enumerate();
        let tables = tables
            .map(|(number, table)| Table::initialized(table.clone(), sparse_rule, seed, number as u32))
            .collect();
        Self::new(spec, dense_rule, parameters, tables)
    }

    /// A model with given parameters, laid out as [`ModelSpec::named_layers`] says, and fresh optimizer state.
    ///
    /// # Panics
    /// Where parameters or tables are not those of the spec.
    pub fn new(spec: ModelSpec, dense_rule: UpdateRule, parameters: Vec<f32>, tables: Vec<Table>) -> Self {
        assert_eq!(parameters.len(), spec.dense_parameters());
        assert!(tables.iter().map(Table::spec).eq(&spec.tables));
        let interaction = DotInteraction {
            features: spec.features(),
            dim: spec.embedding_dim,
            passed: spec.bottom_features() * spec.embedding_dim,
        };
        assert_eq!(interaction.outputs(), spec.interaction_outputs());
        let mut model = Self {
            bottom: spec.bottom(),
            top: spec.top(),
            interaction,
            dense_rule,
            state: vec![dense_rule.initial_state(); dense_rule.state_elements(parameters.len())],
            gradients: vec![0.0; parameters.len()],
            parameters,
            routes: vec![Route::default(); tables.len()],
            tables,
            feature_gradients: Vec::new(),
            tiles: Vec::new(),
            packed: vec![PackedWeights::default(); spec.named_layers().len()],
            spec,
        };
        model.pack_weights();
        model
    }

    fn pack_weights(&mut self) {
        let layers: Vec<_> = self.bottom.layers.iter().chain(&self.top.layers).collect();
        layers.into_par_iter().zip(&mut self.packed).for_each(|(layer, packed)| {
            packed.pack(Matrix::dense(&self.parameters[layer.weight()], layer.outputs, layer.inputs));
        });
    }

    fn bottom(&self) -> Mlp<'_> {
        let weights = &self.packed[..self.bottom.layers.len()];
        Mlp { spec: &self.bottom, parameters: &self.parameters, weights }
    }

    fn top(&self) -> Mlp<'_> {
        let weights = &self.packed[self.bottom.layers.len()..];
        Mlp { spec: &self.top, parameters: &self.parameters, weights }
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The dense parameters, laid out as [`ModelSpec::named_layers`] says.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// The tables, one a categorical column.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Whether every weight is a finite number.
    pub fn is_finite(&self) -> bool {
        let finite = |weights: &[f32]| weights.iter().all(|weight| weight.is_finite());
        let of_table = |table: &Table| {
            let rows = (0..table.spec().rows as usize).into_par_iter().with_min_len(ROWS_PER_TASK);
            rows.all(|row| finite(table.weights(row as u64)))
        };
        finite(&self.parameters) && self.tables.iter().all(of_table)
    }

    /// One step of training on a global batch; returns the mean loss, weighted, before the update.
    ///
    /// # Panics
    /// Where the batch is empty or its columns are not the model's.
    pub fn train_step(&mut self, batch: &Samples, rates: LearningRates) -> f64 {
        let loss = self.forward_backward(batch);
        let rule = self.dense_rule;
        let parameters = self.parameters.par_chunks_mut(PARAMETERS_PER_TASK);
        let gradients = self.gradients.par_chunks(PARAMETERS_PER_TASK);
        if self.state.is_empty() {
            parameters
                .zip(gradients)
                .for_each(|(parameters, gradients)| rule.update(rates.dense, parameters, &mut [], gradients));
        } else {
            let state = self.state.par_chunks_mut(PARAMETERS_PER_TASK);
            parameters.zip(state).zip(gradients).for_each(|((parameters, state), gradients)| {
                rule.update(rates.dense, parameters, state, gradients)
            });
        }
        self.pack_weights();
        let (slots, feature_gradients) = (feature_slots(&self.spec), &self.feature_gradients);
        let tables = self.tables.par_iter_mut().zip(&mut self.routes).zip(&batch.categorical).zip(slots);
        tables.for_each(|(((table, route), bags), slot)| {
            let bags = Bags { offsets: &bags.offsets, ids: &bags.ids };
            route.build(bags, table.spec().rows);
            table.update(route, bags, feature_gradients, slot, rates.sparse);
        });
        loss
    }

    /// The loss of a batch, and its gradients in `gradients` and `feature_gradients`.
    fn forward_backward(&mut self, batch: &Samples) -> f64 {
        assert!(batch.len > 0, "a batch has at least one sample");
        self.lay_tiles(batch.len);
        self.feature_gradients.resize(batch.len * self.spec.feature_elements(), 0.0);
        let total_weight = match batch.weights.as_slice() {
            [] => batch.len as f64,
            weights => weights.iter().map(|&weight| f64::from(weight)).sum(),
        };
        let mut tiles = std::mem::take(&mut self.tiles);
        let mut feature_gradients = std::mem::take(&mut self.feature_gradients);
        let tile_elements = tiles[0].samples.len() * self.spec.feature_elements();
        tiles.par_iter_mut().zip(feature_gradients.par_chunks_mut(tile_elements)).for_each(
            |(tile, gradients)| {
                self.forward(batch, tile);
                self.backward(batch, total_weight, tile, gradients);
            },
        );
        self.sum_weight_gradients(batch, &tiles);
        let loss_sum: f64 = tiles.iter().map(|tile| tile.loss_sum).sum();
        (self.tiles, self.feature_gradients) = (tiles, feature_gradients);
        loss_sum / total_weight
    }

    /// Appends the logit of each sample.
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) {
        self.lay_tiles(batch.len);
        let mut tiles = std::mem::take(&mut self.tiles);
        tiles.par_iter_mut().for_each(|tile| self.forward(batch, tile));
        for tile in &tiles {
            out.extend_from_slice(tile.logits());
        }
        self.tiles = tiles;
    }

    /// Cuts a batch into tiles. Their size is a compromise: large tiles use each weight that they load for more
    /// samples, many tiles keep more threads busy.
    fn lay_tiles(&mut self, samples: usize) {
        let tile_samples = (samples / 8).next_power_of_two().clamp(64, 256);
        self.tiles.resize_with(samples.div_ceil(tile_samples), Tile::default);
        for (number, tile) in self.tiles.iter_mut().enumerate() {
            let start = number * tile_samples;
            tile.samples = start..samples.min(start + tile_samples);
            let len = tile.samples.len();
            tile.bottom.resize(&self.bottom, len);
            tile.top.resize(&self.top, len);
            tile.features.resize(len * self.spec.feature_elements(), 0.0);
            tile.interaction.resize(len * self.interaction.outputs(), 0.0);
            tile.interaction_gradients.resize(len * self.interaction.outputs(), 0.0);
        }
    }

    fn forward(&self, batch: &Samples, tile: &mut Tile) {
        let (samples, stride) = (tile.samples.len(), self.spec.feature_elements());
        let tables = self.tables.iter().zip(&batch.categorical).zip(feature_slots(&self.spec));
        for ((table, bags), slot) in tables {
            let bags = Bags { offsets: &bags.offsets, ids: &bags.ids };
            table.pool(bags, tile.samples.start, slot, &mut tile.features);
        }
        if !self.bottom.layers.is_empty() {
            tile.bottom.forward(&self.bottom(), dense_of(batch, &tile.samples), samples);
            let output = tile.bottom.outputs.last().expect("the bottom MLP has layers");
            let vectors = output.chunks_exact(self.spec.embedding_dim);
            for (features, vector) in tile.features.chunks_exact_mut(stride).zip(vectors) {
                features[..vector.len()].copy_from_slice(vector);
            }
        }
        self.interaction.forward(&tile.features, &mut tile.scratch, &mut tile.interaction);
        tile.top.forward(&self.top(), &tile.interaction, samples);
    }

    fn backward(&self, batch: &Samples, total_weight: f64, tile: &mut Tile, feature_gradients: &mut [f32]) {
        let samples = tile.samples.clone();
        let logit_gradients = tile.top.output_gradients.last_mut().expect("the top MLP has layers");
        tile.loss_sum = loss::loss_and_gradients(
            tile.top.outputs.last().expect("the top MLP has layers"),
            &batch.labels[0][samples.clone()],
            batch.weights.get(samples.clone()).unwrap_or_default(),
            total_weight,
            logit_gradients,
        );
        tile.top.backward(&self.top(), samples.len(), Some(&mut tile.interaction_gradients));
        self.interaction.backward(
            &tile.features,
            &tile.interaction_gradients,
            &mut tile.scratch,
            feature_gradients,
        );
        if let Some(output_gradients) = tile.bottom.output_gradients.last_mut() {
            let dim = self.spec.embedding_dim;
            let rows = feature_gradients.chunks_exact(self.spec.feature_elements());
            for (gradients, features) in output_gradients.chunks_exact_mut(dim).zip(rows) {
                gradients.copy_from_slice(&features[..dim]);
            }
            tile.bottom.backward(&self.bottom(), samples.len(), None);
        }
    }

    fn sum_weight_gradients(&mut self, batch: &Samples, tiles: &[Tile]) {
        // Layers lie one behind the other in the gradients: each takes its piece off the front.
        let mut rest = self.gradients.as_mut_slice();
        let mut tasks = Vec::new();
        for (mlp, is_top) in [(&self.bottom, false), (&self.top, true)] {
            for (number, layer) in mlp.layers.iter().enumerate() {
                let (gradients, behind) = rest.split_at_mut(layer.weight().len() + layer.bias().len());
                rest = behind;
                let shares: Vec<_> = tiles
                    .iter()
                    .map(|tile| {
                        let (own, first_input) = if is_top {
                            (&tile.top, tile.interaction.as_slice())
                        } else {
                            (&tile.bottom, dense_of(batch, &tile.samples))
                        };
                        WgradTile {
                            input: if number == 0 { first_input } else { &own.outputs[number - 1] },
                            output_gradients: &own.output_gradients[number],
                            samples: tile.samples.len(),
                        }
                    })
                    .collect();
                tasks.push((layer, shares, gradients));
            }
        }
        tasks
            .into_par_iter()
            .for_each(|(layer, tiles, gradients)| weight_gradients(layer, &tiles, gradients));
    }
}

impl Tile {
    fn logits(&self) -> &[f32] {
        self.top.outputs.last().expect("the top MLP has layers")
    }
}

/// Where each table's vector lies among a sample's features.
fn feature_slots(spec: &ModelSpec) -> Vec<FeatureSlot> {
    let stride = spec.feature_elements();
    let slot =
        |number| FeatureSlot { stride, offset: (spec.bottom_features() + number) * spec.embedding_dim };
    (0..spec.tables.len()).map(slot).collect()
}

fn dense_of<'a>(batch: &'a Samples, samples: &Range<usize>) -> &'a [f32] {
    &batch.dense[samples.start * batch.dense_columns..samples.end * batch.dense_columns]
}
