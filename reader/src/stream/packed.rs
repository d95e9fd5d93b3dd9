//! Batches whose samples are still packed: named by block and row, for whoever unpacks by itself, as a GPU does.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::background::Background;
use crate::dataset::{BlockCoding, DatasetPart};
use crate::error::{Error, Result};
use crate::io::{Rung, SlabRing};
use crate::stream::checked::checked_blocks;
use crate::stream::rows::{RowsOfWindow, Run};
use crate::stream::{BlockRow, BlockStream, PackedBlock, Plan, Position, StreamOptions};

/// Some samples that are learnt from together: the very ones, in the very order, of the [`crate::Batch`] that
/// [`crate::BatchStream`] makes with the same options.
///
/// It is a few runs through the orders of windows; where a sample lies is computed when it is asked for, by whoever
/// wants to know it of some of the samples.
#[derive(Debug, Clone)]
pub struct PackedBatch {
    runs: Vec<Run>,
    len: usize,
    /// Where it begins.
    pub start: Position,
    /// Where the stream goes on.
    pub end: Position,
    /// Blocks with a number below this are in no batch to come.
    pub keep_from: u32,
}

impl PackedBatch {
    /// Samples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where each of some of the samples lies, in their order.
    ///
    /// # Panics
    /// Where there are not as many samples.
    pub fn rows(&self, samples: Range<usize>) -> impl Iterator<Item = BlockRow> {
        self.runs_of(samples).flat_map(|run| run.rows())
    }

    /// The numbers of the blocks that some of the samples may lie in, in order; where samples are shuffled these are
    /// all of their windows.
    ///
    /// # Panics
    /// Where there are not as many samples.
    pub fn blocks(&self, samples: Range<usize>) -> impl Iterator<Item = u32> {
        self.runs_of(samples).flat_map(|run| run.blocks())
    }

    fn runs_of(&self, samples: Range<usize>) -> impl Iterator<Item = Run> {
        assert!(samples.start <= samples.end && samples.end <= self.len, "a batch has its own samples alone");
        let mut before = 0;
        self.runs.iter().filter_map(move |run| {
            let (first, behind) = (before, before + run.len());
            before = behind;
            let (from, to) = (samples.start.max(first), samples.end.min(behind));
            (from < to).then(|| run.part(from - first..to - first))
        })
    }
}

/// What comes next of a [`PackedStream`].
#[derive(Debug)]
pub enum Packed {
    /// A block, in the order of their numbers. Batches to come have samples of it.
    Block(PackedBlock),
    /// A batch, all of whose blocks have come.
    Batch(PackedBatch),
}

/// An iterator over blocks and the batches that are cut from them. Threads of its own work ahead: some read blocks and
/// check them, each in a slab of the ring, of which they take up to [`PackedStream::BLOCKS_AHEAD`] beside those of
/// [`BlockStream::ring_for`]; one draws the order of windows to come. After an error it ends.
///
/// How many blocks lie between a batch's first one and the last one that came before it is bounded: see
/// [`PackedStream::blocks_kept`].
#[derive(Debug)]
pub struct PackedStream {
    rung: Rung,
    blocks: Background<Result<PackedBlock>, SlabRing>,
    /// Of each window, in order.
    windows: Background<RowsOfWindow, ()>,
    part_samples: u64,
    batch_size: usize,
    /// The batch that is being filled.
    runs: Vec<Run>,
    len: usize,
    /// Batches that no block needs to come for.
    ready: VecDeque<PackedBatch>,
}

