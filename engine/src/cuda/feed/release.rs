//! Which blocks no batch needs any more, so that others may take their slots.

use std::collections::BTreeMap;

/// A message to a thread that copies.
#[derive(Debug)]
pub(super) enum CopierMessage {
    /// A GPU that the thread copies to has finished a batch: no later batch uses blocks before `keep_from`.
    Batch { gpu: usize, number: u64, keep_from: u32 },
    /// The feed has ended.
    Stop,
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
        self.0.iter().min_by_key(|freed| freed.batch).map_or(0, |freed| freed.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_free_once_all_batches_before_are_done_everywhere() {
        let mut freed = ReleasedBlocks::of_gpus(2);
        for gpu in [1, 0] {
            freed.add(gpu, 1, 7);
            assert_eq!(freed.before(), 0);
        }
        freed.add(0, 0, 4);
        assert_eq!(freed.before(), 0);
        freed.add(1, 0, 4);
        assert_eq!(freed.before(), 7);
        assert!(freed.0.iter().all(|freed| freed.later.is_empty()));
        freed.add(1, 2, 7);
        freed.add(1, 3, 9);
        assert_eq!(freed.before(), 7);
        freed.add(0, 3, 9);
        freed.add(0, 2, 7);
        assert_eq!(freed.before(), 9);
    }
}
