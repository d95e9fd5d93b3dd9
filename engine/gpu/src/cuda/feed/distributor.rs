//! Which GPU of a process copies which blocks, and from where: arithmetic on numbers of blocks.
//!
//! Each block crosses from the host to one GPU, its *home*; others that need it copy it from there. If blocks stay on
//! the GPUs, a block's home keeps it beside its ring, and all GPUs copy it from there to their rings, epoch after
//! epoch.

use std::collections::VecDeque;
use std::sync::Arc;

use super::placed::{Announcement, PlacedBlock};
use crate::cuda::delivery::Delivery;

/// A copy of a block that a GPU makes.
#[derive(Debug)]
pub(super) enum BlockCopy<B> {
    /// From the host to the GPU's ring.
    FromHost { number: u32, block: B, announcement: Announcement },
    /// From its home to the GPU's ring. `index` is the block's number in the part.
    FromHome { number: u32, index: u32, home: Arc<PlacedBlock> },
    /// From the host to where the GPU keeps its blocks.
    Keep { index: u32, block: B, announcement: Announcement },
}

/// A block that later batches may name.
struct PendingBlock<B> {
    index: u32,
    /// Its bytes on the host, until it has a home.
    host: Option<B>,
    home: Option<Arc<PlacedBlock>>,
    /// The GPUs whose rings have it.
    has: Vec<bool>,
}

/// Decides on the copies of the GPUs of a process.
pub(super) struct Distributor<B> {
    delivery: Delivery,
    gpus: usize,
    /// The number of the first pending block. Numbers wrap around.
    first: u32,
    pending: VecDeque<PendingBlock<B>>,
    /// Blocks that stay, by their number in the part.
    kept: Vec<Option<Arc<PlacedBlock>>>,
    /// Per GPU, what it copies before the next batch.
    copies: Vec<Vec<BlockCopy<B>>>,
}

/// Returns the GPU that keeps a block, by its number in the part.
pub(super) fn keeper(index: u32, gpus: usize) -> usize {
    index as usize % gpus
}

impl<B> Distributor<B> {
    /// Creates it for a number of GPUs and a part with this many blocks.
    pub(super) fn new(delivery: Delivery, gpus: usize, blocks: usize) -> Self {
        let kept = if delivery == Delivery::Kept { vec![None; blocks] } else { Vec::new() };
        Self { delivery, gpus, first: 0, pending: VecDeque::new(), kept, copies: no_copies(gpus) }
    }

    pub(super) fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Takes the next block, which has just been read.
    pub(super) fn block(&mut self, index: u32, block: B) {
        if self.delivery != Delivery::Kept {
            return self.push(index, Some(block), None);
        }
        // It is not read again, so its keeper takes it even if no batch here needs it.
        let (home, announcement) = PlacedBlock::announced();
        self.copies[keeper(index, self.gpus)].push(BlockCopy::Keep { index, block, announcement });
        self.kept[index as usize] = Some(home);
        self.again(index);
    }

    /// Takes the next block, which a GPU keeps.
    pub(super) fn again(&mut self, index: u32) {
        let home = self.kept[index as usize].clone();
        self.push(index, None, home);
    }

    fn push(&mut self, index: u32, host: Option<B>, home: Option<Arc<PlacedBlock>>) {
        self.pending.push_back(PendingBlock { index, host, home, has: vec![false; self.gpus] });
    }

    /// Returns, per GPU, the copies after which it has what it needs of a batch: `needed` has the numbers of the
    /// blocks that each one needs. No later batch names a block before `keep_from`.
    pub(super) fn batch(&mut self, needed: &[Vec<u32>], keep_from: u32) -> Vec<Vec<BlockCopy<B>>> {
        let mut copies = std::mem::replace(&mut self.copies, no_copies(self.gpus));
        for (gpu, needed) in needed.iter().enumerate() {
            for &number in needed {
                self.copy(number, gpu, &mut copies);
            }
        }
        while self.first != keep_from && self.pending.pop_front().is_some() {
            self.first = self.first.wrapping_add(1);
        }
        copies
    }

