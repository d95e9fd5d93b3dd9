//! Rows in a GPU's memory as they begin.

use std::sync::Arc;

use rankine_cuda::kernels::{BeginState, Initialize, Shard};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use super::blocks;
use super::error::Result;

/// Rows as they begin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begin<'a> {
    pub(super) shards: &'a [Shard],
    /// Of each shard, how far from 0 its first weights lie.
    pub(super) bounds: &'a [f32],
    /// Rows that are numbered.
    pub(super) rows: usize,
    /// Words of four bytes that they take. What fills rows up is zeros, so that rows of equal weights and state are
    /// equal.
    pub(super) words: usize,
}

/// Sets a rank's rows to what [`crate::cpu::Table::initialized`] gives for the seed and the tables' numbers, or to
/// zeros where their bound is 0, and all to the state that goes with them; then waits for the lane.
///
/// # Safety
/// There must be as many words behind `rows` as the shards say; see [`Lane::launch`].
pub(super) unsafe fn initialize(
    device: &Arc<Device>,
    lane: &Lane,
    begin: Begin<'_>,
    rows: Pointer<f32>,
    seed: u64,
) -> Result<()> {
    let (shards, bounds) = (Buffer::of(device, begin.shards)?, Buffer::of(device, begin.bounds)?);
    let weights = Initialize {
        rows,
        shards: shards.pointer(),
        bounds: bounds.pointer(),
        seed,
        shards_count: shards.len() as u32,
        rows_count: begin.rows as u32,
    };
    // SAFETY: the caller vouches for the rows, and that they take so many words.
    unsafe { lane.fill(rows.cast(), 0, begin.words) }?;
    // SAFETY: the caller vouches for the rows; the buffers live until the lane has been waited for.
    unsafe { lane.launch(&weights, (blocks(device), 1)) }?;
    for shard in begin.shards {
        let begin = BeginState {
            rows: rows.element(shard.words as usize),
            rows_count: shard.rows.into(),
            rule: shard.rule,
            words: shard.row_words,
            weights: shard.first,
            dim: shard.second - shard.first,
            dtype: shard.dtype,
        };
        if begin.words > begin.weights {
            // SAFETY: the rows lie there, with as many words each.
            unsafe { lane.launch(&begin, (blocks(device), 1)) }?;
        }
    }
    Ok(lane.synchronize()?)
}
