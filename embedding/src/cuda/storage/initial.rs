//! Initial rows in a GPU's memory.

use std::sync::Arc;

use rankine_cuda::kernels::{BeginState, Initialize, Shard};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use crate::cuda::blocks;
use crate::cuda::error::Result;

/// The initial rows of a rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InitialRows<'a> {
    pub(crate) shards: &'a [Shard],
    /// Per shard, the largest magnitude of its initial weights.
    pub(crate) bounds: &'a [f32],
    /// Number of all rows.
    pub(crate) rows: usize,
    /// Their size in words of four bytes. Padding is zero, so that rows with equal weights and state are equal.
    pub(crate) words: usize,
}

/// Initializes a rank's rows with the weights that [`crate::cpu::Table::initialized`] gives for the seed and the
/// tables' numbers (zeros if their bound is 0) and the matching state; then waits for the lane.
///
/// # Safety
/// `rows` must point to as many words as the shards need; see [`Lane::launch`].
pub(crate) unsafe fn initialize(
    device: &Arc<Device>,
    lane: &Lane,
    begin: InitialRows<'_>,
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
    // SAFETY: the caller vouches for the rows, and that they have this many words.
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
            // SAFETY: the rows are stored there, with as many words each.
            unsafe { lane.launch(&begin, (blocks(device), 1)) }?;
        }
    }
    Ok(lane.synchronize()?)
}
