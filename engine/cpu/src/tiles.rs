//! The division of a batch into tiles, and scoring them on any number of threads.

use std::sync::{Mutex, PoisonError};

use rankine_reader::Samples;

use super::tables::LookUp;
use super::tile::{Parts, Tile};

/// The activations of the samples that threads are scoring, one tile per thread.
#[derive(Debug, Default)]
pub struct ScoringBuffers(Vec<Tile>);

impl ScoringBuffers {
    /// Returns one tile for each thread that scores, if there are this many samples.
    pub(super) fn tiles(&mut self, samples: usize, threads: usize) -> &mut [Tile] {
        let used = threads.min(samples.div_ceil(tile_samples(samples))).max(1);
        if self.0.len() < used {
            self.0.resize_with(used, Tile::default);
        }
        &mut self.0[..used]
    }
}

/// Returns what each thread that scores a batch calls with a tile of its own: it takes the next samples until none are
/// left, so their activations stay in its cache.
pub(super) fn scorer(
    parts: &Parts,
    tables: &impl LookUp,
    batch: &Samples,
    logits: &mut [f32],
) -> impl Fn(&mut Tile) + Sync {
    let tile_samples = tile_samples(batch.len);
    let starts = (0..batch.len).step_by(tile_samples);
    let tiles = Mutex::new(starts.zip(logits.chunks_mut(tile_samples * parts.spec.heads.len())));
    move |tile| {
        let next = || tiles.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((start, logits)) = next() {
            parts.resize(tile, start..batch.len.min(start + tile_samples));
            parts.forward(tables, batch, tile);
            logits.copy_from_slice(tile.logits());
        }
    }
}

/// Returns the samples per tile, a compromise: large tiles use each loaded weight for more samples, many tiles keep
/// more threads busy.
pub(super) fn tile_samples(batch_samples: usize) -> usize {
    (batch_samples / 8).next_power_of_two().clamp(64, 256)
}
