//! Batches whose samples are still packed, named by block and row, for consumers that unpack them, such as GPUs.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use rankine_base::error::{Error, Result};
use rankine_base::stop::Stop;

use crate::background::Background;
use crate::dataset::{DatasetPart, Selection};
use crate::io::{BytesRead, Rung, SlabRing};
use crate::ordered::ordered_map;
use crate::stream::blocks::UncheckedBlock;
use crate::stream::rows::{RowsOfWindow, Run};
use crate::stream::windows::{self, Windows};
use crate::stream::{BlockRow, BlockStream, PackedBlock, Plan, Position, StreamOptions};

/// The samples of one training step: the same ones, in the same order, as those of the [`crate::Batch`] that
/// [`crate::BatchStream`] yields with the same options.
///
/// It is stored as a few runs through the orders of windows; the position of a sample is computed when it is
/// requested.
#[derive(Debug, Clone)]
pub struct PackedBatch {
    /// The samples of the stream's share.
    runs: Vec<Run>,
    len: usize,
    /// The positions in the batch of the samples that can be requested.
    share: Range<usize>,
    /// The position at which the batch starts.
    pub start: Position,
    /// The position after the batch.
    pub end: Position,
    /// Blocks with a number below this are not part of any later batch.
    pub keep_from: u32,
}

impl PackedBatch {
    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the positions of some of the samples, in their order.
    ///
    /// # Panics
    /// If the range exceeds the stream's share of the batch.
    pub fn rows(&self, samples: Range<usize>) -> impl Iterator<Item = BlockRow> {
        self.runs_of(samples).flat_map(|run| run.rows())
    }

    /// Returns the numbers of the blocks that may hold some of the samples, in order.
    ///
    /// # Panics
    /// If the range exceeds the stream's share of the batch.
    pub fn blocks(&self, samples: Range<usize>) -> impl Iterator<Item = u32> {
        self.runs_of(samples).flat_map(|run| run.blocks())
    }

    fn runs_of(&self, samples: Range<usize>) -> impl Iterator<Item = Run> {
        let Range { start, end } = self.share;
        assert!(
            start <= samples.start && samples.start <= samples.end && samples.end <= end,
            "{samples:?} is within the share {start}..{end} of the batch"
        );
        let mut before = start;
        self.runs.iter().filter_map(move |run| {
            let (first, after) = (before, before + run.len());
            before = after;
            let (from, to) = (samples.start.max(first), samples.end.min(after));
            (from < to).then(|| run.part(from - first..to - first))
        })
    }
}

/// An item of a [`PackedStream`].
#[derive(Debug)]
pub enum PackedItem {
    /// A block, in numeric order. Later batches have samples of it.
    Block(PackedBlock),
    /// The next block is one that was yielded before, with this number in the part: see
    /// [`PackedStream::reading_once`].
    Again(u32),
    /// A batch, all of whose needed blocks have been yielded.
    Batch(PackedBatch),
}

/// An iterator over blocks and the batches formed from them. Separate threads work ahead: some read blocks and check
/// them, each in a slab of the ring, of which they hold up to [`PackedStream::BLOCKS_AHEAD`] in addition to those of
/// [`BlockStream::ring_for`]; one draws the order of later windows. With a share of the batches, only the blocks that
/// it needs are read and yielded. After an error it ends.
///
/// The number of blocks between a batch's first one and the last one yielded before it is bounded: see
/// [`PackedStream::blocks_kept`].
#[derive(Debug)]
pub struct PackedStream {
    rung: Rung,
    bytes: BytesRead,
    /// Dropped before the blocks.
    windows: Windows,
    blocks: Background<Result<PackedBlock>, SlabRing>,
    /// The window whose blocks are being yielded, and how many of them are left.
    window: Option<(Arc<RowsOfWindow>, u32)>,
    /// The share of the batch being filled.
    runs: Vec<Run>,
    /// The samples of that batch.
    len: usize,
    /// Complete batches, which wait for no further block.
    ready: VecDeque<PackedBatch>,
}

impl PackedStream {
    /// Starts reading into a ring of the caller; `options.prefetch` is ignored.
    ///
    /// # Errors
    /// See [`BlockStream::with_ring`] and [`Plan::new`]; [`Error::Setting`] for a batch size of 0, and if the part can
    /// only be read as unpacked batches: see [`DatasetPart::why_unpacked`].
    pub fn with_ring(
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
        ring: SlabRing,
    ) -> Result<Self> {
        Self::reading(part.into(), options, false, ring)
    }

    /// The same for a consumer that keeps all blocks: each is read and yielded once, and later only named.
    ///
    /// # Errors
    /// As [`PackedStream::with_ring`].
    pub fn reading_once(
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
        ring: SlabRing,
    ) -> Result<Self> {
        Self::reading(part.into(), options, true, ring)
    }

