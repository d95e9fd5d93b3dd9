//! The threads of a feed: one takes blocks from the reader, and one a GPU copies some of them to whoever needs them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use rankine_cuda::{Lane, Moment};
use rankine_embedding::Topology;
use rankine_reader::stream::{Packed, PackedBatch, PackedBlock, PackedStream};

use super::super::error::Result;
use super::freed::{Freed, FreedBlocks};
use super::ring::BlockRing;

/// Copies that are enqueued at once on a GPU; each holds a slab.
pub(super) const COPIES: usize = 8;
/// What waits to be copied, at most.
pub(super) const SENT: usize = 8;

/// Which GPUs get a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spread {
    /// Those whose samples lie in it, each over PCIe, once a batch names it.
    Needed,
    /// All, one of them over PCIe, and the others from that one; they take turns.
    All,
}

/// What comes from the reader, to each of the GPUs.
pub(super) enum Sent {
    Block(u32, Arc<PackedBlock>),
    Batch(u64, Arc<PackedBatch>),
}

/// A batch for which a GPU has copied what is its to copy, once the moment has passed.
pub(super) struct Copied {
    pub(super) number: u64,
    pub(super) batch: Arc<PackedBatch>,
    pub(super) moment: Arc<Moment>,
}

/// Hands out to the GPUs what comes from the reader, until nobody takes it; an error goes to the first one.
pub(super) fn hand_out(stream: PackedStream, spread: Spread, copiers: &[SyncSender<Result<Sent>>]) {
    let (mut blocks, mut batches) = (0_u32, 0);
    for packed in stream {
        let handed = match packed {
            // Where nobody takes it, nobody misses it.
            Err(error) => {
                let _ = copiers[0].send(Err(error.into()));
                return;
            }
            Ok(Packed::Block(block)) => {
                let (number, block) = (blocks, Arc::new(block));
                blocks = blocks.wrapping_add(1);
                let takers = match spread {
                    Spread::Needed => copiers,
                    Spread::All => std::slice::from_ref(&copiers[number as usize % copiers.len()]),
                };
                takers.iter().try_for_each(|copier| copier.send(Ok(Sent::Block(number, Arc::clone(&block)))))
            }
            Ok(Packed::Batch(batch)) => {
                let (number, batch) = (batches, Arc::new(batch));
                batches += 1;
                copiers.iter().try_for_each(|copier| copier.send(Ok(Sent::Batch(number, Arc::clone(&batch)))))
            }
        };
        if handed.is_err() {
            return;
        }
    }
}

/// What the thread has that copies to a GPU.
pub(super) struct Copier {
    /// Among all ranks, of other processes too.
    pub(super) rank: usize,
    pub(super) topology: Topology,
    pub(super) spread: Spread,
    /// Of this GPU.
    pub(super) ring: Arc<BlockRing>,
    /// Of those to which it passes on what it gets.
    pub(super) others: Vec<Arc<BlockRing>>,
    pub(super) lane: Lane,
    pub(super) news: Receiver<Freed>,
}

/// Nobody takes batches any more.
struct Stopped;

/// Blocks on their way.
struct OnTheWay<'a> {
    copies: Copies<'a>,
    freed: FreedBlocks,
    waiting: Waiting,
}

/// Blocks that batches to come may name, in the order of their numbers.
#[derive(Default)]
struct Waiting {
    first: u32,
    /// None where a batch has named it.
    blocks: VecDeque<Option<Arc<PackedBlock>>>,
}

impl Waiting {
    /// Takes the block of a number, where it was not taken before.
    fn take(&mut self, number: u32) -> Option<Arc<PackedBlock>> {
        self.blocks.get_mut(number.wrapping_sub(self.first) as usize)?.take()
    }

    /// Lets go of those that no batch names any more.
    fn keep_from(&mut self, number: u32) {
        while self.first != number && self.blocks.pop_front().is_some() {
            self.first = self.first.wrapping_add(1);
        }
    }
}

impl Copier {
    pub(super) fn run(self, sent: &Receiver<Result<Sent>>, out: &SyncSender<Result<Copied>>) {
        if let Err(error) = self.feed(sent, out) {
            // Where nobody takes it, nobody misses it.
            let _ = out.send(Err(error));
        }
    }

