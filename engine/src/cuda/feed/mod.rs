//! Packed blocks on their way to GPUs, and the batches that are cut from them.
//!
//! Threads read blocks straight into page-locked slabs, check them and draw the order of samples ([`PackedStream`]).
//! For each GPU another one copies blocks into a ring in its memory on a lane of its own. What is handed out names
//! samples by the blocks' slots there: nothing of a batch but that list goes through the processor, and each GPU's part
//! of it is made by whoever enqueues that GPU's work.
//!
//! Of several GPUs each has a run of a batch's samples. In file order it gets the blocks that these lie in, and no
//! others. Shuffled, they lie in nearly all: so each block goes over PCIe to one GPU, whose copy engines pass it on.

mod copier;
mod fed;
mod freed;
mod locked;
mod ring;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

use rankine_cuda::{Device, Lane, Moment};
use rankine_embedding::Topology;
use rankine_reader::Error as DataError;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::io::{Rung, SlabRing};
use rankine_reader::stream::{BlockStream, Order, PackedBatch, PackedStream, StreamOptions};

use super::error::Result;
use copier::{COPIES, Copied, Copier, SENT, Spread, hand_out};
use fed::Source;
pub use fed::{FedBatch, FedPart};
use freed::Freed;
use locked::{KeptMemory, LockedMemory};
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
    topology: Topology,
    /// The rank of the first GPU.
    first: usize,
    spread: Spread,
    source: Arc<Source>,
    /// Of each GPU.
    rings: Vec<Arc<BlockRing>>,
    /// Of each GPU. None once they have ended.
    copied: Vec<Receiver<Result<Copied>>>,
    /// To each GPU's thread.
    freed: Arc<[Sender<Freed>]>,
    threads: Vec<JoinHandle<()>>,
    /// What slabs lie in. It is unlocked when this is dropped, and not before.
    _memory: Arc<LockedMemory>,
}

impl Feed {
    /// Starts to read a part of a dataset, and to copy it to the GPUs, each of which gets its share of the samples of
    /// every batch; where blocks are to `stay`, the rings have room for all of them, and batches may be kept: that is
    /// for one epoch. Several GPUs must access each other's memory.
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
        let spread = match options.order {
            Order::File if topology.ranks() > 1 => Spread::Needed,
            _ => Spread::All,
        };
        let (slabs, slab_bytes) = BlockStream::ring_for(&part, &options.io);
        let (kept, window) = PackedStream::blocks_kept(&part, options);
        let on_the_way = PackedStream::BLOCKS_AHEAD + devices.len() * (COPIES + SENT);
        let waiting = if spread == Spread::Needed { kept + window } else { 0 };
        let slabs = slabs + on_the_way + waiting;
        devices[0].bind()?;
        let memory = Arc::new(LockedMemory::new(&devices[0], slabs * slab_bytes)?);
        let ring = SlabRing::new(KeptMemory(Arc::clone(&memory)), slab_bytes)?;
        let stream = PackedStream::with_ring(Arc::clone(&part), options, ring)?;
        let source = Arc::new(Source { part, options: *options });
        let slots = if stay { source.part.blocks.len() } else { slots(&source.part, options) };
        let mut rings = Vec::new();
        for device in devices {
            device.bind()?;
            let _input = device.purpose("input");
            let writers = if spread == Spread::All && devices.len() > 1 { devices } else { &[] };
            let ring = BlockRing::new((device, writers), &source.part, slots, slab_bytes)?;
            rings.push(Arc::new(ring));
        }
        let (freed, news): (Vec<_>, Vec<_>) = devices.iter().map(|_| channel()).unzip();
        let mut feed = Self {
            rung: stream.rung(),
            topology,
            first,
            spread,
            source,
            rings,
            copied: Vec::new(),
            freed: freed.into(),
            threads: Vec::new(),
            _memory: memory,
        };
        // Those of a window are ready all at once; meanwhile the next one's blocks come.
        let of_window = window * feed.source.part.block_samples as usize / options.batch_size.max(1);
        let mut copiers = Vec::new();
        for (place, (device, news)) in devices.iter().zip(news).enumerate() {
            device.bind()?;
            let (rank, ring) = (first + place, Arc::clone(&feed.rings[place]));
            let others = match spread {
                Spread::Needed => Vec::new(),
                Spread::All => (1..devices.len())
                    .map(|turn| Arc::clone(&feed.rings[(place + turn) % devices.len()]))
                    .collect(),
            };
            let copier = Copier { rank, topology, spread, ring, others, lane: Lane::new(device)?, news };
            let (sender, sent) = sync_channel(SENT);
            let (out, copied) = sync_channel(options.prefetch + of_window);
            copiers.push(sender);
            feed.copied.push(copied);
            feed.spawn(format!("rankine-feed-{rank}"), move || copier.run(&sent, &out))?;
        }
        feed.spawn("rankine-feed".into(), move || hand_out(stream, spread, &copiers))?;
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

    /// A GPU's part of a batch, whose blocks are there once these moments have passed.
    fn part(&self, place: usize, batch: &Arc<PackedBatch>, number: u64, copied: &[Arc<Moment>]) -> FedPart {
        let (copied, freed) = match self.spread {
            Spread::Needed => (copied[place..=place].to_vec(), (place..place + 1, 0)),
            Spread::All => (copied.to_vec(), (0..self.rings.len(), place)),
        };
        FedPart {
            batch: Arc::clone(batch),
            rows: self.topology.share(batch.len(), self.first + place),
            number,
            copied,
            ring: Arc::clone(&self.rings[place]),
            source: Arc::clone(&self.source),
            freed: (Arc::clone(&self.freed), freed.0, freed.1),
        }
    }
}

impl Iterator for Feed {
    type Item = Result<FedBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut moments, mut last, mut failed) = (Vec::new(), None, None);
        for copied in &self.copied {
            match copied.recv() {
                Ok(Ok(Copied { number, batch, moment })) => {
                    moments.push(moment);
                    last = Some((number, batch));
                }
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(_) => {}
            }
        }
        match last {
            Some((number, batch)) if failed.is_none() && moments.len() == self.rings.len() => {
                let part = |place| Arc::new(self.part(place, &batch, number, &moments));
                let parts = (0..self.rings.len()).map(part).collect();
                Some(Ok(FedBatch { len: batch.len(), start: batch.start, parts }))
            }
            _ => {
                self.stop();
                failed.map(Err)
            }
        }
    }
}

impl Feed {
    /// Ends the threads. A panic there goes on here, lest a broken feed pass for a short one.
    fn stop(&mut self) {
        self.copied.clear();
        self.freed.iter().for_each(|freed| {
            // A thread that has ended needs no word.
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

/// Slots that are enough for a feed never to wait for itself: what the next batch needs, what those hold that are under
/// way or made ahead, and a window that comes meanwhile.
fn slots(part: &DatasetPart, options: &StreamOptions) -> usize {
    let (kept, window) = PackedStream::blocks_kept(part, options);
    let of_batch = options.batch_size.div_ceil(part.block_samples as usize);
    kept + window + (UNDER_WAY + options.prefetch) * of_batch
}