    fn copy(&mut self, number: u32, gpu: usize, copies: &mut [Vec<BlockCopy<B>>]) {
        let place = number.wrapping_sub(self.first) as usize;
        let Some(pending) = self.pending.get_mut(place).filter(|pending| !pending.has[gpu]) else { return };
        if let Some(block) = pending.host.take() {
            let home = match self.delivery {
                Delivery::Broadcast => number as usize % self.gpus,
                Delivery::Needed | Delivery::Kept => gpu,
            };
            let (placed, announcement) = PlacedBlock::announced();
            pending.home = Some(placed);
            pending.has[home] = true;
            copies[home].push(BlockCopy::FromHost { number, block, announcement });
        }
        if !std::mem::replace(&mut pending.has[gpu], true)
            && let Some(home) = &pending.home
        {
            copies[gpu].push(BlockCopy::FromHome { number, index: pending.index, home: Arc::clone(home) });
        }
    }
}

fn no_copies<B>(gpus: usize) -> Vec<Vec<BlockCopy<B>>> {
    (0..gpus).map(|_| Vec::new()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Describes copies: `h3` is block 3 from the host, `g3` from its home, `k3` is kept.
    fn describe(copies: &[Vec<BlockCopy<u32>>]) -> Vec<String> {
        let one = |copy: &BlockCopy<u32>| match copy {
            BlockCopy::FromHost { number, .. } => format!("h{number}"),
            BlockCopy::FromHome { number, .. } => format!("g{number}"),
            BlockCopy::Keep { index, .. } => format!("k{index}"),
        };
        copies.iter().map(|copies| copies.iter().map(one).collect::<Vec<_>>().join(" ")).collect()
    }

    fn batch(distributor: &mut Distributor<u32>, needed: [&[u32]; 2], keep_from: u32) -> Vec<String> {
        describe(&distributor.batch(&needed.map(<[u32]>::to_vec), keep_from))
    }

    #[test]
    fn a_block_crosses_from_the_host_once() {
        let mut distributor = Distributor::new(Delivery::Needed, 2, 4);
        (0..4).for_each(|index| distributor.block(index, index));
        assert_eq!(batch(&mut distributor, [&[0, 1], &[1, 2]], 0), ["h0 h1", "g1 h2"]);
        // Both need what the other one has; block 3 has no home yet.
        assert_eq!(batch(&mut distributor, [&[0, 1, 2], &[0, 2, 3]], 3), ["g2", "g0 h3"]);
        assert_eq!(distributor.pending.len(), 1);
        assert_eq!(batch(&mut distributor, [&[3], &[3]], 4), ["g3", ""]);
        // Of blocks before `keep_from` and after the last one it knows nothing.
        assert_eq!(batch(&mut distributor, [&[3], &[7]], 4), ["", ""]);
    }

    #[test]
    fn with_broadcasts_the_gpus_take_turns() {
        let mut distributor = Distributor::new(Delivery::Broadcast, 2, 4);
        distributor.first = u32::MAX;
        (0..4).for_each(|index| distributor.block(index, index));
        let all = [u32::MAX, 0, 1, 2];
        let copies = batch(&mut distributor, [&all, &all], 3);
        assert_eq!(copies, ["g4294967295 h0 g1 h2", "h4294967295 h1 g0 g2"]);
        assert_eq!((distributor.first, distributor.pending.len()), (3, 0));
    }

    #[test]
    fn kept_blocks_are_copied_from_their_keepers_in_every_epoch() {
        let mut distributor = Distributor::new(Delivery::Kept, 2, 3);
        for (index, block) in [(2, 2), (0, 0), (1, 1)] {
            distributor.block(index, block);
        }
        // The third block is kept although no batch needs it.
        assert_eq!(batch(&mut distributor, [&[0], &[0, 1]], 3), ["k2 k0 g0", "k1 g0 g1"]);
        [1, 2, 0].into_iter().for_each(|index| distributor.again(index));
        assert_eq!(batch(&mut distributor, [&[3], &[5]], 6), ["g3", "g5"]);
    }
}
