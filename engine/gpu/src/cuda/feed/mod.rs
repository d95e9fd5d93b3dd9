//! Packed blocks on their way to GPUs, and the batches made of them.
//!
//! Threads read blocks directly into page-locked slabs, check them and draw the order of samples ([`PackedStream`]).
//! For each GPU, another thread copies blocks into a ring in its memory, on its own lane. A batch names samples by the
//! blocks' slots there: the CPU handles only that list, and each GPU's part of it is made by the thread that enqueues
//! that GPU's work.
//!
//! With several GPUs, each gets a range of a batch's samples, and receives the blocks that contain them, or all blocks
//! of the batch ([`Delivery`]); a block that several GPUs receive crosses from the host to one of them, and continues
//! from there. With several processes, each reads only the blocks that its GPUs need. Shuffled or not, the samples of a
//! batch are in reading order, so few blocks are needed by several GPUs.

mod batch;
mod columns;
mod copier;
mod distributor;
mod kept;
mod memory;
mod placed;
mod release;
mod ring;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, bounded};
use rankine_backend::{BackendError, Batch, BatchSource, Batches, CopiedBytes as Copied};
use rankine_base::Error as DataError;
use rankine_cuda::{CopyGate, Device, Lane};
use rankine_reader::dataset::DatasetPart;
use rankine_reader::io::{BytesRead, Rung, SlabRing};
use rankine_reader::stream::{BlockStream, PackedStream, Share, StreamOptions};
use rankine_topology::{Rank, Topology};

use super::binding::near;
use super::delivery::Delivery;
use super::error::{Error, Result};
use super::setup::ModelSetup;
use batch::Source;
pub use batch::{FeedBatch, FeedPart};
pub(super) use columns::{fixed_columns, ragged_columns};
use copier::{COPIES_MAX, CopiedBatch, CopiedBytes, Copier, REQUESTS_MAX, distribute};
use distributor::Distributor;
use kept::{KeptBlocks, KeptLayout};
use memory::{PageLockedMemory, SlabRingMemory};
use release::CopierMessage;
pub(super) use ring::BlockRing;

/// Batches that may be in flight on a GPU while the next one is awaited.
const BATCHES_IN_FLIGHT: usize = 4;

/// Batches for GPUs, prepared ahead. Dropping it stops its threads.
///
/// Page-locked host memory: the slabs of [`BlockStream::ring_for`], some more for each GPU, and those of a batch and
/// the windows around it, which wait until a batch names them. Memory of each GPU: as many blocks, and those of the
/// batches ahead.
#[derive(Debug)]
pub struct Feed {
    rung: Rung,
    bytes: BytesRead,
    shares: SharesOfGpus,
    source: Arc<Source>,
    /// One per GPU.
    rings: Vec<Arc<BlockRing>>,
    /// One per GPU; empty once the threads have ended.
    copied: Vec<Receiver<Result<CopiedBatch>>>,
    /// One per GPU, to its thread.
    senders: Vec<Sender<CopierMessage>>,
    threads: Vec<JoinHandle<()>>,
    copied_bytes: Arc<CopiedBytes>,
    /// The blocks that stay, one value per GPU: other GPUs copy from them until all threads have ended.
    _kept: Vec<Arc<KeptBlocks>>,
    /// The memory of the slabs. It is unlocked when this is dropped, not before.
    _memory: Arc<PageLockedMemory>,
}

/// The ranks that a feed serves: those of this process.
#[derive(Debug, Clone, Copy)]
pub struct FeedRanks<'a> {
    /// Their GPUs, in the order of ranks.
    pub devices: &'a [Arc<Device>],
    /// All ranks of the job.
    pub topology: Topology,
    /// The first rank of this process.
    pub first: Rank,
    /// Whether threads run on the NUMA node of their GPU.
    pub binds_threads: bool,
    /// How blocks reach the GPUs.
    pub delivery: Delivery,
    /// The gates that copies from the host pass, one per GPU; none if they pass no gates.
    pub gates: &'a [Arc<CopyGate>],
    /// The batches that are in a slot together: several if they are scored.
    pub grouped: usize,
}

/// Which samples of a batch the GPUs of this process get.
#[derive(Debug, Clone, Copy)]
struct SharesOfGpus {
    topology: Topology,
    /// The rank of the first GPU.
    first: Rank,
    gpus: usize,
}

