//! A rank's rows in the memory of its GPU: their initial values, marks of updated rows, and copies to host memory.

use std::sync::Arc;

use rankine_cuda::kernels::{Mark, Shard, UpdateContext};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use crate::cuda::error::Result;
use crate::cuda::layout::Layout;
use crate::cuda::{UpdateInputs, blocks};

pub(crate) mod device_rows;
mod initial;
mod optimizer;
pub(crate) mod stage;

/// Rows in one buffer, shard by shard.
#[derive(Debug)]
pub(crate) struct RowStore {
    pub(crate) table: Buffer<f32>,
    pub(crate) shards: Buffer<Shard>,
    /// One bit per row that has been updated, if updates are tracked.
    pub(crate) touched: Option<Buffer<u32>>,
}

impl RowStore {
    /// Allocates `words` words for the rows of some shards.
    pub(crate) fn uninitialized(device: &Arc<Device>, words: usize, shards: &[Shard]) -> Result<Self> {
        let table = {
            let _tables = device.purpose("tables");
            Buffer::uninitialized(device, words)?
        };
        Ok(Self { table, shards: Buffer::of(device, shards)?, touched: None })
    }

    /// Writes the initial weights and state of all rows, and waits for the lane. `bounds` has the largest magnitude
    /// of each shard's initial weights, and the rows have numbers below `rows`.
    ///
    /// # Safety
    /// The store must have been allocated for these shards; see [`Lane::launch`].
    pub(crate) unsafe fn initialize(
        &self,
        lane: &Lane,
        shards: &[Shard],
        bounds: &[f32],
        rows: usize,
        seed: u64,
    ) -> Result<()> {
        let rows = initial::InitialRows { shards, bounds, rows, words: self.table.len() };
        // SAFETY: the caller vouches for it.
        unsafe { initial::initialize(self.table.device(), lane, rows, self.table.pointer(), seed) }
    }

    /// What the update of these rows depends on, in the kernels' form.
    pub(crate) fn update_context(&self, inputs: UpdateInputs, seed: u64) -> UpdateContext {
        let UpdateInputs { rates, step, scale, stop } = inputs;
        let (shards, storage) = (self.shards.pointer(), self.table.pointer());
        UpdateContext { shards, rates, scale, stop, step, seed, storage }
    }

    /// Tracks, from the work enqueued next on, which rows are updated.
    pub(crate) fn track_updates(&mut self, layout: &Layout) -> Result<()> {
        let device = self.table.device();
        let _tables = device.purpose("tables");
        self.touched = Some(Buffer::filled(device, layout.row_numbers().div_ceil(32), 0)?);
        Ok(())
    }

    /// Enqueues recording that `count` rows are updated unless `stop` is not 0, if updates are tracked.
    pub(crate) fn mark(
        &self,
        lane: &Lane,
        rows: Pointer<u32>,
        count: Pointer<u32>,
        stop: Pointer<u32>,
    ) -> Result<()> {
        let Some(bits) = &self.touched else { return Ok(()) };
        let mark = Mark { rows, count, stop, bits: bits.pointer() };
        // SAFETY: the rows are numbers of the layout, each of which has a bit; they live as long as the update's
        // buffers.
        unsafe { lane.launch(&mark, (blocks(lane.device()), 1)) }?;
        Ok(())
    }
}
