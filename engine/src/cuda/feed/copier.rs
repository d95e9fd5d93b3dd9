//! The threads of a feed: one takes blocks from the reader, and one a GPU copies those that it needs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender};

use rankine_cuda::{Device, Lane, Locked, Moment};
use rankine_embedding::Topology;
use rankine_reader::io::{AlignedMemory, SlabMemory};
use rankine_reader::stream::{BlockRow, Packed, PackedBatch, PackedBlock, PackedStream};

use super::super::error::Result;
use super::ring::BlockRing;
use super::{FedPart, Freed, Source};

/// Copies that are enqueued at once on a GPU; each holds a slab.
pub(super) const COPIES: usize = 8;
/// What waits to be copied, at most.
pub(super) const SENT: usize = 8;

/// What comes from the reader, to each of the GPUs.
pub(super) enum Sent {
    Block(u32, Arc<PackedBlock>),
    Batch(u64, Arc<PackedBatch>),
}

/// Hands out to all GPUs what comes from the reader, until nobody takes it; an error goes to the first one.
pub(super) fn hand_out(stream: PackedStream, copiers: &[SyncSender<Result<Sent>>]) {
    let (mut blocks, mut batches) = (0_u32, 0);
    for packed in stream {
        let sent: Vec<_> = match packed {
            Err(error) => {
                // Where nobody takes it, nobody misses it.
                let _ = copiers[0].send(Err(error.into()));
                return;
            }
            Ok(Packed::Block(block)) => {
                let (number, block) = (blocks, Arc::new(block));
                blocks = blocks.wrapping_add(1);
                copiers.iter().map(|_| Sent::Block(number, Arc::clone(&block))).collect()
            }
            Ok(Packed::Batch(batch)) => {
                let (number, batch) = (batches, Arc::new(batch));
                batches += 1;
                copiers.iter().map(|_| Sent::Batch(number, Arc::clone(&batch))).collect()
            }
        };
        for (copier, sent) in copiers.iter().zip(sent) {
            if copier.send(Ok(sent)).is_err() {
                return;
            }
        }
    }
}

/// What the thread has that copies to a GPU.
pub(super) struct Copier {
    pub(super) rank: usize,
    pub(super) topology: Topology,
    /// Whether blocks are copied only once a batch names them: where each GPU needs but some of them.
    pub(super) waits: bool,
    pub(super) ring: Arc<BlockRing>,
    pub(super) source: Arc<Source>,
    pub(super) lane: Lane,
    pub(super) freed: Sender<Freed>,
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
    pub(super) fn run(self, sent: &Receiver<Result<Sent>>, out: &SyncSender<Result<FedPart>>) {
        if let Err(error) = self.feed(sent, out) {
            // Where nobody takes it, nobody misses it.
            let _ = out.send(Err(error));
        }
    }

    fn feed(&self, sent: &Receiver<Result<Sent>>, out: &SyncSender<Result<FedPart>>) -> Result<()> {
        self.lane.device().bind()?;
        let mut on_the_way = OnTheWay {
            copies: Copies { lane: &self.lane, under_way: VecDeque::new() },
            freed: FreedBlocks::default(),
            waiting: Waiting::default(),
        };
        for sent in sent {
            let done = match sent? {
                Sent::Block(_, block) if self.waits => {
                    on_the_way.waiting.blocks.push_back(Some(block));
                    Ok(())
                }
                Sent::Block(number, block) => self.copy(&mut on_the_way, number, block)?,
                Sent::Batch(number, batch) => self.batch(&mut on_the_way, (number, batch), out)?,
            };
            if done.is_err() {
                return Ok(());
            }
            on_the_way.copies.let_go()?;
        }
        Ok(())
    }