impl SharesOfGpus {
    /// Returns the samples of one of the GPUs, of a batch of `len`.
    fn of(self, len: usize, gpu: usize) -> Range<usize> {
        self.topology.share(len, self.first.plus(gpu))
    }

    /// Returns the samples of all of them.
    fn all(self, len: usize) -> Range<usize> {
        self.of(len, 0).start..self.of(len, self.gpus - 1).end
    }
}

impl<'a> FeedRanks<'a> {
    /// Returns the ranks of a model.
    pub(in crate::cuda) fn of(setup: &'a ModelSetup, gates: &'a [Arc<CopyGate>]) -> Self {
        Self {
            devices: &setup.devices,
            topology: setup.topology(),
            first: setup.first_rank(),
            binds_threads: setup.execution.binds_threads,
            delivery: setup.execution.delivery,
            gates,
            grouped: 1,
        }
    }

    /// Returns the same for an evaluation, which has its own way to keep blocks, and scores several batches together.
    pub(in crate::cuda) fn for_evaluation(
        setup: &'a ModelSetup,
        gates: &'a [Arc<CopyGate>],
        grouped: usize,
    ) -> Self {
        let ranks = Self { grouped, ..Self::of(setup, gates) };
        match ranks.delivery {
            Delivery::Kept => Self { delivery: Delivery::Needed, ..ranks },
            Delivery::Needed | Delivery::Broadcast => ranks,
        }
    }

    fn shares(&self) -> SharesOfGpus {
        SharesOfGpus { topology: self.topology, first: self.first, gpus: self.devices.len() }
    }

    /// Returns this process's share of every batch: the shares of its ranks together.
    pub(in crate::cuda) fn share(&self) -> Share {
        let ranks = self.devices.len();
        Share { process: self.first.0 / ranks, processes: self.topology.ranks() / ranks }
    }
}

impl Feed {
    /// Starts to read a part of a dataset and to copy it to the GPUs, each of which gets its share of every batch's
    /// samples. If blocks are to `stay`, the rings hold all of them, and batches may be kept: for one epoch.
    ///
    /// # Panics
    /// If there is no GPU.
    ///
    /// # Errors
    /// [`super::Error::Data`] as for [`PackedStream::with_ring`]; [`super::Error::Gpu`] if there is too little memory.
    pub fn open(
        devices: &[Arc<Device>],
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
        stay: bool,
    ) -> Result<Self> {
        let topology = Topology::new(devices.len(), 1).expect("there is a GPU");
        let ranks = FeedRanks {
            devices,
            topology,
            first: Rank(0),
            binds_threads: true,
            delivery: Delivery::Needed,
            gates: &[],
            grouped: 1,
        };
        Self::open_shares(ranks, part, options, stay)
    }

    /// The same for the GPUs of some of a job's ranks: they receive only their shares.
    ///
    /// # Panics
    /// As [`Feed::open`].
    ///
    /// # Errors
    /// As [`Feed::open`].
    pub fn open_shares(
        ranks: FeedRanks<'_>,
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
        stay: bool,
    ) -> Result<Self> {
        // What reads is started here, and the memory that it reads into is first touched here.
        let binding = near(ranks.devices, ranks.binds_threads)?;
        let options = StreamOptions { share: ranks.share(), ..*options };
        binding.during(|| Self::start(ranks, part.into(), &options, stay))
    }

