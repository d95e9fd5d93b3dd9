//! The memory that a batch takes on its way through a model, known before anything is allocated. Each sum here is that
//! of the buffers that `tile.rs`, `mlp.rs`, `interaction` and `replica.rs` size.

use rankine_cpu::Operand;
use rankine_model::{MlpSpec, ModelSpec};

use super::attention::Attention;
use super::interaction::{InteractionPart, floats};
use super::replica::ROUND_TILES_PER_THREAD;
use super::tiles::tile_samples;

/// Returns the bytes of the buffers of a step on `samples` samples that `threads` threads of one rank compute, and of
/// an evaluation in batches of `scored` samples. Routes of rows to their updates, which grow with the ids, are not
/// included.
pub fn step_bytes(spec: &ModelSpec, samples: usize, scored: usize, threads: usize) -> u64 {
    let tiles = tiles_bytes(spec, samples, threads.saturating_mul(ROUND_TILES_PER_THREAD));
    let of_samples = floats(samples, spec.vector_elements() + spec.heads.len());
    let keys = spec.attention.iter().map(|attention| {
        floats(samples, spec.key_elements(attention)).saturating_mul(attention.length_max as u64)
    });
    let of_samples = keys.fold(of_samples, u64::saturating_add);
    tiles.saturating_add(of_samples).saturating_add(scoring_bytes(spec, scored, threads))
}

/// Returns the bytes of the buffers of an evaluation in batches of `samples` samples.
pub fn scoring_bytes(spec: &ModelSpec, samples: usize, threads: usize) -> u64 {
    tiles_bytes(spec, samples, threads)
}

/// Returns the bytes of the tiles of a batch of `samples` samples, of which `most` are in memory at a time.
fn tiles_bytes(spec: &ModelSpec, samples: usize, most: usize) -> u64 {
    let of_tile = tile_samples(samples).min(samples).max(1);
    (samples.div_ceil(of_tile).min(most) as u64).saturating_mul(tile_bytes(spec, of_tile))
}

/// Returns the bytes of a tile of samples.
fn tile_bytes(spec: &ModelSpec, samples: usize) -> u64 {
    let layout = spec.dense_layout();
    let mlps = [&layout.bottom, &layout.top, &layout.linear].into_iter().chain(&layout.cross);
    let vectors = floats(samples, spec.vector_elements());
    let first_order = if spec.wide { floats(samples, spec.heads.len()) } else { 0 };
    let parts = mlps.map(|mlp| mlp_bytes(mlp, samples)).chain([
        vectors,
        first_order,
        InteractionPart::bytes(spec, samples),
    ]);
    let attention = spec.attention.iter().zip(&layout.attention).map(|(attention, mlp)| {
        let rows = samples.saturating_mul(attention.length_max);
        Attention::bytes(spec, attention, samples).saturating_add(mlp_bytes(mlp, rows))
    });
    let parts = parts.chain(attention);
    parts.fold(0, u64::saturating_add)
}

fn mlp_bytes(mlp: &MlpSpec, samples: usize) -> u64 {
    let Some((last, hidden)) = mlp.layers.split_last() else { return 0 };
    let operand = |columns| Operand::bytes(samples, columns);
    let input = operand(mlp.layers[0].inputs);
    let hidden: u64 = hidden.iter().map(|layer| operand(layer.outputs)).sum();
    let gradients: u64 = mlp.layers.iter().map(|layer| operand(layer.outputs)).sum();
    input + hidden + gradients + 2 * floats(samples, last.outputs)
}