    fn feed(&self, sent: &Receiver<Result<Sent>>, out: &SyncSender<Result<Copied>>) -> Result<()> {
        self.lane.device().bind()?;
        let mut on_the_way = OnTheWay {
            copies: Copies { lane: &self.lane, under_way: VecDeque::new() },
            freed: FreedBlocks::of_gpus(1 + self.others.len()),
            waiting: Waiting::default(),
        };
        let waits = self.spread == Spread::Needed;
        for sent in sent {
            let done = match sent? {
                Sent::Block(_, block) if waits => {
                    on_the_way.waiting.blocks.push_back(Some(block));
                    Ok(())
                }
                Sent::Block(number, block) => self.copy(&mut on_the_way, number, block)?,
                Sent::Batch(number, batch) => {
                    if waits && self.copy_needed(&mut on_the_way, &batch)?.is_err() {
                        return Ok(());
                    }
                    let moment = Arc::new(Moment::new(self.lane.device())?);
                    self.lane.record(&moment)?;
                    out.send(Ok(Copied { number, batch, moment })).map_err(|_| Stopped)
                }
            };
            if done.is_err() {
                return Ok(());
            }
            on_the_way.copies.let_go()?;
        }
        Ok(())
    }

    /// Copies a block to its slot, once that is free on all GPUs that get it.
    fn copy(
        &self,
        OnTheWay { copies, freed, .. }: &mut OnTheWay<'_>,
        number: u32,
        block: Arc<PackedBlock>,
    ) -> Result<Result<(), Stopped>> {
        while number.wrapping_sub(freed.before()) as usize >= self.ring.slots {
            match self.news.recv() {
                Ok(Freed::Batch { gpu, number, keep_from }) => freed.add(gpu, number, keep_from),
                Ok(Freed::Stop) | Err(_) => return Ok(Err(Stopped)),
            }
        }
        let moment = copies.room()?;
        // SAFETY: what lay in the slot is in no batch any more that is not done on any of the GPUs; the block is kept
        // until the moment has passed, and the rings for as long as this value, which waits for the lane.
        let put = unsafe { self.ring.put(&self.lane, number, &block) };
        let samples = block.block().map_or(0, |block| block.samples());
        let bytes = block.bytes().len();
        copies.under_way.push_back((block, moment));
        put?;
        for other in &self.others {
            // SAFETY: as above.
            unsafe { self.ring.pass_on(&self.lane, number, (bytes, samples), other) }?;
        }
        let (_, moment) = &copies.under_way[copies.under_way.len() - 1];
        self.lane.record(moment)?;
        Ok(Ok(()))
    }

    /// Copies what a batch's samples for this GPU still need.
    fn copy_needed(&self, on_the_way: &mut OnTheWay<'_>, batch: &PackedBatch) -> Result<Result<(), Stopped>> {
        for number in batch.blocks(self.topology.share(batch.len(), self.rank)) {
            if let Some(block) = on_the_way.waiting.take(number)
                && self.copy(on_the_way, number, block)?.is_err()
            {
                return Ok(Err(Stopped));
            }
        }
        on_the_way.waiting.keep_from(batch.keep_from);
        Ok(Ok(()))
    }
}

/// Blocks that are being copied. Dropped, it waits until all are.
struct Copies<'a> {
    lane: &'a Lane,
    under_way: VecDeque<(Arc<PackedBlock>, Moment)>,
}

impl Copies<'_> {
    /// A moment for the next copy, once there are few enough.
    fn room(&mut self) -> Result<Moment> {
        if self.under_way.len() < COPIES {
            return Ok(Moment::new(self.lane.device())?);
        }
        if let Some((_, moment)) = self.under_way.front() {
            moment.synchronize()?;
        }
        let (_, moment) = self.under_way.pop_front().expect("there are as many as allowed");
        Ok(moment)
    }

    /// Lets go of what has been copied.
    fn let_go(&mut self) -> Result<()> {
        while let Some((_, moment)) = self.under_way.front()
            && moment.has_passed()?
        {
            self.under_way.pop_front();
        }
        Ok(())
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        // Where this fails the context is lost, and with it whatever would read the blocks.
        let _ = self.lane.synchronize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_wait_until_a_batch_names_them() {
        let mut waiting = Waiting { first: u32::MAX, blocks: VecDeque::new() };
        waiting.blocks.extend([None, None, None]);
        assert!(waiting.take(0).is_none() && waiting.take(7).is_none());
        waiting.keep_from(1);
        assert_eq!((waiting.first, waiting.blocks.len()), (1, 1));
    }
}
