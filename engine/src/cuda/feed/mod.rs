//! Packed blocks on their way to GPUs, and the batches that are cut from them.
//!
//! A thread takes blocks from the reader, which reads them straight into page-locked slabs. For each GPU another one
//! copies them into a ring in its memory on a lane of its own. What is handed out names samples by the blocks' slots
//! there: nothing of a batch but that list goes through the processor. Of several GPUs each has a run of a batch's
//! samples. In file order it gets the blocks that these lie in, and no others; shuffled, they lie in nearly all.

mod copier;
mod ring;

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

use rankine_cuda::{Device, Lane, Moment};
use rankine_embedding::Topology;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::io::{Rung, SlabRing};
use rankine_reader::stream::{
    BatchStream, BlockRow, BlockStream, Order, PackedBatch, PackedStream, Position, StreamOptions,
};
use rankine_reader::{Error as DataError, Schema};

use super::error::Result;
use copier::{COPIES, Copier, KeptMemory, LockedMemory, SENT, hand_out};
pub(super) use ring::BlockRing;

/// Batches that may be under way on a GPU while the next one is waited for.
const UNDER_WAY: usize = 4;

/// Batches for GPUs, made ahead of whoever takes them. Dropped, it stops its threads; of several GPUs, once all that
/// was begun with its batches is done.
///
/// Memory of the host, page-locked: the slabs of [`BlockStream::ring_for`], some more for each GPU, and for several
/// GPUs in file order those of a batch and a window. Memory of each GPU: as many blocks as two windows of the order of
/// samples have, and those of the batches ahead.
#[derive(Debug)]
pub struct Feed {
    rung: Rung,
    /// Of each GPU. None once they have ended.
    parts: Vec<Receiver<Result<FedPart>>>,
    freed: Vec<Sender<Freed>>,
    threads: Vec<JoinHandle<()>>,
    /// What slabs lie in. It is unlocked when this is dropped, and not before.
    _memory: Arc<LockedMemory>,
}

/// Samples to learn from together, for one GPU or several.
#[derive(Debug, Clone)]
pub struct FedBatch {
    len: usize,
    start: Position,
    parts: Vec<Arc<FedPart>>,
}

/// A GPU's samples of a batch, whose blocks lie there or are copied there. Dropped, it lets go of those that no later
/// batch needs.
#[derive(Debug)]
pub struct FedPart {
    batch: Arc<PackedBatch>,
    rows: Range<usize>,
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

/// What tells a thread that copies how to go on.
#[derive(Debug)]
enum Freed {
    /// Of the batch of this number: blocks before this one are in no later batch.
    Batch(u64, u32),
    /// Nobody takes batches any more.
    Stop,
}

impl Feed {
    /// Starts to read a part of a dataset, and to copy it to the GPUs, each of which gets its share of the samples of
    /// every batch; where blocks are to `stay`, the rings have room for all of them, and batches may be kept: that is
    /// for one epoch.
    ///
    /// # Panics
    /// Where there is no GPU.
    ///
    /// # Errors
    /// [`super::Error::Data`] as for [`PackedStream::with_ring`]; [`super::Error::Gpu`] where memory does not suffice.
    pub fn open(
        devices: &[Arc<Device>],
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
        stay: bool,
    ) -> Result<Self> {
        let topology = Topology::new(devices.len(), 1).expect("there is a GPU");
        Self::open_shares((devices, topology, 0), part, options, stay)
    }

    /// The same where the GPUs are those of some ranks, the first of which is given: what comes are their shares alone.
    ///
    /// # Panics
    /// As [`Feed::open`].
    ///
    /// # Errors
    /// As [`Feed::open`].
    pub fn open_shares(
        (devices, topology, first): (&[Arc<Device>], Topology, usize),
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
        stay: bool,
    ) -> Result<Self> {
        let part = part.into();
        let waits = topology.ranks() > 1 && options.order == Order::File;
        let (slabs, slab_bytes) = BlockStream::ring_for(&part, &options.io);
        let (kept, window) = PackedStream::blocks_kept(&part, options);
        let on_the_way = PackedStream::BLOCKS_AHEAD + devices.len() * (COPIES + SENT);
        let slabs = slabs + on_the_way + if waits { kept + window } else { 0 };
        devices[0].bind()?;
        let memory = Arc::new(LockedMemory::new(&devices[0], slabs * slab_bytes)?);
        let ring = SlabRing::new(KeptMemory(Arc::clone(&memory)), slab_bytes)?;
        let stream = PackedStream::with_ring(Arc::clone(&part), options, ring)?;
        let mut feed = Self {
            rung: stream.rung(),
            parts: Vec::new(),
            freed: Vec::new(),
            threads: Vec::new(),
            _memory: memory,
        };
        let source = Arc::new(Source { part, options: *options });
        let mut copiers = Vec::new();
        for (rank, device) in (first..).zip(devices) {
            device.bind()?;
            let ring = {
                let _input = device.purpose("input");
                let slots = if stay { source.part.blocks.len() } else { slots(&source.part, options) };
                Arc::new(BlockRing::new(device, &source.part, slots, slab_bytes)?)
            };
            let ((freed, news), source) = (channel(), Arc::clone(&source));
            feed.freed.push(freed.clone());
            let copier =
                Copier { rank, topology, waits, ring, source, lane: Lane::new(device)?, freed, news };
            let ((sender, sent), (out, parts)) = (sync_channel(SENT), sync_channel(options.prefetch));
            copiers.push(sender);
            feed.parts.push(parts);
            feed.spawn(format!("rankine-feed-{rank}"), move || copier.run(&sent, &out))?;
        }
        feed.spawn("rankine-feed".into(), move || hand_out(stream, &copiers))?;
        Ok(feed)
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name).spawn(run);
        let refused = |error| DataError::Invalid(format!("cannot start a thread: {error}"));
        self.threads.push(thread.map_err(refused)?);
        Ok(())
    }