    /// Copies a block to its slot, once that is free.
    fn copy(
        &self,
        OnTheWay { copies, freed, .. }: &mut OnTheWay<'_>,
        number: u32,
        block: Arc<PackedBlock>,
    ) -> Result<Result<(), Stopped>> {
        while number.wrapping_sub(freed.before) as usize >= self.ring.slots {
            if self.hear(freed).is_err() {
                return Ok(Err(Stopped));
            }
        }
        let moment = copies.room()?;
        // SAFETY: what lay in the slot is in no batch any more that is not done; the block is kept until the moment has
        // passed.
        let put = unsafe { self.ring.put(&self.lane, number, &block) };
        copies.under_way.push_back((block, moment));
        put?;
        let (_, moment) = &copies.under_way[copies.under_way.len() - 1];
        self.lane.record(moment)?;
        Ok(Ok(()))
    }

    /// Copies what a batch's samples for this GPU still need, and hands them out.
    fn batch(
        &self,
        on_the_way: &mut OnTheWay<'_>,
        (number, batch): (u64, Arc<PackedBatch>),
        out: &SyncSender<Result<FedPart>>,
    ) -> Result<Result<(), Stopped>> {
        let rows = self.topology.share(batch.rows.len(), self.rank);
        if self.waits {
            for &BlockRow { block: number, .. } in &batch.rows[rows.clone()] {
                if let Some(block) = on_the_way.waiting.take(number)
                    && self.copy(on_the_way, number, block)?.is_err()
                {
                    return Ok(Err(Stopped));
                }
            }
            on_the_way.waiting.keep_from(batch.keep_from);
        }
        let copied = Moment::new(self.lane.device())?;
        self.lane.record(&copied)?;
        let part = FedPart {
            batch,
            rows,
            number,
            copied,
            ring: Arc::clone(&self.ring),
            source: Arc::clone(&self.source),
            freed: self.freed.clone(),
        };
        Ok(out.send(Ok(part)).map_err(|_| Stopped))
    }

    /// Waits for a batch to be let go of.
    fn hear(&self, freed: &mut FreedBlocks) -> Result<(), Stopped> {
        match self.news.recv() {
            Ok(Freed::Batch(number, keep_from)) => {
                freed.add(number, keep_from);
                Ok(())
            }
            Ok(Freed::Stop) | Err(_) => Err(Stopped),
        }
    }
}

/// Blocks that no batch needs any more.
#[derive(Default)]
struct FreedBlocks {
    /// All with a number below it.
    before: u32,
    /// The first batch that somebody still has.
    batch: u64,
    /// Later ones that were let go of before it.
    later: BTreeMap<u64, u32>,
}

impl FreedBlocks {
    fn add(&mut self, number: u64, keep_from: u32) {
        self.later.insert(number, keep_from);
        while let Some(keep_from) = self.later.remove(&self.batch) {
            self.before = keep_from;
            self.batch += 1;
        }
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

/// Memory for slabs that a GPU copies from by itself.
#[derive(Debug)]
pub(super) struct LockedMemory {
    /// Unlocked before the memory goes.
    _locked: Locked,
    memory: AlignedMemory,
}

impl LockedMemory {
    pub(super) fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        let memory = AlignedMemory::new(bytes)?;
        // SAFETY: the memory lives as long as the value, in which it comes behind what locks it.
        let locked = unsafe { Locked::new(device, memory.as_ptr(), memory.bytes()) }?;
        Ok(Self { _locked: locked, memory })
    }
}

/// Memory for slabs that stays locked for longer than they live: unlocking it may wait for GPUs that wait for each
/// other.
pub(super) struct KeptMemory(pub(super) Arc<LockedMemory>);

// SAFETY: all is the memory's own; a GPU reads it only while the slab is kept, see `Copies`.
unsafe impl SlabMemory for KeptMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.0.memory.as_ptr()
    }

    fn bytes(&self) -> usize {
        self.0.memory.bytes()
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

    #[test]
    fn blocks_are_free_once_all_batches_before_are_done() {
        let mut freed = FreedBlocks::default();
        freed.add(1, 7);
        assert_eq!(freed.before, 0);
        freed.add(0, 4);
        assert_eq!((freed.before, freed.later.len()), (7, 0));
        freed.add(2, 7);
        freed.add(3, 9);
        assert_eq!(freed.before, 9);
    }
}
