//! The threads of a feed: one takes blocks from the reader, and one per GPU copies those that the GPU needs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use crossbeam_channel::Sender;
use rankine_cuda::{CopyGate, Lane, Moment};
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::{PackedBatch, PackedBlock, PackedItem, PackedStream};

use super::SharesOfGpus;
use super::distributor::{BlockCopy, Distributor, keeper};
use super::kept::KeptBlocks;
use super::placed::PlacedBlock;
use super::release::{CopierMessage, ReleasedBlocks};
use super::ring::{BlockBytes, BlockRing};
use crate::cuda::delivery::Delivery;
use crate::cuda::error::Result;

/// Copies from the host that are enqueued on a GPU at the same time; each holds a slab.
pub(super) const COPIES_MAX: usize = 8;
/// The most batches that wait for a GPU's copies.
pub(super) const REQUESTS_MAX: usize = 8;

/// A batch, and the copies that a GPU makes for it.
pub(super) struct CopyRequest {
    batch: Arc<PackedBatch>,
    copies: Vec<BlockCopy<Arc<PackedBlock>>>,
}

/// A batch whose blocks this GPU has once the moment has passed.
pub(super) struct CopiedBatch {
    pub(super) number: u64,
    pub(super) batch: Arc<PackedBatch>,
    pub(super) moment: Moment,
}

/// Sends copied batches to the feed.
pub(super) type BatchSender = Sender<Result<CopiedBatch>>;

