//! A model in host memory: one training step, and scores.

use std::ops::Range;

use rankine_embedding::Step;
use rankine_embedding::cpu::Table;
use rankine_embedding::random::UniformField;
use rankine_reader::Samples;
use rayon::prelude::*;

use super::dense::DenseOptimizer;
use super::loss::HeadLabels;
use super::mlp::{Sum, weight_gradients};
use super::tables::ModelTables;
use super::tile::{Parts, Tile};
use crate::model::{ModelSpec, TrainingRules};

/// Streams of random numbers from here on belong to dense layers, those before to tables.
const DENSE_STREAMS: u32 = 1 << 31;
/// Tiles a thread that are in memory at once: enough that few threads wait for the last tile of a round.
const ROUND_TILES_PER_THREAD: usize = 8;

/// A model, its optimizers' state, and the buffers of a step.
#[derive(Debug)]
pub struct CpuModel {
    parts: Parts,
    tables: ModelTables,
    dense_optimizer: DenseOptimizer,
    steps: u64,
    // What a step works in; the contents mean nothing between steps.
    gradients: Vec<f32>,
    vector_gradients: Vec<f32>,
    logit_gradients: Vec<f32>,
    tiles: Vec<Tile>,
}

impl CpuModel {
    /// A model as training starts with it: a function of the seed alone. Weights are uniform with variance
    /// `2 / (inputs + outputs)` (Glorot and Bengio, 2010), biases and first-order terms 0.
    ///
    /// # Panics
    /// Where the rules are not for the tables of the spec.
    pub fn initialized(spec: ModelSpec, rules: &TrainingRules, seed: u64) -> Self {
        let layout = spec.dense_layout();
        let mut parameters = vec![0.0; layout.parameters()];
        let first_order = layout.linear.layers.first();
        for (number, (_, layer)) in layout.named_layers().iter().enumerate() {
            if Some(layer) == first_order {
                continue;
            }
            let bound = (6.0 / (layer.inputs + layer.outputs) as f64).sqrt() as f32;
            let field = UniformField::new(seed, DENSE_STREAMS + number as u32);
            for (row, weights) in parameters[layer.weight()].chunks_exact_mut(layer.inputs).enumerate() {
                field.fill_row(row as u64, bound, weights);
            }
        }
        let tables = rules.all_tables(&spec).into_iter().enumerate().map(|(number, (table, optimizer))| {
            if number < spec.tables.len() {
                Table::initialized(table, optimizer, seed, number as u32)
            } else {
                Table::zeroed(table, optimizer)
            }
        });
        let tables = tables.collect();
        Self::new(spec, rules, parameters, tables)
    }

    /// A model with given parameters, laid out as [`crate::model::DenseLayout::named_layers`] says, and fresh state of
    /// the dense optimizer. `tables` are those of the spec, then those of first-order terms.
    ///
    /// # Panics
    /// Where parameters or tables are not those of the spec.
    pub fn new(spec: ModelSpec, rules: &TrainingRules, parameters: Vec<f32>, tables: Vec<Table>) -> Self {
        Self {
            dense_optimizer: DenseOptimizer::new(rules.dense, rules.dense_clip_norm, &parameters),
            steps: 0,
            gradients: vec![0.0; parameters.len()],
            vector_gradients: Vec::new(),
            logit_gradients: Vec::new(),
            tiles: Vec::new(),
            tables: ModelTables::new(&spec, tables),
            parts: Parts::new(spec, parameters),
        }
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.parts.spec
    }

    /// The dense parameters, laid out as [`crate::model::DenseLayout::named_layers`] says.
    pub fn parameters(&self) -> &[f32] {
        &self.parts.parameters
    }

