//! Which blocks no batch needs any more, so that others may take their slots.

use std::collections::BTreeMap;

/// What tells a thread that copies how to go on.
#[derive(Debug)]
pub(super) enum Freed {
    /// A batch is done with on a GPU, of those that the thread copies to: blocks before `keep_from` are in no later
    /// one.
    Batch { gpu: usize, number: u64, keep_from: u32 },
    /// Nobody takes batches any more.
    Stop,
}

/// Blocks that no batch needs any more, on any of some GPUs.
#[derive(Debug)]
pub(super) struct FreedBlocks(Vec<FreedOnGpu>);

#[derive(Debug, Clone, Default)]
struct FreedOnGpu {
    /// All with a number below it.
    before: u32,
    /// The first batch that somebody still has.
    batch: u64,
    /// Later ones that were let go of before it.
    later: BTreeMap<u64, u32>,
}

impl FreedBlocks {
    pub(super) fn of_gpus(count: usize) -> Self {
        Self(vec![FreedOnGpu::default(); count])
    }

    pub(super) fn add(&mut self, gpu: usize, number: u64, keep_from: u32) {
        let FreedOnGpu { before, batch, later } = &mut self.0[gpu];
        later.insert(number, keep_from);
        while let Some(keep_from) = later.remove(batch) {
            *before = keep_from;
            *batch += 1;
        }
    }

    /// The first block that may still be needed.
    pub(super) fn before(&self) -> u32 {
        // Numbers of blocks begin anew behind the last one, and those of batches do not.
        self.0.iter().min_by_key(|freed| freed.batch).map_or(0, |freed| freed.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_free_once_all_batches_before_are_done_everywhere() {
        let mut freed = FreedBlocks::of_gpus(2);
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
