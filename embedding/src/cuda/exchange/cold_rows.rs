//! Rows of a rank that are in host memory.

use rankine_cuda::Lane;

use super::NodeTables;
use super::batch::BatchExchange;
use crate::cuda::error::Result;
use crate::cuda::tier::DeviceTier;
use crate::tier::TierTraffic;

impl NodeTables {
    /// Enqueues finding where the rows are stored that ranks look up here, once their lists are merged.
    ///
    /// # Safety
    /// As for [`BatchExchange::merge`].
    pub(super) unsafe fn locate(
        &self,
        exchange: &BatchExchange,
        lane: &Lane,
        batch_slot: usize,
    ) -> Result<()> {
        let Some(tier) = &self.tier else { return Ok(()) };
        let (entries, blocks) = exchange.entries_of(lane, batch_slot);
        // SAFETY: the caller vouches for it.
        unsafe {
            tier.locate(lane, exchange.routes[batch_slot].distinct(), batch_slot)?;
            tier.replace_entries(lane, entries, batch_slot, blocks)
        }
    }

    /// Enqueues copying the cold rows that a batch shares with the one before.
    ///
    /// # Safety
    /// As for [`BatchExchange::send`].
    pub(super) unsafe fn forward(
        &self,
        exchange: &BatchExchange,
        lane: &Lane,
        batch_slot: usize,
    ) -> Result<()> {
        let Some(tier) = &self.tier else { return Ok(()) };
        let distinct = exchange.routes[batch_slot].distinct();
        // SAFETY: the caller vouches for it.
        unsafe { tier.forward(lane, distinct, batch_slot, self.rows.table.pointer()) }
    }

    /// Copies the rows of a slot's batch that are in host memory to the GPU, and makes the lane of steps wait for them;
    /// see [`crate::cuda::TieredTables::land`].
    ///
    /// # Errors
    /// If the batch has more of these rows than the GPU has room for, or the driver reports an error.
    pub fn land(&mut self, main: &Lane, batch_slot: usize) -> Result<()> {
        let storage = self.rows.table.pointer();
        self.tier.as_mut().map_or(Ok(()), |tier| tier.land(main, batch_slot, storage))
    }

    /// Notes that the step of a slot's batch was enqueued, which updates rows.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn learned(&mut self, main: &Lane, batch_slot: usize) -> Result<()> {
        self.tier.as_mut().map_or(Ok(()), |tier| tier.learned(main, batch_slot))
    }

    /// Waits until all rows that steps have changed are back in host memory; see
    /// [`crate::cuda::TieredTables::finish`].
    ///
    /// # Errors
    /// If work of the GPU failed.
    pub fn finish(&mut self, main: &Lane) -> Result<()> {
        let storage = self.rows.table.pointer();
        self.tier.as_mut().map_or(Ok(()), |tier| tier.finish(main, storage))
    }

    /// See [`crate::cuda::TieredTables::refreshes_before`].
    pub fn refreshes_before(&self, step: u64) -> bool {
        self.tier.as_ref().is_some_and(|tier| tier.refreshes_before(step))
    }

    /// See [`crate::cuda::TieredTables::refresh`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn refresh(&mut self, main: &Lane) -> Result<()> {
        let storage = self.rows.table.pointer();
        self.tier.as_mut().map_or(Ok(()), |tier| tier.refresh(main, storage))
    }

    /// What was copied between the GPU and host memory since the tables were created, if that has some of the rows.
    pub fn tier_traffic(&self) -> Option<TierTraffic> {
        self.tier.as_ref().map(DeviceTier::traffic)
    }
}
