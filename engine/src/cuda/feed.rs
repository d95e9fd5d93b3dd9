//! Packed blocks on their way to a GPU, and the batches that are cut from them.
//!
//! A thread takes blocks from the reader, which reads them straight into page-locked slabs, and copies them into a ring
//! in the GPU's memory on a lane of its own. What it hands out names samples by the blocks' slots there: nothing of a
//! batch but that list goes through the processor.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use rankine_cuda::kernels::{IdColumn, Index, Ring};
use rankine_cuda::{Buffer, Device, Lane, Locked, Moment};
use rankine_reader::dataset::DatasetPart;
use rankine_reader::io::{AlignedMemory, Rung, SlabMemory, SlabRing};
use rankine_reader::stream::{
    BatchStream, BlockRow, BlockStream, Packed, PackedBatch, PackedBlock, PackedStream, Position,
    StreamOptions,
};
use rankine_reader::{Error as DataError, Schema};

use super::error::Result;
use super::unpack::ragged_columns;

/// Batches that may be under way on the GPU while the next one is waited for.
const UNDER_WAY: usize = 4;
/// Copies that are enqueued at once; each holds a slab.
const COPIES: usize = 8;

/// Batches for a GPU, made ahead of whoever takes them. Dropped, it stops its threads.
///
/// Memory of the host: the slabs of [`BlockStream::ring_for`] and [`COPIES`] more, page-locked. Memory of the GPU: as
/// many blocks as two windows of the order of samples have, and those of the batches ahead.
#[derive(Debug)]
pub struct Feed {
    rung: Rung,
    batches: Option<Receiver<Result<FedBatch>>>,
    freed: Sender<Freed>,
    thread: Option<JoinHandle<()>>,
}

/// Samples to learn from together, whose blocks lie on the GPU or are copied there. Dropped, it lets go of those that
/// no later batch needs.
#[derive(Debug)]
pub struct FedBatch {
    batch: PackedBatch,
    number: u64,
    /// When its blocks are there.
    copied: Moment,
    ring: Arc<BlockRing>,
    source: Arc<Source>,
    freed: Sender<Freed>,
}

/// Where batches come from.
#[derive(Debug)]
struct Source {
    part: Arc<DatasetPart>,
    options: StreamOptions,
}

/// What tells the thread how to go on.
#[derive(Debug)]
enum Freed {
    /// Of the batch of this number: blocks before this one are in no later batch.
    Batch(u64, u32),
    /// Nobody takes batches any more.
    Stop,
}

/// Blocks in a GPU's memory.
#[derive(Debug)]
pub(super) struct BlockRing {
    slots: usize,
    blocks: Buffer<u8>,
    begins: Buffer<u32>,
    wrong: Buffer<u32>,
    /// The ragged ones.
    columns: Buffer<IdColumn>,
    addresses: Ring,
}

impl Feed {
    /// Starts to read a part of a dataset, and to copy it to the GPU; where blocks are to `stay`, the ring has room for
    /// all of them, and batches may be kept: that is for one epoch.
    ///
    /// # Errors
    /// [`super::Error::Data`] as for [`PackedStream::with_ring`]; [`super::Error::Gpu`] where memory does not suffice.
    pub fn open(
        device: &Arc<Device>,
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
        stay: bool,
    ) -> Result<Self> {
        let part = part.into();
        device.bind()?;
        let _input = device.purpose("input");
        let (slabs, slab_bytes) = BlockStream::ring_for(&part, &options.io);
        let memory = LockedMemory::new(device, (slabs + COPIES) * slab_bytes)?;
        let stream = PackedStream::with_ring(Arc::clone(&part), options, SlabRing::new(memory, slab_bytes)?)?;
        let rung = stream.rung();
        let ring_slots = if stay { part.blocks.len() } else { slots(&part, options) };
        let ring = Arc::new(BlockRing::new(device, &part, ring_slots, slab_bytes)?);
        let ((out, batches), (freed, news)) = (sync_channel(options.prefetch), channel());
        let source = Arc::new(Source { part, options: *options });
        let feeder = Feeder { ring, source, lane: Lane::new(device)?, freed: freed.clone(), news };
        let thread = std::thread::Builder::new().name("rankine-feed".into());
        let thread = thread
            .spawn(move || feeder.run(stream, &out))
            .map_err(|error| DataError::Invalid(format!("cannot start a thread: {error}")))?;
        Ok(Self { rung, batches: Some(batches), freed, thread: Some(thread) })
    }

