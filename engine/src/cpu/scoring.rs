//! Scores with a model that no longer changes, on any number of threads at once.

use rankine_reader::Samples;

use super::model::{CpuModel, Distribution, OneRank};
use super::replica::tile_samples;
use super::tables::ModelTables;
use super::tile::{Parts, Tile};
use crate::model::ModelSpec;

/// The weights of a model.
#[derive(Debug)]
pub(crate) struct ScoringModel {
    parts: Parts,
    tables: ModelTables,
}

/// The activations of the samples that a thread is scoring.
#[derive(Debug, Default)]
pub(crate) struct ScoringBuffers(Tile);

impl ScoringModel {
    /// # Panics
    /// If the model is spread over ranks.
    pub(crate) fn new(model: CpuModel) -> Self {
        let Distribution::OneRank(one) = model.distribution else { panic!("a saved model has one rank") };
        let OneRank { replica, tables, .. } = *one;
        Self { parts: replica.parts, tables }
    }

    pub(crate) fn spec(&self) -> &ModelSpec {
        &self.parts.spec
    }

    /// Computes the logits of each sample, `[sample, heads]`, with the bits of [`CpuModel::logits`].
    pub(crate) fn logits(&self, batch: &Samples, buffers: &mut ScoringBuffers, logits: &mut [f32]) {
        let (tile, heads) = (&mut buffers.0, self.spec().heads.len());
        let tile_samples = tile_samples(batch.len);
        let tiles = (0..batch.len).step_by(tile_samples);
        for (start, logits) in tiles.zip(logits.chunks_mut(tile_samples * heads)) {
            self.parts.resize(tile, start..batch.len.min(start + tile_samples));
            self.parts.forward(&self.tables, batch, tile);
            logits.copy_from_slice(tile.logits());
        }
    }
}