impl PackedStream {
    /// Starts to read into a ring of the caller's; `options.prefetch` has no meaning here.
    ///
    /// # Errors
    /// See [`BlockStream::with_ring`] and [`Plan::new`]; [`Error::Invalid`] for batches of no samples, for raw records,
    /// which are not packed, and where the part has rules for ids.
    pub fn with_ring(
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
        ring: SlabRing,
    ) -> Result<Self> {
        let part = part.into();
        if options.batch_size == 0 {
            return Err(Error::invalid("a stream of batches needs a batch size of at least 1"));
        }
        if let BlockCoding::Records(_) = part.coding {
            return Err(Error::invalid("raw records are not packed: they are read as batches of samples"));
        }
        if !part.ids.all_fail() {
            return Err(Error::invalid("rules for ids are applied to unpacked batches, not to packed ones"));
        }
        let plan = Plan::new(&part, options.order, options.epochs, options.start)?;
        let blocks = BlockStream::with_ring(Arc::clone(&part), plan.clone(), &options.io, ring)?;
        let rung = blocks.rung();
        let part_samples = part.samples;
        let windows = Background::spawn("rankine-order", WINDOWS_AHEAD, move |out, _| {
            let mut first = 0_u32;
            for window in plan {
                let blocks = window.blocks.len() as u32;
                if out.send(RowsOfWindow::new(&part, &window, first)).is_err() {
                    break;
                }
                first = first.wrapping_add(blocks);
            }
        })?;
        Ok(Self {
            rung,
            blocks: checked_blocks(blocks, Self::CHECKERS, Self::BLOCKS_READY)?,
            windows,
            part_samples,
            batch_size: options.batch_size,
            runs: Vec::new(),
            len: 0,
            ready: VecDeque::new(),
        })
    }

    /// Threads that check blocks. A checksum reads what has just come from the disk, into another core's cache: one
    /// thread does that no faster than four GPUs want it.
    const CHECKERS: usize = 3;
    /// Blocks that are checked and wait for whoever takes them.
    const BLOCKS_READY: usize = 4;
    /// Blocks that are read ahead of whoever takes them, and hold a slab.
    pub const BLOCKS_AHEAD: usize =
        Self::CHECKERS * crate::ordered::IN_FLIGHT_PER_THREAD + Self::BLOCKS_READY;

    /// So many blocks there are at most from the first one of a batch to the last one that comes before the batch; and
    /// how many a window has.
    pub fn blocks_kept(part: &DatasetPart, options: &StreamOptions) -> (usize, usize) {
        let window = options.order.window_blocks().min(part.blocks.len());
        // A batch can begin in the last row of a window, and end in the first row of one.
        let batch = options.batch_size.div_ceil(part.block_samples.max(1) as usize);
        ((batch.next_multiple_of(window.max(1)) + 2 * window).min(2 * part.blocks.len()), window)
    }

    /// The rung that is used.
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// Stops reading and gives the ring back: see [`BlockStream::close`].
    pub fn close(self) -> SlabRing {
        self.blocks.close()
    }

    /// Cuts a window into batches, all of whose blocks have come.
    fn cut(&mut self, window: &Arc<RowsOfWindow>) {
        let mut from = window.skip;
        while from < window.samples() {
            let left = (self.batch_size - self.len).min((window.samples() - from) as usize) as u32;
            self.runs.push(Run { window: Arc::clone(window), places: from..from + left });
            self.len += left as usize;
            from += left;
            let end = Position { epoch: window.epoch, sample: window.first_sample + u64::from(from) };
            if self.len < self.batch_size && end.sample < self.part_samples {
                continue;
            }
            let (runs, len) = (std::mem::take(&mut self.runs), std::mem::take(&mut self.len));
            let start = Position { sample: end.sample - len as u64, ..end };
            self.ready.push_back(PackedBatch { runs, len, start, end, keep_from: window.keep_from(from) });
        }
    }
}

/// Windows whose order is known ahead of the one that is cut: 4 bytes a sample each.
const WINDOWS_AHEAD: usize = 1;

impl Iterator for PackedStream {
    type Item = Result<Packed>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(batch) = self.ready.pop_front() {
            return Some(Ok(Packed::Batch(batch)));
        }
        let block = match self.blocks.next()? {
            Ok(block) => block,
            Err(error) => return Some(Err(error)),
        };
        if block.completes_window() {
            let window = self.windows.next().expect("blocks and orders are of one plan");
            self.cut(&Arc::new(window));
        }
        Some(Ok(Packed::Block(block)))
    }
}
