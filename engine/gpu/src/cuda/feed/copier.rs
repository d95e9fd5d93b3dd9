//! The threads of a feed: one takes blocks from the reader, and one per GPU copies those that the GPU needs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use crossbeam_channel::Sender;
use rankine_cuda::{Lane, Moment};
use rankine_reader::stream::{PackedBatch, PackedBlock, PackedItem, PackedStream};
use rankine_topology::{Rank, Topology};

use super::release::{CopierMessage, ReleasedBlocks};
use super::ring::BlockRing;
use crate::cuda::error::Result;

/// Copies enqueued on a GPU at the same time; each holds a slab.
pub(super) const COPIES_MAX: usize = 8;
/// The most requests that wait to be copied.
pub(super) const REQUESTS_MAX: usize = 8;

/// What a copier receives from the reader, in the reader's order.
#[derive(Clone)]
pub(super) enum CopyRequest {
    Block(Arc<PackedBlock>),
    Batch(Arc<PackedBatch>),
}

/// A batch whose blocks this GPU's copier has copied once the moment has passed.
pub(super) struct CopiedBatch {
    pub(super) number: u64,
    pub(super) batch: Arc<PackedBatch>,
    pub(super) moment: Moment,
}

/// Sends copied batches to the feed.
pub(super) type BatchSender = Sender<Result<CopiedBatch>>;

/// Distributes the reader's blocks and batches to the GPUs until the feed ends; an error goes to the first GPU.
pub(super) fn distribute(stream: PackedStream, copiers: &[SyncSender<Result<CopyRequest>>]) {
    for packed in stream {
        let request = match packed {
            // If the receiver has gone, nobody needs the error.
            Err(error) => {
                let _ = copiers[0].send(Err(error.into()));
                return;
            }
            Ok(PackedItem::Block(block)) => CopyRequest::Block(Arc::new(block)),
            Ok(PackedItem::Batch(batch)) => CopyRequest::Batch(Arc::new(batch)),
        };
        if copiers.iter().any(|copier| copier.send(Ok(request.clone())).is_err()) {
            return;
        }
    }
}

/// The thread that copies to a GPU.
pub(super) struct Copier {
    /// The GPU's rank among all ranks, including those of other processes.
    pub(super) rank: Rank,
    pub(super) topology: Topology,
    pub(super) ring: Arc<BlockRing>,
    pub(super) lane: Lane,
    pub(super) messages: Receiver<CopierMessage>,
}

/// The end of the feed: nobody takes its batches any more.
struct EndOfFeed;

/// The state of a copier.
struct CopierState<'a> {
    copies: Copies<'a>,
    released: ReleasedBlocks,
    pending: PendingBlocks,
}

/// Blocks that later batches may name, in the order of their numbers.
#[derive(Default)]
struct PendingBlocks {
    first: u32,
    /// `None` once a batch has named the block.
    blocks: VecDeque<Option<Arc<PackedBlock>>>,
}

impl PendingBlocks {
    /// Takes the block of a number, unless it was taken before.
    fn take(&mut self, number: u32) -> Option<Arc<PackedBlock>> {
        self.blocks.get_mut(number.wrapping_sub(self.first) as usize)?.take()
    }

    /// Releases the blocks that no later batch names.
    fn keep_from(&mut self, number: u32) {
        while self.first != number && self.blocks.pop_front().is_some() {
            self.first = self.first.wrapping_add(1);
        }
    }
}

impl Copier {
    pub(super) fn run(self, sent: &Receiver<Result<CopyRequest>>, out: &BatchSender) {
        if let Err(error) = self.feed(sent, out) {
            // If the receiver has gone, nobody needs the error.
            let _ = out.send(Err(error));
        }
    }

