//! The dense parts of a model and the buffers of a step: one replica per rank, and one for a model on a single rank.

use std::mem;
use std::ops::Range;

use rankine_model::ModelSpec;
use rankine_reader::Samples;
use rayon::prelude::*;

use super::loss::HeadLabels;
use super::mlp::{Accumulation, weight_gradients};
use super::positions::{PositionSlots, SequenceKeys, take_front};
use super::tables::LookUp;
use super::tile::{Parts, Tile, TileGradients};
use super::tiles::{ScoringBuffers, scorer, tile_samples};
use super::verdict;

/// Tiles per thread that are in memory at once: enough that few threads wait for the last tile of a round.
pub(super) const ROUND_TILES_PER_THREAD: usize = 8;

/// The dense parts of a model, and the buffers of a step.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) parts: Parts,
    sequences: Vec<SequenceKeys>,
    // Buffers of a step; their contents are undefined between steps.
    gradients: Vec<f32>,
    vector_gradients: Vec<f32>,
    logit_gradients: Vec<f32>,
    tiles: Vec<Tile>,
    /// Its own, so that neither steps nor evaluations allocate what the other has freed.
    scoring: ScoringBuffers,
}

/// A step after forward and backward pass.
pub(super) struct BackwardResult<'a> {
    /// The weighted sum of losses, one per head.
    pub(super) loss_sums: Vec<f64>,
    /// `[sample, vector elements]`, then the gradients with respect to keys: see [`PositionSlots`].
    pub(super) vector_gradients: &'a [f32],
    /// Whether all of these are finite and within bounds.
    pub(super) vectors_finite: bool,
    /// `[sample, heads]`
    pub(super) logit_gradients: &'a [f32],
    /// The dense parameters, ready for their update.
    pub(super) dense: DenseStep<'a>,
}

/// The dense parameters in a step after forward and backward pass.
pub(super) struct DenseStep<'a> {
    parts: &'a mut Parts,
    tiles: &'a [Tile],
    /// Whether the tiles start the sums or continue them.
    sum: Accumulation,
    gradients: &'a mut [f32],
}

impl Replica {
    /// Creates a model with given parameters. The gradient buffer has `extra` more elements at its end, so that other
    /// values can be all-reduced with the gradients.
    ///
    /// # Panics
    /// If the parameters do not match the spec.
    pub(super) fn new(spec: ModelSpec, parameters: Vec<f32>, extra: usize) -> Self {
        Self {
            gradients: vec![0.0; parameters.len() + extra],
            vector_gradients: Vec::new(),
            logit_gradients: Vec::new(),
            tiles: Vec::new(),
            scoring: ScoringBuffers::default(),
            sequences: SequenceKeys::all(&spec),
            parts: Parts::new(spec, parameters),
        }
    }

    /// Replaces the dense parameters.
    ///
    /// # Panics
    /// If their number differs.
    pub(super) fn set_parameters(&mut self, parameters: &[f32]) {
        self.parts.parameters.copy_from_slice(parameters);
        self.parts.pack_weights();
    }

    /// Runs forward and backward pass of a batch, which may be empty. The last round of tiles is not yet part of the
    /// weight gradients: see [`DenseStep::sum`].
    pub(super) fn forward_backward(
        &mut self,
        batch: &Samples,
        heads: &[HeadLabels<'_>],
        tables: &impl LookUp,
    ) -> BackwardResult<'_> {
        let elements = self.parts.spec.vector_elements();
        let slots = PositionSlots::new(&self.sequences, batch, batch.len * elements);
        let mut all_gradients = mem::take(&mut self.vector_gradients);
        all_gradients.resize(slots.end(), 0.0);
        let (vector_gradients, key_gradients) = all_gradients.split_at_mut(batch.len * elements);
        let mut key_gradients = slots.split(key_gradients);
        self.logit_gradients.resize(batch.len * heads.len(), 0.0);
        if batch.len == 0 {
            // Otherwise tiles of an earlier batch would be summed.
            self.tiles.clear();
        }
        let tile_samples = tile_samples(batch.len);
        let mut loss_sums = vec![0.0; heads.len()];
        let (mut sum, mut vectors_finite) = (Accumulation::Start, true);
        for round in rounds(batch.len) {
            if round.start > 0 {
                sum_weight_gradients(&self.parts, &self.tiles, sum, &mut self.gradients);
                sum = Accumulation::Continue;
            }
            self.prepare_tiles(&round, tile_samples);
            let Self { parts, sequences, tiles, logit_gradients, .. } = self;
            let parts = &*parts;
            let vectors = vector_gradients[round.start * elements..].chunks_mut(tile_samples * elements);
            let logits = logit_gradients[round.start * heads.len()..].chunks_mut(tile_samples * heads.len());
            let of_tiles = tiles.iter().zip(vectors.zip(logits)).map(|(tile, (vectors, logits))| {
                let counts = sequences.iter().map(|sequence| sequence.key_elements(batch, &tile.samples));
                let keys = key_gradients.iter_mut().zip(counts);
                let keys = keys.map(|(rest, count)| take_front(rest, count)).collect();
                TileGradients { vectors, keys, logits }
            });
            let of_tiles: Vec<_> = of_tiles.collect();
            tiles.par_iter_mut().zip(of_tiles).for_each(|(tile, mut of_tile)| {
                parts.forward(tables, batch, tile);
                parts.backward(heads, tile, &mut of_tile);
                let gradients = (&*of_tile.vectors, &*of_tile.logits);
                tile.vectors_finite &=
                    verdict::weighted_within_bounds(&parts.spec, batch, tile.samples.clone(), gradients);
            });
            for tile in tiles {
                loss_sums.iter_mut().zip(&tile.loss_sums).for_each(|(sum, of_tile)| *sum += of_tile);
                vectors_finite &= tile.vectors_finite;
            }
        }
        for (sequence, positions) in self.parts.embedded_positions() {
            let offsets = &batch.categorical[positions.column].offsets[..=batch.len];
            let own = &mut self.gradients[positions.vectors.weight()];
            positions.sum_gradients(offsets, &all_gradients[slots.keys(sequence)], own);
        }
        self.vector_gradients = all_gradients;
        let Self { parts, gradients, vector_gradients, logit_gradients, tiles, .. } = self;
        let dense = DenseStep { parts, tiles, sum, gradients };
        BackwardResult { loss_sums, vector_gradients, vectors_finite, logit_gradients, dense }
    }

