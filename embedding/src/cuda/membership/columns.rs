//! The columns of a batch whose ids are given rows.

use std::sync::Arc;

use rankine_cuda::kernels::{self, MemberColumn, MembershipFind};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use crate::cuda::error::{Error, Result};
use crate::cuda::layout::{Hotness, Layout};

/// The columns of batches in a layout whose ids are given rows.
#[derive(Debug)]
pub struct DynamicColumns {
    columns: Buffer<MemberColumn>,
    /// The most ids of a column.
    ids: usize,
    look_ups: usize,
    samples: usize,
}

impl DynamicColumns {
    /// Creates the columns of a layout.
    ///
    /// # Errors
    /// If there is not enough memory, or a batch has too many ids.
    pub fn new(device: &Arc<Device>, layout: &Layout) -> Result<Self> {
        let mut columns = Vec::new();
        for (table, (number, _)) in layout.dynamic_tables().enumerate() {
            let of_table = layout.id_columns(number);
            let positions = of_table.iter().map(|&column| layout.columns[column].max()).sum::<usize>();
            let samples = layout.ranks() * layout.samples;
            let (have, most) = ((samples * positions) as u64, u64::from(u32::MAX));
            if have > most {
                return Err(Error::TooLarge { what: "ids of a batch for a dynamic table", have, most });
            }
            let mut position = 0;
            for column in of_table {
                let hotness = layout.columns[column];
                columns.push(MemberColumn {
                    table: table as u32,
                    long_ids: layout.long_ids_begin(column) as u32,
                    ids: layout.ids_begin(column) as u32,
                    offsets: layout.offsets_begin(column) as u32,
                    hotness: hotness.max() as u32,
                    ragged: u32::from(matches!(hotness, Hotness::Ragged { .. })),
                    position,
                    positions: positions as u32,
                });
                position += hotness.max() as u32;
            }
        }
        let ids = columns.iter().map(|column| column.hotness as usize * layout.samples);
        Ok(Self {
            ids: ids.clone().max().unwrap_or(0),
            look_ups: ids.sum(),
            samples: layout.samples,
            columns: Buffer::of(device, &columns)?,
        })
    }

    /// Returns the most ids of a rank's batch.
    pub(super) fn look_ups(&self) -> usize {
        self.look_ups
    }

    /// Returns the samples that a batch has room for.
    pub(super) fn room(&self) -> u32 {
        self.samples as u32
    }

    pub(super) fn pointer(&self) -> Pointer<MemberColumn> {
        self.columns.pointer()
    }

    /// Returns the number of columns.
    pub(super) fn count(&self) -> u32 {
        self.columns.len() as u32
    }

    /// Enqueues finding the rows of a batch's ids.
    ///
    /// # Safety
    /// The task must have these columns, and tables for them; see [`Lane::launch`].
    pub(super) unsafe fn find(&self, lane: &Lane, task: kernels::Membership) -> Result<()> {
        let find = MembershipFind(task);
        // SAFETY: the caller vouches for it.
        Ok(unsafe { lane.launch(&find, find.grid(self.ids as u32)) }?)
    }
}
