//! Blocks that stay in the memory of GPUs for the whole training.

use std::sync::Arc;

use rankine_base::Error as DataError;
use rankine_cuda::{Buffer, Device, Pointer};
use rankine_reader::dataset::DatasetPart;

use super::distributor::keeper;
use crate::cuda::error::Result;

/// Blocks begin at multiples of this many bytes, so that copies are fast.
const ALIGN: usize = 256;
/// Memory of a GPU that is left for evaluations and the driver.
const LEFT_BYTES: u64 = 1 << 30;

/// Where each block of a part stays: each GPU of a process keeps its turn of them.
#[derive(Debug)]
pub(super) struct KeptLayout {
    /// Per block, the first byte on its keeper.
    begins: Vec<usize>,
    /// Per GPU, the bytes that it keeps.
    bytes: Vec<usize>,
}

/// The kept blocks of a GPU.
#[derive(Debug)]
pub(super) struct KeptBlocks {
    layout: Arc<KeptLayout>,
    blocks: Buffer<u8>,
}

impl KeptLayout {
    pub(super) fn new(part: &DatasetPart, gpus: usize) -> Self {
        let mut bytes = vec![0; gpus];
        let begins = (0..).zip(&part.blocks).map(|(index, block)| {
            let bytes = &mut bytes[keeper(index, gpus)];
            let begin = *bytes;
            *bytes += (block.bytes as usize).next_multiple_of(ALIGN);
            begin
        });
        let begins = begins.collect();
        Self { begins, bytes }
    }

    /// Checks that GPUs have room, with some left for evaluations.
    ///
    /// # Errors
    /// [`DataError::Setting`] if a GPU does not.
    pub(super) fn check(&self, devices: &[Arc<Device>]) -> Result<()> {
        for (device, &needed) in devices.iter().zip(&self.bytes) {
            device.bind()?;
            let free = device.free_bytes()?.saturating_sub(LEFT_BYTES);
            if needed as u64 > free {
                let what = format!(
                    "the training part takes {:.2} GB of each GPU, and GPU {} has {:.2} GB beside the model: use more \
                     GPUs, or remove data.cache",
                    needed as f64 / 1e9,
                    device.ordinal(),
                    free as f64 / 1e9
                );
                return Err(DataError::setting("data.cache", what).into());
            }
        }
        Ok(())
    }
}

impl KeptBlocks {
    /// Allocates memory on one of the GPUs, which must be current on this thread; all of them can read it.
    pub(super) fn new(layout: &Arc<KeptLayout>, devices: &[Arc<Device>], gpu: usize) -> Result<Self> {
        let blocks = Buffer::for_peers(&devices[gpu], devices, layout.bytes[gpu])?;
        Ok(Self { layout: Arc::clone(layout), blocks })
    }

    /// Returns where a block stays.
    pub(super) fn at(&self, index: u32) -> Pointer<u8> {
        self.blocks.pointer().element(self.layout.begins[index as usize])
    }
}
