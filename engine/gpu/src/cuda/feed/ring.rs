//! The ring of blocks in a GPU's memory.

use std::sync::Arc;

use rankine_cuda::kernels::{IdColumn, Index, Ring};
use rankine_cuda::{Buffer, CopyGate, Device, Lane, Pointer};
use rankine_reader::dataset::DatasetPart;

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
    /// Allocates a ring on one of a process's GPUs, all of which can read its blocks.
    pub(super) fn new(
        (device, peers): (&Arc<Device>, &[Arc<Device>]),
        part: &DatasetPart,
        slots: usize,
        block_bytes: usize,
    ) -> Result<Self> {
        let columns: Vec<_> = ragged_columns(&part.schema).map(|(_, column)| column).collect();
        let begins_column = part.block_samples as usize + 1;
        let begins_slot = columns.len() * begins_column;
        let blocks = Buffer::for_peers(device, peers, slots * block_bytes)?;
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

    /// Returns where a block's slot begins.
    pub(super) fn at(&self, number: u32) -> Pointer<u8> {
        self.blocks.pointer().element(self.slot(number) * self.addresses.block_bytes as usize)
    }

    /// Returns the slot of a block.
    pub(super) fn slot(&self, number: u32) -> usize {
        number as usize % self.slots
    }

    /// Enqueues copying a block of this many samples to its slot, and indexing its ragged columns.
    ///
    /// # Safety
    /// The block must stay where it is until the lane has done this, and nothing may read the slot's former contents.
    pub(super) unsafe fn put(
        &self,
        lane: &Lane,
        number: u32,
        from: BlockBytes<'_>,
        samples: u32,
    ) -> Result<()> {
        let (slot, to) = (self.slot(number), self.at(number));
        assert!(from.len() <= self.blocks.len() / self.slots, "a slot has room for the largest block");
        let ragged = self.columns.len() as u32;
        let index =
            Index { ring: self.addresses, columns: self.columns.pointer(), slot: slot as u32, samples };
        assert!(
            self.begins.len() >= self.slots * ragged as usize * (samples as usize + 1),
            "the part has these columns"
        );
        // SAFETY: the slot has room for the block's bytes and for the offsets of as many samples; the caller vouches
        // for the block, and that nothing reads the slot.
        unsafe {
            from.copy(lane, to)?;
            if ragged > 0 {
                lane.fill(self.wrong.pointer().element(slot), 0, 1)?;
                lane.launch(&index, index.grid(ragged))?;
            }
        }
        Ok(())
    }
}

/// The bytes of a block.
#[derive(Debug, Clone, Copy)]
pub(super) enum BlockBytes<'a> {
    /// In page-locked memory. Copies pass a gate, if there is one.
    OnHost(&'a [u8], Option<&'a CopyGate>),
    /// In the memory of a GPU, from an address on.
    OnGpu(Pointer<u8>, usize),
}

impl BlockBytes<'_> {
    fn len(self) -> usize {
        match self {
            Self::OnHost(bytes, _) => bytes.len(),
            Self::OnGpu(_, len) => len,
        }
    }

    /// Enqueues copying them.
    ///
    /// # Safety
    /// They must stay where they are until the lane has done this, and there must be room for them at `to`, which
    /// nothing may read meanwhile.
    pub(super) unsafe fn copy(self, lane: &Lane, to: Pointer<u8>) -> Result<()> {
        // SAFETY: the caller vouches for both.
        unsafe {
            match self {
                Self::OnHost(bytes, gate) => CopyGate::upload(gate, lane, bytes, to)?,
                Self::OnGpu(from, len) => lane.copy(from, to, len)?,
            }
        }
        Ok(())
    }
}