    fn start(
        ranks: FeedRanks<'_>,
        part: Arc<DatasetPart>,
        options: &StreamOptions,
        stay: bool,
    ) -> Result<Self> {
        let FeedRanks { devices, first, binds_threads, delivery, grouped, .. } = ranks;
        let (slabs, slab_bytes) = BlockStream::ring_for(&part, &options.io);
        let (kept, window) = PackedStream::blocks_kept(&part, options);
        let ahead = PackedStream::BLOCKS_AHEAD + devices.len() * (COPIES_MAX + REQUESTS_MAX);
        let slabs = slabs + ahead + kept + window;
        devices[0].bind()?;
        let memory = Arc::new(PageLockedMemory::new(&devices[0], slabs * slab_bytes)?);
        let ring = SlabRing::new(SlabRingMemory(Arc::clone(&memory)), slab_bytes)?;
        let open =
            if delivery == Delivery::Kept { PackedStream::reading_once } else { PackedStream::with_ring };
        let stream = open(Arc::clone(&part), options, ring)?;
        let source = Arc::new(Source { part, options: *options });
        let slots = if stay { source.part.blocks.len() } else { slots(&source.part, options, grouped) };
        let mut rings = Vec::new();
        for device in devices {
            device.bind()?;
            let _input = device.purpose("input");
            rings.push(Arc::new(BlockRing::new((device, devices), &source.part, slots, slab_bytes)?));
        }
        let kept = if delivery == Delivery::Kept { keep(devices, &source.part)? } else { Vec::new() };
        let (senders, messages): (Vec<_>, Vec<_>) = devices.iter().map(|_| channel()).unzip();
        let mut feed = Self {
            rung: stream.rung(),
            bytes: stream.bytes().clone(),
            shares: ranks.shares(),
            source,
            rings,
            copied: Vec::new(),
            senders,
            threads: Vec::new(),
            copied_bytes: Arc::default(),
            _kept: kept.clone(),
            _memory: memory,
        };
        // Batches of a window become ready all at once; meanwhile the next window's blocks arrive.
        let window_batches = window * feed.source.part.block_samples as usize / options.batch_size.max(1);
        let mut copiers = Vec::new();
        for (index, (device, messages)) in devices.iter().zip(messages).enumerate() {
            device.bind()?;
            let copier = Copier {
                gpu: index,
                gpus: devices.len(),
                part: Arc::clone(&feed.source.part),
                ring: Arc::clone(&feed.rings[index]),
                kept: kept.get(index).cloned(),
                gate: ranks.gates.get(index).cloned(),
                lane: Lane::new(device)?,
                messages,
                bytes: Arc::clone(&feed.copied_bytes),
            };
            let (sender, sent) = sync_channel(REQUESTS_MAX);
            let (out, copied) = bounded(options.prefetch + window_batches);
            copiers.push(sender);
            feed.copied.push(copied);
            let binding = near(std::slice::from_ref(device), binds_threads)?;
            feed.spawn(format!("rankine-feed-{}", first.plus(index)), move || {
                binding.bind_thread();
                copier.run(&sent, &out);
            })?;
        }
        let distributor = Distributor::new(delivery, devices.len(), feed.source.part.blocks.len());
        let shares = feed.shares;
        feed.spawn("rankine-feed".into(), move || distribute(stream, distributor, shares, &copiers))?;
        Ok(feed)
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name).spawn(run);
        let refused = |error| DataError::refused("start a thread", error);
        self.threads.push(thread.map_err(refused)?);
        Ok(())
    }

    /// Whether all blocks of a part can stay in each GPU's memory: they take at most a quarter of the free memory, or
    /// no more than a feed of them takes in any case.
    ///
    /// # Errors
    /// If the driver does not report the free memory.
    pub fn fits(ranks: FeedRanks<'_>, part: &DatasetPart, options: &StreamOptions) -> Result<bool> {
        let FeedRanks { devices, grouped, .. } = ranks;
        let block_bytes = BlockStream::ring_for(part, &options.io).1;
        let all = part.blocks.len();
        let fits = |device: &Arc<Device>| {
            device.bind()?;
            Ok((all * block_bytes) as u64 <= device.free_bytes()? / 4)
        };
        let fits = devices.iter().map(fits).collect::<Result<Vec<_>>>()?;
        Ok(all <= slots(part, options, grouped) || fits.into_iter().all(|fits| fits))
    }

    /// Returns how blocks are read.
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// Returns the bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes.get()
    }

    /// Returns the bytes copied to the GPUs so far.
    pub fn bytes_copied(&self) -> Copied {
        let CopiedBytes { from_host, between_gpus } = &*self.copied_bytes;
        Copied {
            from_host: from_host.load(Ordering::Relaxed),
            between_gpus: between_gpus.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of batches that all GPUs have.
    pub fn ready(&self) -> usize {
        self.copied.iter().map(Receiver::len).min().unwrap_or(0)
    }

    /// Returns a GPU's part of a batch.
    fn part(&self, index: usize, CopiedBatch { number, batch, moment }: CopiedBatch) -> FeedPart {
        FeedPart {
            rows: self.shares.of(batch.len(), index),
            batch,
            number,
            copied: moment,
            ring: Arc::clone(&self.rings[index]),
            source: Arc::clone(&self.source),
            release: self.senders[index].clone(),
        }
    }
}

impl Iterator for Feed {
    type Item = Result<FeedBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut parts, mut failed) = (Vec::new(), None);
        for (index, copied) in self.copied.iter().enumerate() {
            match copied.recv() {
                Ok(Ok(copied)) => parts.push(Arc::new(self.part(index, copied))),
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(_) => {}
            }
        }
        if failed.is_none() && !parts.is_empty() && parts.len() == self.rings.len() {
            let batch = &parts[0].batch;
            return Some(Ok(FeedBatch { len: batch.len(), start: batch.start, parts }));
        }
        self.stop();
        failed.map(Err)
    }
}