    /// The tables of the spec, then those of first-order terms.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.all()
    }

    /// Whether every weight is a finite number.
    pub fn is_finite(&self) -> bool {
        self.parameters().iter().all(|weight| weight.is_finite()) && self.tables.is_finite()
    }

    /// One step of training on a global batch; returns its loss before the update: over the heads, the sum of each
    /// one's weighted mean over the samples whose label is there, times the head's weight. `rate_factor` is what the
    /// schedule multiplies every learning rate by.
    ///
    /// # Panics
    /// Where the batch is empty or its columns are not the model's.
    pub fn train_step(&mut self, batch: &Samples, rate_factor: f64) -> f64 {
        let (loss, last_round) = self.forward_backward(batch);
        self.steps += 1;
        let step = Step { number: self.steps, rate_factor };
        let Self { parts, tables, dense_optimizer, gradients, tiles, .. } = self;
        let (vector_gradients, logit_gradients) = (&self.vector_gradients, &self.logit_gradients);
        // Neither needs the other: side by side, one barrier waits for both.
        rayon::join(
            || {
                sum_weight_gradients(parts, tiles, last_round, gradients);
                dense_optimizer.update(&mut parts.parameters, gradients, step);
                parts.pack_weights();
            },
            || tables.update(batch, vector_gradients, logit_gradients, step),
        );
        loss
    }

    /// The loss of a batch, and how the last round of tiles enters the weight gradients, which is left to the caller;
    /// those of all rounds before are summed. The other gradients are in the buffers.
    fn forward_backward(&mut self, batch: &Samples) -> (f64, Sum) {
        assert!(batch.len > 0, "a batch has at least one sample");
        let heads: Vec<_> = self.spec().heads.iter().map(|head| HeadLabels::new(head, batch)).collect();
        let elements = self.spec().vector_elements();
        self.vector_gradients.resize(batch.len * elements, 0.0);
        self.logit_gradients.resize(batch.len * heads.len(), 0.0);
        let tile_samples = tile_samples(batch.len);
        let mut loss_sums = vec![0.0; heads.len()];
        let mut sum = Sum::Begin;
        for round in rounds(batch.len) {
            if round.start > 0 {
                sum_weight_gradients(&self.parts, &self.tiles, sum, &mut self.gradients);
                sum = Sum::Continue;
            }
            self.lay_tiles(&round, tile_samples);
            let Self { parts, tables, tiles, vector_gradients, logit_gradients, .. } = self;
            let (parts, tables) = (&*parts, &*tables);
            let of_tiles = vector_gradients[round.start * elements..].par_chunks_mut(tile_samples * elements);
            let logit_gradients = &mut logit_gradients[round.start * heads.len()..];
            let of_tiles = of_tiles.zip(logit_gradients.par_chunks_mut(tile_samples * heads.len()));
            tiles.par_iter_mut().zip(of_tiles).for_each(|(tile, (vector_gradients, logit_gradients))| {
                parts.forward(tables, batch, tile);
                parts.backward(&heads, tile, vector_gradients, logit_gradients);
            });
            for tile in tiles {
                loss_sums.iter_mut().zip(&tile.loss_sums).for_each(|(sum, of_tile)| *sum += of_tile);
            }
        }
        (heads.iter().zip(loss_sums).map(|(head, sum)| head.loss(sum)).sum(), sum)
    }

    /// Appends the logits of each sample, one a head.
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) {
        for round in rounds(batch.len) {
            self.lay_tiles(&round, tile_samples(batch.len));
            let Self { parts, tables, tiles, .. } = self;
            tiles.par_iter_mut().for_each(|tile| parts.forward(tables, batch, tile));
            for tile in tiles {
                out.extend_from_slice(tile.logits());
            }
        }
    }

    /// Makes tiles of a round's samples.
    fn lay_tiles(&mut self, round: &Range<usize>, tile_samples: usize) {
        self.tiles.resize_with(round.len().div_ceil(tile_samples), Tile::default);
        for (start, tile) in round.clone().step_by(tile_samples).zip(&mut self.tiles) {
            self.parts.resize(tile, start..round.end.min(start + tile_samples));
        }
    }
}

/// Samples of a tile. Their number is a compromise: large tiles use each weight that they load for more samples, many
/// tiles keep more threads busy.
fn tile_samples(batch_samples: usize) -> usize {
    (batch_samples / 8).next_power_of_two().clamp(64, 256)
}

/// Cuts a batch into rounds of tiles, so that what a step takes of memory does not grow with the batch. Where they are
/// cut depends on the threads, and no result does: tiles are the same, and are summed in the same order.
fn rounds(batch_samples: usize) -> impl Iterator<Item = Range<usize>> {
    let samples = tile_samples(batch_samples) * ROUND_TILES_PER_THREAD * rayon::current_num_threads();
    (0..batch_samples).step_by(samples).map(move |start| start..batch_samples.min(start + samples))
}

fn sum_weight_gradients(parts: &Parts, tiles: &[Tile], sum: Sum, gradients: &mut [f32]) {
    // Layers lie one behind the other in the gradients: each takes its piece off the front.
    let mut rest = gradients;
    let mut tasks = Vec::new();
    let of_tiles: Vec<_> = tiles.iter().map(|tile| parts.mlps(tile)).collect();
    for (number, &(mlp, _)) in of_tiles[0].iter().enumerate() {
        for (layer_number, layer) in mlp.spec.layers.iter().enumerate() {
            let (gradients, behind) = rest.split_at_mut(layer.end() - layer.offset);
            rest = behind;
            let shares = of_tiles.iter().zip(tiles).map(|(of_tile, tile)| {
                let (mlp, of_mlp) = of_tile[number];
                of_mlp.layer(layer_number, mlp, tile.samples.len())
            });
            let shares: Vec<_> = shares.collect();
            tasks.push((layer, shares, gradients));
        }
    }
    tasks.into_par_iter().for_each(|(layer, shares, gradients)| {
        weight_gradients(layer, &shares, sum, gradients);
    });
}
