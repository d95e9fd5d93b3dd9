//! The ring of blocks in a GPU's memory.

use std::sync::Arc;

use rankine_cuda::kernels::{IdColumn, Index, Ring};
use rankine_cuda::{Buffer, Device, Lane};
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::PackedBlock;

use super::columns::ragged_columns;
use crate::cuda::error::Result;

/// A ring of blocks in a GPU's memory.
#[derive(Debug)]
pub(in crate::cuda) struct BlockRing {
    pub(super) slots: usize,
    blocks: Buffer<u8>,
    begins: Buffer<u32>,
    wrong: Buffer<u32>,
    /// The ragged columns.
    columns: Buffer<IdColumn>,
    addresses: Ring,
}

impl BlockRing {
    /// Allocates a ring on a GPU.
    pub(super) fn new(
        device: &Arc<Device>,
        part: &DatasetPart,
        slots: usize,
        block_bytes: usize,
    ) -> Result<Self> {
        let columns: Vec<_> = ragged_columns(&part.schema).map(|(_, column)| column).collect();
        let begins_column = part.block_samples as usize + 1;
        let begins_slot = columns.len() * begins_column;
        let blocks = Buffer::uninitialized(device, slots * block_bytes)?;
        let begins = Buffer::uninitialized(device, slots * begins_slot)?;
        let wrong = Buffer::uninitialized(device, slots)?;
        let addresses = Ring {
            blocks: blocks.pointer(),
            begins: begins.pointer(),
            wrong: wrong.pointer(),
            block_bytes: block_bytes as u64,
            begins_slot: begins_slot as u32,
            begins_column: begins_column as u32,
        };
        Ok(Self { slots, blocks, begins, wrong, columns: Buffer::of(device, &columns)?, addresses })
    }

    pub(in crate::cuda) fn addresses(&self) -> Ring {
        self.addresses
    }

    /// Enqueues copying a block to its slot, and indexing its ragged columns.
    ///
    /// # Safety
    /// The block must live until the lane has done this, and nothing may read the slot's former contents.
    pub(super) unsafe fn put(&self, lane: &Lane, number: u32, block: &PackedBlock) -> Result<()> {
        let slot = number as usize % self.slots;
        let (bytes, samples) = (block.bytes(), block.block().map_or(0, |block| block.samples()));
        assert!(bytes.len() <= self.blocks.len() / self.slots, "a slot has room for the largest block");
        let to = self.blocks.pointer().element(slot * self.addresses.block_bytes as usize);
        let ragged = self.columns.len() as u32;
        let index = Index {
            ring: self.addresses,
            columns: self.columns.pointer(),
            slot: slot as u32,
            samples: samples as u32,
        };
        assert!(
            self.begins.len() >= self.slots * ragged as usize * (samples + 1),
            "the part has these columns"
        );
        // SAFETY: the slot has room for the block's bytes and for the offsets of as many samples; the caller vouches
        // for the block, and that nothing reads the slot.
        unsafe {
            lane.upload_bytes(bytes, to)?;
            if ragged > 0 {
                lane.fill(self.wrong.pointer().element(slot), 0, 1)?;
                lane.launch(&index, index.grid(ragged))?;
            }
        }
        Ok(())
    }
}