    fn feed(&self, sent: &Receiver<Result<CopyRequest>>, out: &BatchSender) -> Result<()> {
        self.lane.device().bind()?;
        let mut state = CopierState {
            copies: Copies { lane: &self.lane, in_flight: VecDeque::new() },
            released: ReleasedBlocks::default(),
            pending: PendingBlocks::default(),
        };
        let mut batches = 0;
        for sent in sent {
            match sent? {
                CopyRequest::Block(block) => state.pending.blocks.push_back(Some(block)),
                CopyRequest::Batch(batch) => {
                    if self.copy_needed(&mut state, &batch)?.is_err() {
                        return Ok(());
                    }
                    let moment = Moment::new(self.lane.device())?;
                    self.lane.record(&moment)?;
                    if out.send(Ok(CopiedBatch { number: batches, batch, moment })).is_err() {
                        return Ok(());
                    }
                    batches += 1;
                }
            }
            state.copies.release_finished()?;
        }
        Ok(())
    }

    /// Copies the blocks that a batch's samples for this GPU still need.
    fn copy_needed(&self, state: &mut CopierState<'_>, batch: &PackedBatch) -> Result<Result<(), EndOfFeed>> {
        for number in batch.blocks(self.topology.share(batch.len(), self.rank)) {
            if let Some(block) = state.pending.take(number)
                && self.copy(state, number, block)?.is_err()
            {
                return Ok(Err(EndOfFeed));
            }
        }
        state.pending.keep_from(batch.keep_from);
        Ok(Ok(()))
    }

    /// Copies a block to its slot, once that is free.
    fn copy(
        &self,
        CopierState { copies, released, .. }: &mut CopierState<'_>,
        number: u32,
        block: Arc<PackedBlock>,
    ) -> Result<Result<(), EndOfFeed>> {
        while number.wrapping_sub(released.before()) as usize >= self.ring.slots {
            match self.messages.recv() {
                Ok(CopierMessage::Batch { number, keep_from }) => released.add(number, keep_from),
                Ok(CopierMessage::Stop) | Err(_) => return Ok(Err(EndOfFeed)),
            }
        }
        let moment = copies.room()?;
        // SAFETY: no unfinished batch uses the slot's former contents; the block is kept until the moment has passed,
        // and the ring lives as long as this value, which waits for the lane.
        let put = unsafe { self.ring.put(&self.lane, number, &block) };
        copies.in_flight.push_back((block, moment));
        put?;
        let (_, moment) = &copies.in_flight[copies.in_flight.len() - 1];
        self.lane.record(moment)?;
        Ok(Ok(()))
    }
}

/// Blocks that are being copied. Dropping this waits for all of them.
struct Copies<'a> {
    lane: &'a Lane,
    in_flight: VecDeque<(Arc<PackedBlock>, Moment)>,
}

impl Copies<'_> {
    /// Returns a moment for the next copy, once fewer than `COPIES_MAX` are in flight.
    fn room(&mut self) -> Result<Moment> {
        if self.in_flight.len() < COPIES_MAX {
            return Ok(Moment::new(self.lane.device())?);
        }
        if let Some((_, moment)) = self.in_flight.front() {
            moment.synchronize()?;
        }
        let (_, moment) = self.in_flight.pop_front().expect("the queue is full");
        Ok(moment)
    }

    /// Releases blocks whose copy has finished.
    fn release_finished(&mut self) -> Result<()> {
        while let Some((_, moment)) = self.in_flight.front()
            && moment.has_passed()?
        {
            self.in_flight.pop_front();
        }
        Ok(())
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        // If this fails, the context is lost, and with it everything that would read the blocks.
        let _ = self.lane.synchronize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_wait_until_a_batch_names_them() {
        let mut pending = PendingBlocks { first: u32::MAX, blocks: VecDeque::new() };
        pending.blocks.extend([None, None, None]);
        assert!(pending.take(0).is_none() && pending.take(7).is_none());
        pending.keep_from(1);
        assert_eq!((pending.first, pending.blocks.len()), (1, 1));
    }
}