    /// Whether the blocks of a part can all stay in the GPU's memory: they take a quarter of what is free at most, or
    /// no more than a feed of them takes in any case.
    ///
    /// # Errors
    /// Where the driver does not say how much is free.
    pub fn fits(device: &Device, part: &DatasetPart, options: &StreamOptions) -> Result<bool> {
        let block_bytes = BlockStream::ring_for(part, &options.io).1;
        let all = part.blocks.len();
        Ok(all <= slots(part, options) || (all * block_bytes) as u64 <= device.free_bytes()? / 4)
    }

    /// How blocks are read.
    pub fn rung(&self) -> Rung {
        self.rung
    }
}

impl Iterator for Feed {
    type Item = Result<FedBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.batches.as_ref()?.recv().ok();
        if next.is_none() {
            self.stop();
        }
        next
    }
}

impl Feed {
    /// Ends the thread. A panic there goes on here, lest a broken feed pass for a short one.
    fn stop(&mut self) {
        self.batches = None;
        let _ = self.freed.send(Freed::Stop);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop();
    }
}

impl FedBatch {
    /// Samples.
    pub fn len(&self) -> usize {
        self.batch.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.batch.rows.is_empty()
    }

    /// Where it begins.
    pub fn start(&self) -> Position {
        self.batch.start
    }

    /// The columns.
    pub fn schema(&self) -> &Schema {
        &self.source.part.schema
    }

    pub(super) fn copied(&self) -> &Moment {
        &self.copied
    }

    pub(super) fn ring(&self) -> &BlockRing {
        &self.ring
    }

    /// Each sample's slot, and its row there.
    pub(super) fn rows(&self) -> impl Iterator<Item = [u32; 2]> {
        let slots = self.ring.slots as u32;
        self.batch.rows.iter().map(move |&BlockRow { block, row }| [block % slots, row])
    }

    /// What is wrong with the batch, of which the GPU has found that something is: the processor unpacks it again and
    /// names what it finds.
    pub fn what_is_wrong(&self) -> DataError {
        let Source { part, options } = &*self.source;
        let again = StreamOptions { start: self.batch.start, prefetch: 1, ..*options };
        let first = BatchStream::open(Arc::clone(part), &again).map(|mut batches| batches.next());
        match first {
            Err(error) | Ok(Some(Err(error))) => error,
            Ok(_) => DataError::Invalid(format!(
                "the GPU has found ids, labels or bags from sample {} of epoch {} on that the schema does not admit, \
                 and the processor has not: its memory or the GPU's is not reliable",
                self.batch.start.sample, self.batch.start.epoch
            )),
        }
    }
}

impl Drop for FedBatch {
    fn drop(&mut self) {
        // Where the thread has ended, nothing waits for it.
        let _ = self.freed.send(Freed::Batch(self.number, self.batch.keep_from));
    }
}

impl BlockRing {
    fn new(device: &Arc<Device>, part: &DatasetPart, slots: usize, block_bytes: usize) -> Result<Self> {
        let columns: Vec<_> = ragged_columns(&part.schema).map(|(_, column)| column).collect();
        let begins_column = part.block_samples as usize + 1;
        let begins_slot = columns.len() * begins_column;
        let blocks = Buffer::uninitialized(device, slots * block_bytes)?;
        let begins = Buffer::filled(device, slots * begins_slot, 0)?;
        let wrong = Buffer::filled(device, slots, 0)?;
        let addresses = Ring {
            blocks: blocks.pointer(),
            begins: begins.pointer(),
            wrong: wrong.pointer(),
            block_bytes: block_bytes as u64,
            begins_slot: begins_slot as u32,
            begins_column: begins_column as u32,
        };
        Ok(Self { slots, blocks, begins, wrong, columns: Buffer::of(device, &columns)?, addresses })
    }

    pub(super) fn addresses(&self) -> Ring {
        self.addresses
    }

