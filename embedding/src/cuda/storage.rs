//! Rows in a GPU's memory: as they begin, and as they are read.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use rankine_cuda::kernels::{BeginState, Initialize, Shard};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use super::blocks;
use super::error::{Error, Result};
use super::layout::Layout;
use super::parts::Part;
use crate::dtype::Dtype;

/// Bytes of rows that come to the host at a time.
const READ_BYTES: usize = 64 << 20;

/// Sets a rank's rows, of these parts, to what [`crate::cpu::Table::initialized`] gives for the seed and the tables' numbers, those of
/// tables from number `drawn` on to zeros, and all to the state that goes with them; then waits for the lane.
///
/// # Safety
/// There must be as many words behind `rows` as the layout says of the rank whose parts they are; see [`Lane::launch`].
pub(super) unsafe fn initialize(
    device: &Arc<Device>,
    lane: &Lane,
    (layout, kernel_shards): (&Layout, &[Shard]),
    rows: Pointer<f32>,
    seed: u64,
    drawn: usize,
) -> Result<()> {
    let (shards, bounds) = (Buffer::of(device, kernel_shards)?, Buffer::of(device, &layout.bounds(drawn))?);
    let weights = Initialize {
        rows,
        shards: shards.pointer(),
        bounds: bounds.pointer(),
        seed,
        shards_count: shards.len() as u32,
        rows_count: layout.row_numbers() as u32,
    };
    // SAFETY: the caller vouches for the rows; the buffers live until the lane has been waited for.
    unsafe { lane.launch(&weights, (blocks(device), 1)) }?;
    for shard in kernel_shards {
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

/// Tells the weights of some of the rows that a rank has of a part, by their numbers there, once the lane has done
/// all that was enqueued on it.
pub(super) fn try_for_each_row<E>(
    layout: &Layout,
    (rank, part): (usize, usize),
    table: &Buffer<f32>,
    lane: &Lane,
    rows: Range<u64>,
    mut tell: impl FnMut(&[f32]) -> Result<(), E>,
    failed: impl Fn(Error) -> E,
) -> Result<(), E> {
    let (words, begin) = (layout.row_words(part), layout.words(rank)[part] as usize);
    let Part { table: number, columns, .. } = &layout.parts[part];
    let mut weights_of_row = vec![0.0; columns.len()];
    let at_once = (READ_BYTES / (4 * words)).max(1);
    for first in rows.clone().step_by(at_once) {
        let count = (at_once as u64).min(rows.end - first) as usize;
        let weights = table.read_part(lane, begin + first as usize * words, count * words);
        let weights = weights.map_err(|error| failed(error.into()))?;
        for row in weights.chunks_exact(words) {
            read_weights(layout.tables[*number].dtype, row, &mut weights_of_row);
            tell(&weights_of_row)?;
        }
    }
    Ok(())
}

/// Reads weights as they lie in a row.
fn read_weights(dtype: Dtype, row: &[f32], weights: &mut [f32]) {
    let halves: &[u16] = bytemuck::cast_slice(row);
    let halves = weights.iter_mut().zip(halves);
    match dtype {
        Dtype::Fp32 => weights.copy_from_slice(&row[..weights.len()]),
        Dtype::Bf16 => halves.for_each(|(weight, &bits)| *weight = bf16::from_bits(bits).to_f32()),
        Dtype::Fp16 => halves.for_each(|(weight, &bits)| *weight = f16::from_bits(bits).to_f32()),
    }
}