impl Feed {
    /// Ends the threads. A panic of theirs is resumed here, so that a broken feed is not taken for a short one.
    fn stop(&mut self) {
        self.copied.clear();
        self.senders.iter().for_each(|sender| {
            // A thread that has ended needs no message.
            let _ = sender.send(CopierMessage::Stop);
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

/// Starts to read a part for the GPUs of a model. The CPU unpacks raw records, data whose ids have rules, and data
/// with buckets; GPUs unpack everything else, and keep the blocks if they are to `stay` resident.
///
/// # Errors
/// [`BackendError::Data`] as for [`Feed::open`]; [`BackendError::Staging`] if memory does not suffice.
pub(super) fn open_batches(
    ranks: FeedRanks<'_>,
    part: DatasetPart,
    options: &StreamOptions,
    stay: bool,
) -> Result<Batches, BackendError> {
    if let Some(why) = part.why_unpacked() {
        if ranks.delivery == Delivery::Kept {
            let what = format!("{why}, so the CPU unpacks batches: remove data.cache");
            return Err(DataError::setting("data.cache", what).into());
        }
        // Every process counts all ids to which rules were applied.
        let share = if part.ids.all_fail() { ranks.share() } else { Share::ALL };
        return Batch::unpacked(part, &StreamOptions { share, ..*options });
    }
    match Feed::open_shares(ranks, part, options, stay) {
        Ok(feed) => Ok(Box::new(PackedBatches(feed))),
        Err(Error::Gpu(error)) => Err(BackendError::Staging(error.into())),
        Err(error) => Err(error.into()),
    }
}

/// Batches that GPUs unpack, as training takes them.
struct PackedBatches(Feed);

impl Iterator for PackedBatches {
    type Item = Result<Batch, BackendError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.0.next()?.map_err(BackendError::from);
        Some(batch.map(|batch| Batch::Packed(Box::new(batch))))
    }
}

impl BatchSource for PackedBatches {
    fn rung(&self) -> Rung {
        self.0.rung()
    }

    fn bytes_read(&self) -> u64 {
        self.0.bytes_read()
    }

    fn bytes_copied(&self) -> Option<Copied> {
        Some(self.0.bytes_copied())
    }

    fn ready(&self) -> usize {
        self.0.ready()
    }
}

/// Allocates the memory in which GPUs keep the blocks of a part.
fn keep(devices: &[Arc<Device>], part: &DatasetPart) -> Result<Vec<Arc<KeptBlocks>>> {
    let layout = Arc::new(KeptLayout::new(part, devices.len()));
    layout.check(devices)?;
    let of_gpu = |gpu: usize| {
        devices[gpu].bind()?;
        let _kept = devices[gpu].purpose("training data");
        Ok(Arc::new(KeptBlocks::new(&layout, devices, gpu)?))
    };
    (0..devices.len()).map(of_gpu).collect()
}

/// Returns the number of slots with which a feed never waits for itself: for the blocks of the next batch, those of
/// batches in flight or made ahead, and a window that arrives meanwhile. `grouped` batches are in flight together.
fn slots(part: &DatasetPart, options: &StreamOptions, grouped: usize) -> usize {
    let (kept, window) = PackedStream::blocks_kept(part, options);
    let of_batches = |batches: usize| (batches * options.batch_size).div_ceil(part.block_samples as usize);
    kept + window + BATCHES_IN_FLIGHT * of_batches(grouped) + options.prefetch * of_batches(1)
}