    /// Enqueues copying a block to its slot, and what its ragged columns need.
    ///
    /// # Safety
    /// The block must not be dropped before the lane has done this, and nothing may read what lay in the slot before.
    unsafe fn put(&self, lane: &Lane, number: u32, block: &PackedBlock) -> Result<()> {
        let slot = number as usize % self.slots;
        let (bytes, samples) = (block.bytes(), block.block().map_or(0, |block| block.samples()));
        assert!(bytes.len() <= self.blocks.len() / self.slots, "a slot has room for the largest block");
        let to = self.blocks.pointer().element(slot * self.addresses.block_bytes as usize);
        let ragged = self.columns.len() as u32;
        let index = Index {
            ring: self.addresses,
            columns: self.columns.pointer(),
            slot: slot as u32,
            samples: samples as u32,
        };
        assert!(self.begins.len() >= self.slots * ragged as usize * (samples + 1), "as the part says");
        // SAFETY: the slot has room for the block's bytes and for the begins of as many samples; the caller vouches for
        // the block, and that nothing reads the slot.
        unsafe {
            lane.upload_bytes(bytes, to)?;
            if ragged > 0 {
                lane.fill(self.wrong.pointer().element(slot), 0, 1)?;
                lane.launch(&index, index.grid(ragged))?;
            }
        }
        Ok(())
    }
}

/// Slots that are enough for a feed never to wait for itself: what the next batch needs, what those hold that are under
/// way or made ahead, and a window that comes meanwhile.
fn slots(part: &DatasetPart, options: &StreamOptions) -> usize {
    let (kept, window) = PackedStream::blocks_kept(part, options);
    let of_batch = options.batch_size.div_ceil(part.block_samples as usize);
    kept + window + (UNDER_WAY + options.prefetch) * of_batch
}

/// What the thread of a feed has.
struct Feeder {
    ring: Arc<BlockRing>,
    source: Arc<Source>,
    lane: Lane,
    freed: Sender<Freed>,
    news: Receiver<Freed>,
}

/// Nobody takes batches any more.
struct Stopped;

impl Feeder {
    fn run(self, stream: PackedStream, out: &SyncSender<Result<FedBatch>>) {
        if let Err(error) = self.feed(stream, out) {
            // Where nobody takes it, nobody misses it.
            let _ = out.send(Err(error));
        }
    }

    fn feed(&self, stream: PackedStream, out: &SyncSender<Result<FedBatch>>) -> Result<()> {
        self.lane.device().bind()?;
        let mut copies = Copies { lane: &self.lane, under_way: VecDeque::new() };
        let mut freed = FreedBlocks::default();
        let (mut block_number, mut batch_number) = (0_u32, 0);
        for packed in stream {
            match packed? {
                Packed::Block(block) => {
                    while block_number.wrapping_sub(freed.before) as usize >= self.ring.slots {
                        if self.hear(&mut freed).is_err() {
                            return Ok(());
                        }
                    }
                    let moment = copies.room()?;
                    // SAFETY: what lay in the slot is in no batch any more that is not done; the block is kept until
                    // the moment has passed.
                    let put = unsafe { self.ring.put(&self.lane, block_number, &block) };
                    copies.under_way.push_back((block, moment));
                    put?;
                    let (_, moment) = &copies.under_way[copies.under_way.len() - 1];
                    self.lane.record(moment)?;
                    block_number = block_number.wrapping_add(1);
                }
                Packed::Batch(batch) => {
                    let copied = Moment::new(self.lane.device())?;
                    self.lane.record(&copied)?;
                    let fed = FedBatch {
                        batch,
                        number: batch_number,
                        copied,
                        ring: Arc::clone(&self.ring),
                        source: Arc::clone(&self.source),
                        freed: self.freed.clone(),
                    };
                    batch_number += 1;
                    if out.send(Ok(fed)).is_err() {
                        return Ok(());
                    }
                }
            }
            copies.let_go()?;
        }
        Ok(())
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
    under_way: VecDeque<(PackedBlock, Moment)>,
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
struct LockedMemory {
    /// Unlocked before the memory goes.
    _locked: Locked,
    memory: AlignedMemory,
}

impl LockedMemory {
    fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        let memory = AlignedMemory::new(bytes)?;
        // SAFETY: the memory lives as long as the value, in which it comes behind what locks it.
        let locked = unsafe { Locked::new(device, memory.as_ptr(), memory.bytes()) }?;
        Ok(Self { _locked: locked, memory })
    }
}

// SAFETY: all is the memory's own; a GPU reads it only while the slab is kept, see `Copies`.
unsafe impl SlabMemory for LockedMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
