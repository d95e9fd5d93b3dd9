//! Which blocks no batch needs any more, so that others may take their slots.

use std::collections::BTreeMap;

/// A message to a thread that copies.
#[derive(Debug)]
pub(super) enum CopierMessage {
    /// The GPU has finished a batch: no later batch uses blocks before `keep_from`.
    Batch { number: u64, keep_from: u32 },
    /// The feed has ended.
    Stop,
}

/// The blocks that no batch of a GPU needs any more.
#[derive(Debug, Default)]
pub(super) struct ReleasedBlocks {
    /// All blocks before this number.
    before: u32,
    /// The first batch that is still in use.
    batch: u64,
    /// Later batches that were released before it.
    later: BTreeMap<u64, u32>,
}

impl ReleasedBlocks {
    pub(super) fn add(&mut self, number: u64, keep_from: u32) {
        self.later.insert(number, keep_from);
        while let Some(keep_from) = self.later.remove(&self.batch) {
            self.before = keep_from;
            self.batch += 1;
        }
    }

    /// Returns the first block that may still be needed. Numbers of blocks wrap around.
    pub(super) fn before(&self) -> u32 {
        self.before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_free_once_all_batches_before_are_done() {
        let mut released = ReleasedBlocks::default();
        released.add(1, 7);
        assert_eq!(released.before(), 0);
        released.add(0, 4);
        assert_eq!(released.before(), 7);
        assert!(released.later.is_empty());
        released.add(3, 9);
        assert_eq!(released.before(), 7);
        released.add(2, 7);
        assert_eq!(released.before(), 9);
    }
}