    /// Appends the logits of each sample, one per head.
    pub(super) fn logits(&mut self, batch: &Samples, tables: &impl LookUp, out: &mut Vec<f32>) {
        let first = out.len();
        out.resize(first + batch.len * self.parts.spec.heads.len(), 0.0);
        let score = scorer(&self.parts, tables, batch, &mut out[first..]);
        let tiles = self.scoring.tiles(batch.len, rayon::current_num_threads());
        tiles.par_iter_mut().with_max_len(1).for_each(score);
    }

    /// Divides a round's samples into tiles.
    fn prepare_tiles(&mut self, round: &Range<usize>, tile_samples: usize) {
        self.tiles.resize_with(round.len().div_ceil(tile_samples), Tile::default);
        for (start, tile) in round.clone().step_by(tile_samples).zip(&mut self.tiles) {
            self.parts.resize(tile, start..round.end.min(start + tile_samples));
        }
    }
}

impl DenseStep<'_> {
    /// Completes the sums over the samples; returns the gradients with the extra elements after them.
    pub(super) fn sum(&mut self) -> &mut [f32] {
        if self.tiles.is_empty() {
            self.gradients.fill(0.0);
        } else {
            sum_weight_gradients(self.parts, self.tiles, self.sum, self.gradients);
        }
        self.gradients
    }

    /// Returns the model's spec.
    pub(super) fn spec(&self) -> &ModelSpec {
        &self.parts.spec
    }

    /// Returns the parameters, and their gradients with the extra elements after them; valid after [`DenseStep::sum`].
    pub(super) fn parameters_and_gradients(&mut self) -> (&mut [f32], &mut [f32]) {
        (&mut self.parts.parameters, self.gradients)
    }

    /// Ends the step, after the parameters have been updated.
    pub(super) fn finish(self) {
        self.parts.pack_weights();
    }
}

/// Divides a batch into rounds of tiles, so that a step's memory does not grow with the batch. The rounds depend on
/// the number of threads, but no result does: tiles are the same, and are summed in the same order.
fn rounds(batch_samples: usize) -> impl Iterator<Item = Range<usize>> {
    let samples = tile_samples(batch_samples) * ROUND_TILES_PER_THREAD * rayon::current_num_threads();
    (0..batch_samples).step_by(samples).map(move |start| start..batch_samples.min(start + samples))
}

fn sum_weight_gradients(parts: &Parts, tiles: &[Tile], sum: Accumulation, gradients: &mut [f32]) {
    // The gradients store layer after layer: each layer takes its piece off the front. Pieces without an MLP, of the
    // vectors of positions, are complete.
    let (mut rest, mut first) = (gradients, 0);
    let mut tasks = Vec::new();
    let of_tiles: Vec<_> = tiles.iter().map(|tile| parts.mlps(tile)).collect();
    for (number, &(mlp, _)) in of_tiles[0].iter().enumerate() {
        for (layer_number, layer) in mlp.spec.layers.iter().enumerate() {
            let (_, from) = rest.split_at_mut(layer.offset - first);
            let (gradients, after) = from.split_at_mut(layer.end() - layer.offset);
            (rest, first) = (after, layer.end());
            let shares: Vec<_> =
                of_tiles.iter().map(|of_tile| of_tile[number].1.layer(layer_number)).collect();
            tasks.push((layer, shares, gradients));
        }
    }
    tasks.into_par_iter().for_each(|(layer, shares, gradients)| {
        weight_gradients(layer, &shares, sum, gradients);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_have_64_to_256_samples_and_rounds_cover_a_batch() {
        let sizes = [1, 519, 520, 1031, 1032, 2048, 1 << 20].map(tile_samples);
        assert_eq!(sizes, [64, 64, 128, 128, 256, 256, 256]);
        for samples in [0, 1, 1000, 100_001] {
            let covered: Vec<_> = rounds(samples).flatten().collect();
            assert!(covered.into_iter().eq(0..samples));
            assert!(
                rounds(samples).all(|round| !round.is_empty() && round.start % tile_samples(samples) == 0)
            );
        }
    }
}