    fn reading(part: Arc<DatasetPart>, options: &StreamOptions, once: bool, ring: SlabRing) -> Result<Self> {
        if let Some(why) = part.why_unpacked() {
            return Err(Error::setting("packed", format!("{why}: read unpacked batches")));
        }
        let plan = Plan::new(&part, options.order, options.epochs, options.start)?;
        let (windows, blocks) = windows::open(&part, plan, options, once, ring)?;
        Ok(Self {
            rung: blocks.rung(),
            bytes: blocks.bytes().clone(),
            windows,
            blocks: checked_blocks(blocks, Self::CHECKERS, Self::BLOCKS_READY)?,
            window: None,
            runs: Vec::new(),
            len: 0,
            ready: VecDeque::new(),
        })
    }

    /// Threads that check blocks. A checksum reads data that has just arrived from the disk into another core's
    /// cache: one thread is only as fast as four GPUs require.
    const CHECKERS: usize = 3;
    /// Checked blocks that wait for the consumer.
    const BLOCKS_READY: usize = 4;
    /// Blocks that are read ahead of the consumer and hold a slab.
    pub const BLOCKS_AHEAD: usize =
        Self::CHECKERS * crate::ordered::IN_FLIGHT_PER_THREAD + Self::BLOCKS_READY;

    /// Returns the maximum number of blocks from the first one of a batch to the last one yielded before the batch,
    /// and the number of blocks in a window.
    pub fn blocks_kept(part: &DatasetPart, options: &StreamOptions) -> (usize, usize) {
        let window = options.order.window_blocks().min(part.blocks.len());
        // A batch can start in the last row of a window and end in the first row of another.
        let batch = match &part.selection {
            None => options.batch_size.div_ceil(part.block_samples.max(1) as usize),
            Some(selection) => blocks_of_batch(selection, part.blocks.len(), options.batch_size),
        };
        ((batch.next_multiple_of(window.max(1)) + 2 * window).min(2 * part.blocks.len()), window)
    }

    /// Returns the rung in use.
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// Returns the count of the bytes that were read.
    pub fn bytes(&self) -> &BytesRead {
        &self.bytes
    }

    /// Stops reading and returns the ring: see [`BlockStream::close`].
    pub fn close(self) -> SlabRing {
        drop(self.windows);
        self.blocks.close()
    }

    /// Adds a window's portions to batches; all of its needed blocks have been yielded.
    fn add(&mut self, window: &Arc<RowsOfWindow>) {
        for portion in &window.portions {
            let sample = window.window.first + u64::from(portion.positions.end);
            let end = Position { epoch: window.window.epoch, sample };
            let keep_from = window.keep_from(portion.positions.end);
            self.len += portion.positions.len();
            if !portion.own.is_empty() {
                self.runs.push(Run { window: Arc::clone(window), positions: portion.own.clone() });
            }
            if portion.completes {
                let (runs, len) = (std::mem::take(&mut self.runs), std::mem::take(&mut self.len));
                let own: usize = runs.iter().map(Run::len).sum();
                let share = portion.share_start..portion.share_start + own;
                let start = Position { sample: end.sample - len as u64, ..end };
                self.ready.push_back(PackedBatch { runs, len, share, start, end, keep_from });
            }
        }
    }
}

/// Returns the most blocks that the samples of a batch can come from, if it starts with a block's first sample and
/// blocks without selected samples are left out.
fn blocks_of_batch(selection: &Selection, blocks: usize, batch_size: usize) -> usize {
    let mut samples: Vec<_> = (0..blocks as u32).map(|block| selection.samples_of(block) as usize).collect();
    samples.retain(|&samples| samples > 0);
    samples.sort_unstable();
    let (mut count, mut sum) = (0, 0);
    for samples in samples {
        if sum >= batch_size {
            break;
        }
        count += 1;
        sum += samples;
    }
    count
}

impl Iterator for PackedStream {
    type Item = Result<PackedItem>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Some(Ok(PackedItem::Batch(batch)));
            }
            let (window, left) = match self.window.take() {
                Some(started) => started,
                None => self.windows.next().map(|window| (Arc::clone(&window), window.needed_len()))?,
            };
            match left.checked_sub(1) {
                None => self.add(&window),
                Some(left) => {
                    let number = window.needed_len() - left - 1;
                    let again = window.was_read(number).then(|| window.needed_block(number));
                    self.window = Some((window, left));
                    return match again {
                        Some(block) => Some(Ok(PackedItem::Again(block))),
                        None => Some(self.blocks.next()?.map(PackedItem::Block)),
                    };
                }
            }
        }
    }
}

/// Returns the blocks of a stream in order, checked ahead by `threads` threads; up to `ready` of them wait for the
/// consumer. The first error is the last item. The result of the thread is the ring.
fn checked_blocks(
    mut blocks: BlockStream,
    threads: usize,
    ready: usize,
) -> Result<Background<Result<PackedBlock>, SlabRing>> {
    let threads = NonZeroUsize::new(threads).expect("at least one thread checks");
    Background::spawn("rankine-blocks", ready, move |out, _| {
        let unchecked = std::iter::from_fn(|| blocks.next_unchecked());
        let checked = ordered_map(threads, &Stop::default(), unchecked, UncheckedBlock::check, |block| {
            // This error stops the other threads; it is never returned.
            out.send(Ok(block)).map_err(|_| Error::refused("hand on a block", ErrorKind::BrokenPipe.into()))
        });
        if let Err(error) = checked {
            let _ = out.send(Err(error));
        }
        blocks.close()
    })
}
