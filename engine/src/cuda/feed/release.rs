//! Which blocks no batch needs any more, so that others may take their slots.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// A message to a thread that copies.
#[derive(Debug)]
pub(super) enum CopierMessage {
    /// A GPU that the thread copies to has finished a batch: no later batch uses blocks before `keep_from`.
    Batch { gpu: usize, number: u64, keep_from: u32 },
    /// The feed has ended.
    Stop,
}

/// The way from a GPU's part of a batch to the threads that copy its blocks.
#[derive(Debug)]
pub(super) struct ReleaseSender {
    /// One per GPU of this process.
    pub(super) senders: Arc<[Sender<CopierMessage>]>,
    /// Those whose threads copy to the GPU.
    pub(super) copiers: Range<usize>,
    /// The number by which they know it.
    pub(super) gpu: usize,
}

impl ReleaseSender {
    /// Reports that the GPU has finished a batch: no later batch uses blocks before `keep_from`.
    pub(super) fn send(&self, number: u64, keep_from: u32) {
        for sender in &self.senders[self.copiers.clone()] {
            // If the thread has ended, nothing waits for this.
            let _ = sender.send(CopierMessage::Batch { gpu: self.gpu, number, keep_from });
        }
    }
}

/// The blocks that no batch needs any more, on any of some GPUs.
#[derive(Debug)]
pub(super) struct ReleasedBlocks(Vec<ReleasedOnGpu>);

#[derive(Debug, Clone, Default)]
struct ReleasedOnGpu {
    /// All blocks below this number.
    before: u32,
    /// The first batch that is still in use.
    batch: u64,
    /// Later batches that were released before it.
    later: BTreeMap<u64, u32>,
}

impl ReleasedBlocks {
    pub(super) fn of_gpus(count: usize) -> Self {
        Self(vec![ReleasedOnGpu::default(); count])
    }

    pub(super) fn add(&mut self, gpu: usize, number: u64, keep_from: u32) {
        let ReleasedOnGpu { before, batch, later } = &mut self.0[gpu];
        later.insert(number, keep_from);
        while let Some(keep_from) = later.remove(batch) {
            *before = keep_from;
            *batch += 1;
        }
    }

    /// Returns the first block that may still be needed.
    pub(super) fn before(&self) -> u32 {
        // The numbers of blocks wrap around; those of batches do not.
        self.0.iter().min_by_key(|gpu| gpu.batch).map_or(0, |gpu| gpu.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_free_once_all_batches_before_are_done_everywhere() {
        let mut released = ReleasedBlocks::of_gpus(2);
        for gpu in [1, 0] {
            released.add(gpu, 1, 7);
            assert_eq!(released.before(), 0);
        }
        released.add(0, 0, 4);
        assert_eq!(released.before(), 0);
        released.add(1, 0, 4);
        assert_eq!(released.before(), 7);
        assert!(released.0.iter().all(|gpu| gpu.later.is_empty()));
        released.add(1, 2, 7);
        released.add(1, 3, 9);
        assert_eq!(released.before(), 7);
        released.add(0, 3, 9);
        released.add(0, 2, 7);
        assert_eq!(released.before(), 9);
    }
}
