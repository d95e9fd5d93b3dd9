//! A model in host memory: one training step, and scores.

use rankine_embedding::Step;
use rankine_embedding::cpu::Table;
use rankine_embedding::random::UniformField;
use rankine_reader::Samples;
use rayon::prelude::*;

use super::dense::DenseOptimizer;
use super::loss::HeadLabels;
use super::mlp::{WgradTile, weight_gradients};
use super::tables::ModelTables;
use super::tile::{Parts, Tile};
use crate::model::{ModelSpec, TrainingRules};

/// Streams of random numbers from here on belong to dense layers, those before to tables.
const DENSE_STREAMS: u32 = 1 << 31;

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
        let loss = self.forward_backward(batch);
        self.steps += 1;
        let step = Step { number: self.steps, rate_factor };
        let Self { parts, tables, dense_optimizer, gradients, tiles, .. } = self;
        let (vector_gradients, logit_gradients) = (&self.vector_gradients, &self.logit_gradients);
        // Neither needs the other: side by side, one barrier waits for both.
        rayon::join(
            || {
                sum_weight_gradients(parts, batch, tiles, gradients);
                dense_optimizer.update(&mut parts.parameters, gradients, step);
                parts.pack_weights();
            },
            || tables.update(batch, vector_gradients, logit_gradients, step),
        );
        loss
    }

    /// The loss of a batch; what the gradients are summed from stays in tiles and buffers.
    fn forward_backward(&mut self, batch: &Samples) -> f64 {
        assert!(batch.len > 0, "a batch has at least one sample");
        self.lay_tiles(batch.len);
        let Self { parts, tables, tiles, vector_gradients, logit_gradients, .. } = self;
        let (spec, parts, tables) = (&parts.spec, &*parts, &*tables);
        let heads: Vec<_> = spec.heads.iter().map(|head| HeadLabels::new(head, batch)).collect();
        let (elements, tile_samples) = (spec.vector_elements(), tiles[0].samples.len());
        vector_gradients.resize(batch.len * elements, 0.0);
        logit_gradients.resize(batch.len * heads.len(), 0.0);
        let of_tiles = vector_gradients.par_chunks_mut(tile_samples * elements);
        let of_tiles = of_tiles.zip(logit_gradients.par_chunks_mut(tile_samples * heads.len()));
        tiles.par_iter_mut().zip(of_tiles).for_each(|(tile, (vector_gradients, logit_gradients))| {
            parts.forward(tables, batch, tile);
            parts.backward(&heads, tile, vector_gradients, logit_gradients);
        });
        let loss_of = |(number, head): (usize, &HeadLabels<'_>)| {
            head.loss(tiles.iter().map(|tile| tile.loss_sums[number]).sum())
        };
        heads.iter().enumerate().map(loss_of).sum()
    }

    /// Appends the logits of each sample, one a head.
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) {
        self.lay_tiles(batch.len);
        let Self { parts, tables, tiles, .. } = self;
        tiles.par_iter_mut().for_each(|tile| parts.forward(tables, batch, tile));
        for tile in tiles {
            out.extend_from_slice(tile.logits());
        }
    }

    /// Cuts a batch into tiles. Their size is a compromise: large tiles use each weight that they load for more
    /// samples, many tiles keep more threads busy.
    fn lay_tiles(&mut self, samples: usize) {
        let tile_samples = (samples / 8).next_power_of_two().clamp(64, 256);
        self.tiles.resize_with(samples.div_ceil(tile_samples), Tile::default);
        for (number, tile) in self.tiles.iter_mut().enumerate() {
            let start = number * tile_samples;
            self.parts.resize(tile, start..samples.min(start + tile_samples));
        }
    }
}

fn sum_weight_gradients(parts: &Parts, batch: &Samples, tiles: &[Tile], gradients: &mut [f32]) {
    // Layers lie one behind the other in the gradients: each takes its piece off the front.
    let mut rest = gradients;
    let mut tasks = Vec::new();
    let of_tiles: Vec<_> = tiles.iter().map(|tile| parts.mlps(batch, tile)).collect();
    for (mlp, &(of_mlp, ..)) in of_tiles[0].iter().enumerate() {
        for (number, layer) in of_mlp.spec.layers.iter().enumerate() {
            let (gradients, behind) = rest.split_at_mut(layer.end() - layer.offset);
            rest = behind;
            let share = |(of_tile, tile): (&Vec<_>, &Tile)| {
                let (_, own, input): (_, &super::mlp::MlpTile, _) = of_tile[mlp];
                WgradTile {
                    input: if number == 0 { input } else { &own.outputs[number - 1] },
                    output_gradients: &own.output_gradients[number],
                    samples: tile.samples.len(),
                }
            };
            let shares: Vec<_> = of_tiles.iter().zip(tiles).map(share).collect();
            tasks.push((layer, shares, gradients));
        }
    }
    tasks.into_par_iter().for_each(|(layer, shares, gradients)| weight_gradients(layer, &shares, gradients));
}