    /// Whether the blocks of a part can all stay in each GPU's memory: they take a quarter of what is free at most, or
    /// no more than a feed of them takes in any case.
    ///
    /// # Errors
    /// Where the driver does not say how much is free.
    pub fn fits(devices: &[Arc<Device>], part: &DatasetPart, options: &StreamOptions) -> Result<bool> {
        let block_bytes = BlockStream::ring_for(part, &options.io).1;
        let all = part.blocks.len();
        let fits = |device: &Arc<Device>| {
            device.bind()?;
            Ok((all * block_bytes) as u64 <= device.free_bytes()? / 4)
        };
        let fits = devices.iter().map(fits).collect::<Result<Vec<_>>>()?;
        Ok(all <= slots(part, options) || fits.into_iter().all(|fits| fits))
    }

    /// How blocks are read.
    pub fn rung(&self) -> Rung {
        self.rung
    }
}

impl Iterator for Feed {
    type Item = Result<FedBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut parts, mut failed) = (Vec::new(), None);
        for part in &self.parts {
            match part.recv() {
                Ok(Ok(part)) => parts.push(Arc::new(part)),
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(_) => {}
            }
        }
        if failed.is_some() || parts.is_empty() || parts.len() < self.parts.len() {
            self.stop();
            return failed.map(Err);
        }
        let PackedBatch { rows, start, .. } = &*parts[0].batch;
        Some(Ok(FedBatch { len: rows.len(), start: *start, parts }))
    }
}

impl Feed {
    /// Ends the threads. A panic there goes on here, lest a broken feed pass for a short one.
    fn stop(&mut self) {
        self.parts.clear();
        self.freed.drain(..).for_each(|freed| {
            let _ = freed.send(Freed::Stop);
        });
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
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
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins.
    pub fn start(&self) -> Position {
        self.start
    }

    /// What each GPU has of it, in the order of ranks.
    pub fn parts(&self) -> &[Arc<FedPart>] {
        &self.parts
    }
}

impl FedPart {
    /// Samples.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
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
        let rows = &self.batch.rows[self.rows.clone()];
        rows.iter().map(move |&BlockRow { block, row }| [block % slots, row])
    }

    /// What is wrong with the batch, of which the GPU has found that something is: the processor unpacks it again and
    /// names what it finds.
    pub fn what_is_wrong(&self) -> DataError {
        let (Source { part, options }, start) = (&*self.source, self.batch.start);
        let again = StreamOptions { start, prefetch: 1, ..*options };
        let first = BatchStream::open(Arc::clone(part), &again).map(|mut batches| batches.next());
        match first {
            Err(error) | Ok(Some(Err(error))) => error,
            Ok(_) => DataError::Invalid(format!(
                "the GPU has found ids, labels or bags from sample {} of epoch {} on that the schema does not admit, \
                 and the processor has not: its memory or the GPU's is not reliable",
                start.sample, start.epoch
            )),
        }
    }
}

impl Drop for FedPart {
    fn drop(&mut self) {
        // Where the thread has ended, nothing waits for it.
        let _ = self.freed.send(Freed::Batch(self.number, self.batch.keep_from));
    }
}

/// Slots that are enough for a feed never to wait for itself: what the next batch needs, what those hold that are under
/// way or made ahead, and a window that comes meanwhile.
fn slots(part: &DatasetPart, options: &StreamOptions) -> usize {
    let (kept, window) = PackedStream::blocks_kept(part, options);
    let of_batch = options.batch_size.div_ceil(part.block_samples as usize);
    kept + window + (UNDER_WAY + options.prefetch) * of_batch
}
