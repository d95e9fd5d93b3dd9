//! Batches whose samples are still packed: named by block and row, for whoever unpacks by itself, as a GPU does.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::background::Background;
use crate::dataset::{BlockCoding, DatasetPart};
use crate::error::{Error, Result};
use crate::io::{Rung, SlabRing};
use crate::stream::{BlockStream, PackedBlock, Plan, Position, StreamOptions, Window};

/// Where a sample lies.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRow {
    /// The number of its block, counted from 0 over all blocks that the stream has yielded.
    pub block: u32,
    /// Its number in the block.
    pub row: u32,
}

/// Some samples that are learnt from together: the very ones, in the very order, of the [`crate::Batch`] that
/// [`crate::BatchStream`] makes with the same options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedBatch {
    /// One a sample.
    pub rows: Vec<BlockRow>,
    /// Where it begins.
    pub start: Position,
    /// Where the stream goes on.
    pub end: Position,
    /// Blocks with a number below this are in no batch to come.
    pub keep_from: u32,
}

/// What comes next of a [`PackedStream`].
#[derive(Debug)]
pub enum Packed {
    /// A block, in the order of their numbers. Batches to come have samples of it.
    Block(PackedBlock),
    /// A batch, all of whose blocks have come.
    Batch(PackedBatch),
}

/// An iterator over blocks and the batches that are cut from them. A thread of its own reads blocks ahead and checks
/// them, up to [`PackedStream::BLOCKS_AHEAD`], each in a slab of the ring. After an error it ends.
///
/// How many blocks lie between a batch's first one and the last one that came before it is bounded: see
/// [`PackedStream::blocks_kept`].
#[derive(Debug)]
pub struct PackedStream {
    part: Arc<DatasetPart>,
    rung: Rung,
    blocks: Background<Result<PackedBlock>, ()>,
    batch_size: usize,
    /// The number of the next block.
    next: u32,
    /// The rows of the batch that is being filled.
    rows: Vec<BlockRow>,
    /// Batches that no block needs to come for.
    ready: VecDeque<PackedBatch>,
}

impl PackedStream {
    /// Starts to read into a ring of the caller's; `options.prefetch` has no meaning here.
    ///
    /// # Errors
    /// See [`BlockStream::with_ring`] and [`Plan::new`]; [`Error::Invalid`] for batches of no samples, and for raw
    /// records, which are not packed.
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
        let plan = Plan::new(&part, options.order, options.epochs, options.start)?;
        let blocks = BlockStream::with_ring(Arc::clone(&part), plan, &options.io, ring)?;
        let (rung, rows, ready) = (blocks.rung(), Vec::new(), VecDeque::new());
        let blocks = Background::spawn("rankine-blocks", Self::BLOCKS_AHEAD, move |out, stop| {
            for block in blocks {
                if stop.is_asked() || out.send(block).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { part, rung, blocks, batch_size: options.batch_size, next: 0, rows, ready })
    }

    /// Blocks that are read and checked ahead of whoever takes them.
    pub const BLOCKS_AHEAD: usize = 4;

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

    /// Cuts a window into batches, whose last block has the number `last`.
    fn cut(&mut self, window: &Window, last: u32) {
        let behind = last.wrapping_add(1);
        let first = behind.wrapping_sub(window.blocks.len() as u32);
        let part = Arc::clone(&self.part);
        let place = Places::new(&part, window);
        let shuffled = window.shuffled_rows();
        let mut from = window.skip;
        while from < window.samples {
            let left = (self.batch_size - self.rows.len()).min((window.samples - from) as usize) as u32;
            let delivered: Range<u32> = from..from + left;
            let of = |row: u32| {
                let (place, row) = place.of(row);
                BlockRow { block: first.wrapping_add(place), row }
            };
            match &shuffled {
                Some(rows) => {
                    let rows = &rows[delivered.start as usize..delivered.end as usize];
                    self.rows.extend(rows.iter().map(|&row| of(row)));
                }
                None => self.rows.extend(delivered.map(of)),
            }
            from += left;
            let end = Position { epoch: window.epoch, sample: window.first + u64::from(from) };
            if self.rows.len() < self.batch_size && end.sample < part.samples {
                continue;
            }
            let rows = std::mem::replace(&mut self.rows, Vec::with_capacity(self.batch_size));
            let start = Position { sample: end.sample - rows.len() as u64, ..end };
            let keep_from = match from < window.samples {
                true if shuffled.is_some() => first,
                true => first.wrapping_add(place.of(from).0),
                false => behind,
            };
            self.ready.push_back(PackedBatch { rows, start, end, keep_from });
        }
    }
}

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
        let number = self.next;
        self.next = number.wrapping_add(1);
        if block.completes_window() {
            self.cut(&Arc::clone(&block.window), number);
        }
        Some(Ok(Packed::Block(block)))
    }
}

/// Which block of a window a row is of.
struct Places {
    /// Samples of all blocks but those that are short.
    full: u32,
    /// Where each block's rows begin in the window, and where the last one's end.
    begins: Vec<u32>,
}

impl Places {
    fn new(part: &DatasetPart, window: &Window) -> Self {
        let mut begins = vec![0];
        for &block in &window.blocks {
            // Below 2^32 together: see `Window::samples`.
            begins.push(begins[begins.len() - 1] + part.samples_of(u64::from(block)) as u32);
        }
        Self { full: part.block_samples, begins }
    }

    /// The block's place in the window, and the row in it.
    fn of(&self, row: u32) -> (u32, u32) {
        // Short blocks before it only move it to a later one.
        let mut place = row / self.full;
        while row >= self.begins[place as usize + 1] {
            place += 1;
        }
        (place, row - self.begins[place as usize])
    }
}