/// Distributes the reader's blocks and batches to the GPUs until the feed ends; an error goes to the first GPU.
pub(super) fn distribute(
    stream: PackedStream,
    mut distributor: Distributor<Arc<PackedBlock>>,
    shares: SharesOfGpus,
    copiers: &[SyncSender<Result<CopyRequest>>],
) {
    for packed in stream {
        match packed {
            // If the receiver has gone, nobody needs the error.
            Err(error) => {
                let _ = copiers[0].send(Err(error.into()));
                return;
            }
            Ok(PackedItem::Block(block)) => distributor.block(block.index() as u32, Arc::new(block)),
            Ok(PackedItem::Again(index)) => distributor.again(index),
            Ok(PackedItem::Batch(batch)) => {
                let samples_of = |gpu| match distributor.delivery() {
                    Delivery::Broadcast => shares.all(batch.len()),
                    Delivery::Needed | Delivery::Kept => shares.of(batch.len(), gpu),
                };
                let needed: Vec<_> =
                    (0..copiers.len()).map(|gpu| batch.blocks(samples_of(gpu)).collect()).collect();
                let copies = distributor.batch(&needed, batch.keep_from);
                let batch = Arc::new(batch);
                for (copier, copies) in copiers.iter().zip(copies) {
                    if copier.send(Ok(CopyRequest { batch: Arc::clone(&batch), copies })).is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Bytes that were copied to the GPUs of a process.
#[derive(Debug, Default)]
pub(super) struct CopiedBytes {
    pub(super) from_host: AtomicU64,
    pub(super) between_gpus: AtomicU64,
}

/// The thread that copies to a GPU.
pub(super) struct Copier {
    /// The GPU's position among those of the process, and their number.
    pub(super) gpu: usize,
    pub(super) gpus: usize,
    pub(super) part: Arc<DatasetPart>,
    pub(super) ring: Arc<BlockRing>,
    /// Where it keeps blocks, if they stay.
    pub(super) kept: Option<Arc<KeptBlocks>>,
    /// What copies from the host pass, if they wait for transfers between nodes.
    pub(super) gate: Option<Arc<CopyGate>>,
    pub(super) lane: Lane,
    pub(super) messages: Receiver<CopierMessage>,
    pub(super) bytes: Arc<CopiedBytes>,
}

/// The end of the feed: nobody takes its batches any more.
struct EndOfFeed;

/// The state of a copier.
struct CopierState<'a> {
    copies: Copies<'a>,
    released: ReleasedBlocks,
    /// Per slot of the ring, the block that other GPUs may copy from there.
    homes: Vec<Option<Arc<PlacedBlock>>>,
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
            copies: Copies { lane: &self.lane, in_flight: VecDeque::new(), uploaded: &self.bytes.from_host },
            released: ReleasedBlocks::default(),
            homes: vec![None; self.ring.slots],
        };
        for (number, sent) in (0..).zip(sent) {
            let CopyRequest { batch, copies } = sent?;
            for copy in copies {
                if self.copy(&mut state, copy)?.is_err() {
                    return Ok(());
                }
            }
            let moment = Moment::new(self.lane.device())?;
            self.lane.record(&moment)?;
            if out.send(Ok(CopiedBatch { number, batch, moment })).is_err() {
                return Ok(());
            }
            state.copies.release_finished()?;
        }
        Ok(())
    }

    fn copy(
        &self,
        state: &mut CopierState<'_>,
        copy: BlockCopy<Arc<PackedBlock>>,
    ) -> Result<Result<(), EndOfFeed>> {
        let gate = self.gate.as_deref();
        match copy {
            BlockCopy::FromHost { number, block, announcement } => {
                if self.free_slot(state, number)?.is_err() {
                    return Ok(Err(EndOfFeed));
                }
                let samples = self.samples(block.index());
                let moment = state.copies.upload(block, |bytes| {
                    // SAFETY: nothing uses the slot's former contents, see `free_slot`; the block is kept until the
                    // moment has passed, and the ring lives as long as this value, which waits for the lane.
                    unsafe { self.ring.put(&self.lane, number, BlockBytes::OnHost(bytes, gate), samples) }
                })?;
                state.homes[self.ring.slot(number)] = Some(announcement.block());
                announcement.placed(self.ring.at(number), moment);
            }
            BlockCopy::Keep { index, block, announcement } => {
                let to = self.kept.as_ref().expect("blocks stay").at(index);
                let moment = state.copies.upload(block, |bytes| {
                    // SAFETY: as for the ring; the place has room for this block, and no other is ever there.
                    unsafe { BlockBytes::OnHost(bytes, gate).copy(&self.lane, to) }
                })?;
                announcement.placed(to, moment);
            }
            BlockCopy::FromHome { number, index, home } => {
                if self.free_slot(state, number)?.is_err() {
                    return Ok(Err(EndOfFeed));
                }
                // If its thread has ended, that thread has an error, or the feed ends.
                let Some((from, there)) = home.wait() else { return Ok(Err(EndOfFeed)) };
                let len = self.part.blocks[index as usize].bytes as usize;
                self.lane.wait(&there)?;
                let from = BlockBytes::OnGpu(from, len);
                // SAFETY: as above; the home's memory lives until all copiers have ended, and stays unchanged until it
                // has waited for the moment below.
                unsafe { self.ring.put(&self.lane, number, from, self.samples(u64::from(index)))? };
                if self.kept.is_none() {
                    let moment = Arc::new(Moment::new(self.lane.device())?);
                    self.lane.record(&moment)?;
                    home.is_copied_at(moment);
                }
                if self.kept.is_none() || keeper(index, self.gpus) != self.gpu {
                    self.bytes.between_gpus.fetch_add(len as u64, Ordering::Relaxed);
                }
            }
        }
        Ok(Ok(()))
    }

    fn samples(&self, index: u64) -> u32 {
        self.part.blocks[index as usize].samples
    }

    /// Waits until no batch needs the slot of a block any more, and lets the lane wait for GPUs that still copy from
    /// there. They have all enqueued that: before a batch is released, all GPUs have made their copies for it.
    fn free_slot(&self, state: &mut CopierState<'_>, number: u32) -> Result<Result<(), EndOfFeed>> {
        while number.wrapping_sub(state.released.before()) as usize >= self.ring.slots {
            match self.messages.recv() {
                Ok(CopierMessage::Batch { number, keep_from }) => state.released.add(number, keep_from),
                Ok(CopierMessage::Stop) | Err(_) => return Ok(Err(EndOfFeed)),
            }
        }
        if let Some(home) = state.homes[self.ring.slot(number)].take() {
            home.copied().iter().try_for_each(|moment| self.lane.wait(moment))?;
        }
        Ok(Ok(()))
    }
}

/// Blocks that are being copied from the host. Dropping this waits for all of them.
struct Copies<'a> {
    lane: &'a Lane,
    in_flight: VecDeque<(Arc<PackedBlock>, Arc<Moment>)>,
    /// Counts their bytes.
    uploaded: &'a AtomicU64,
}

impl Copies<'_> {
    /// Enqueues copying a block's bytes, once fewer than `COPIES_MAX` copies are in flight; returns the moment when it
    /// is done.
    fn upload(
        &mut self,
        block: Arc<PackedBlock>,
        copy: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Arc<Moment>> {
        if self.in_flight.len() == COPIES_MAX {
            // Its slab is released only after that.
            self.in_flight[0].1.synchronize()?;
            self.in_flight.pop_front();
        }
        let moment = Arc::new(Moment::new(self.lane.device())?);
        self.in_flight.push_back((block, Arc::clone(&moment)));
        let bytes = self.in_flight[self.in_flight.len() - 1].0.bytes();
        copy(bytes)?;
        self.uploaded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.lane.record(&moment)?;
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
