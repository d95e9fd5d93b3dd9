//! The memory in which a batch's ids get rows, and the kernels that do it.

use std::sync::Arc;

use rankine_cuda::kernels::{
    Entry, Membership, MembershipAdmit, MembershipClear, MembershipList, MembershipReserve,
    MembershipResolve, MembershipTotal,
};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use super::DynamicColumns;
use crate::cuda::POISON;
use crate::cuda::blocks;
use crate::cuda::error::Result;

/// Entries of a batch's ids that have no row yet.
#[derive(Debug)]
pub(super) struct Work {
    /// See [`Membership::entries`] and the fields after it.
    entries: Buffer<Entry>,
    rows: Buffer<u32>,
    created: Buffer<u32>,
    by_shard: Buffer<u64>,
    absent: Buffer<u32>,
    shard_entries: Buffer<u32>,
    ranges: Buffer<[u32; 2]>,
    active: Buffer<u32>,
    totals: Buffer<u32>,
    refused: Buffer<u64>,
}

impl Work {
    /// Allocates memory for batches of at most `look_ups` ids of tables with `shards` shards in all.
    pub(super) fn new(device: &Arc<Device>, look_ups: usize, shards: usize, tables: usize) -> Result<Self> {
        let entries = (2 * look_ups).next_power_of_two();
        Ok(Self {
            entries: Buffer::of(device, &vec![Entry::NONE; entries])?,
            rows: Buffer::filled(device, entries, POISON)?,
            created: Buffer::filled(device, look_ups, POISON)?,
            by_shard: Buffer::filled(device, look_ups, POISON)?,
            absent: Buffer::filled(device, look_ups, POISON)?,
            shard_entries: Buffer::filled(device, shards, 0)?,
            ranges: Buffer::filled(device, shards, POISON)?,
            active: Buffer::filled(device, shards, POISON)?,
            totals: Buffer::filled(device, MembershipTotal::COUNT, 0)?,
            refused: Buffer::filled(device, tables, 0xff)?,
        })
    }

    /// Returns these buffers in the kernels' form, without tables and batch.
    pub(super) fn buffers(&self) -> Membership {
        Membership {
            tables: Pointer::NULL,
            columns: Pointer::NULL,
            long_ids: Pointer::NULL,
            ids: Pointer::NULL,
            offsets: Pointer::NULL,
            samples: Pointer::NULL,
            entries: self.entries.pointer(),
            rows: self.rows.pointer(),
            created: self.created.pointer(),
            by_shard: self.by_shard.pointer(),
            absent: self.absent.pointer(),
            shard_entries: self.shard_entries.pointer(),
            ranges: self.ranges.pointer(),
            active: self.active.pointer(),
            totals: self.totals.pointer(),
            new_rows: Pointer::NULL,
            new_count: Pointer::NULL,
            refused: self.refused.pointer(),
            full: Pointer::NULL,
            step: 0,
            mask: self.entries.len() as u32 - 1,
            tables_count: 0,
            room: 0,
            admits: 0,
            ranks: 1,
            rank: 0,
            long_ids_stride: 0,
            offsets_stride: 0,
            columns_count: 0,
            reserved: 0,
        }
    }

    /// Enqueues giving rows to the ids of a batch.
    ///
    /// # Safety
    /// The task must have these buffers, the columns, tables for them and a slot's rows; see [`Lane::launch`].
    pub(super) unsafe fn admit(&self, lane: &Lane, task: Membership, columns: &DynamicColumns) -> Result<()> {
        let grid = (blocks(lane.device()), 1);
        // SAFETY: the caller vouches for it; the buffers are this value's.
        unsafe {
            lane.launch(&MembershipClear(task), grid)?;
            lane.fill(self.totals.pointer(), 0, self.totals.len())?;
            lane.fill(task.new_count, 0, 1)?;
            lane.fill(self.refused.pointer().cast(), u32::MAX, 2 * self.refused.len())?;
            columns.find(lane, task)?;
            lane.launch(&MembershipReserve(task), grid)?;
            lane.launch(&MembershipList(task), grid)?;
            lane.launch(&MembershipAdmit(task), grid)?;
            lane.launch(&MembershipResolve(task), grid)?;
        }
        Ok(())
    }
}
