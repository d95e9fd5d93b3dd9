//! Scores with a model that no longer changes, on any number of threads at once.

use std::sync::{Mutex, PoisonError};

use rankine_model::ModelSpec;
use rankine_reader::Samples;
use rayon::ThreadPool;

use super::model::{CpuModel, Distribution, OneRank};
use super::replica::tile_samples;
use super::tables::ModelTables;
use super::tile::{Parts, Tile};

/// The weights of a model.
#[derive(Debug)]
pub struct ScoringModel {
    parts: Parts,
    tables: ModelTables,
}

/// The activations of the samples that threads are scoring, one tile per thread.
#[derive(Debug, Default)]
pub struct ScoringBuffers(Vec<Tile>);

impl ScoringModel {
    /// # Panics
    /// If the model is spread over ranks.
    pub fn new(model: CpuModel) -> Self {
        let Distribution::OneRank(one) = model.distribution else { panic!("a saved model has one rank") };
        let OneRank { replica, tables, .. } = *one;
        Self { parts: replica.parts, tables }
    }

    /// Returns the description of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.parts.spec
    }

    /// Computes the logits of each sample, `[sample, heads]`, with the bits of [`CpuModel::logits`], on this thread and
    /// on those of `helpers`, if there are any.
    pub fn logits(
        &self,
        batch: &Samples,
        helpers: Option<&ThreadPool>,
        buffers: &mut ScoringBuffers,
        logits: &mut [f32],
    ) {
        let (tile_samples, heads) = (tile_samples(batch.len), self.spec().heads.len());
        let threads = 1 + helpers.map_or(0, ThreadPool::current_num_threads);
        let used = threads.min(batch.len.div_ceil(tile_samples)).max(1);
        if buffers.0.len() < used {
            buffers.0.resize_with(used, Tile::default);
        }
        let starts = (0..batch.len).step_by(tile_samples);
        // Each thread takes the next tile when it is done with one.
        let tiles = Mutex::new(starts.zip(logits.chunks_mut(tile_samples * heads)));
        let score = |tile: &mut Tile| {
            let next = || tiles.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some((start, logits)) = next() {
                self.parts.resize(tile, start..batch.len.min(start + tile_samples));
                self.parts.forward(&self.tables, batch, tile);
                logits.copy_from_slice(tile.logits());
            }
        };
        let (own, others) = buffers.0[..used].split_first_mut().expect("at least one thread scores");
        match helpers {
            Some(helpers) if !others.is_empty() => helpers.in_place_scope(|scope| {
                others.iter_mut().for_each(|tile| scope.spawn(|_| score(tile)));
                score(own);
            }),
            _ => score(own),
        }
    }
}
