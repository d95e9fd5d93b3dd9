//! Batches of unpacked samples, prepared ahead of their consumer.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use rankine_base::error::{Error, Result};

use crate::background::{Background, StopSignal};
use crate::dataset::DatasetPart;
use crate::io::{BytesRead, Rung, SlabRing};
use crate::samples::Samples;
use crate::stream::row_window::RowWindow;
use crate::stream::rows::RowsOfWindow;
use crate::stream::windows::{self, Windows};
use crate::stream::{BlockStream, Plan, Position, StreamOptions};

/// The samples of one training step. Dropping it makes its memory available for a later batch.
#[derive(Debug)]
pub struct Batch {
    /// The samples of the stream's share. They may be moved out; their memory is then not reused.
    pub samples: Samples,
    /// The number of samples of the whole batch.
    pub len: usize,
    /// The position in the batch of the first of `samples`.
    pub first: usize,
    /// The position at which the batch starts.
    pub start: Position,
    /// The position after the batch: a stream started there yields the next samples.
    pub end: Position,
    /// How many ids of `samples` were out of range and were handled by the part's rules: one number per categorical
    /// column, or empty if all such ids are errors.
    pub out_of_range: Vec<u64>,
    recycle: Sender<Samples>,
}

impl Batch {
    /// Makes a whole batch of samples that start at a position. When it is dropped, their memory is sent to `recycle`,
    /// or freed if that is full.
    pub fn new(samples: Samples, start: Position, out_of_range: Vec<u64>, recycle: Sender<Samples>) -> Self {
        let len = samples.len;
        let end = Position { sample: start.sample + len as u64, ..start };
        Self { samples, len, first: 0, start, end, out_of_range, recycle }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // If the stream is gone or has enough memory to reuse, the memory is freed.
        let _ = self.recycle.try_send(std::mem::take(&mut self.samples));
    }
}

/// An iterator over batches, prepared ahead by a separate thread, which checks and unpacks the blocks that a second
/// thread reads. After an error it ends. Dropping it stops both threads after the current block.
///
/// Memory: the ring ([`BlockStream::ring_for`]: depth + 4 slabs of the largest block's size), one unpacked window, the
/// orders of windows that are read ahead (4 bytes per sample), and `prefetch + 2` batches in addition to those that
/// the consumer holds. An unpacked sample takes 4 bytes per label, dense column and categorical column, and 8 bytes
/// per id.
#[derive(Debug)]
pub struct BatchStream {
    rung: Rung,
    bytes: BytesRead,
    batches: Background<Result<Batch>, SlabRing>,
}

impl BatchStream {
    /// Starts reading and unpacking.
    ///
    /// # Errors
    /// See [`BlockStream::with_ring`] and [`Plan::new`]; [`Error::Setting`] for a batch size of 0. Later errors are
    /// items of the iterator.
    pub fn open(part: impl Into<Arc<DatasetPart>>, options: &StreamOptions) -> Result<Self> {
        let part = part.into();
        let plan = Plan::new(&part, options.order, options.epochs, options.start)?;
        let ring = BlockStream::allocate_ring(&part, &plan, &options.io)?;
        Self::over(&part, plan, options, ring)
    }

    /// Like [`BatchStream::open`], with a ring of the caller.
    ///
    /// # Errors
    /// See [`BatchStream::open`].
    #[doc(hidden)]
    pub fn with_ring(
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
        ring: SlabRing,
    ) -> Result<Self> {
        let part = part.into();
        let plan = Plan::new(&part, options.order, options.epochs, options.start)?;
        Self::over(&part, plan, options, ring)
    }

    fn over(part: &Arc<DatasetPart>, plan: Plan, options: &StreamOptions, ring: SlabRing) -> Result<Self> {
        if options.prefetch == 0 {
            return Err(Error::setting("prefetch", "a stream of batches needs a prefetch of at least 1"));
        }
        let (windows, blocks) = windows::open(part, plan, options, false, ring)?;
        let (rung, bytes) = (blocks.rung(), blocks.bytes().clone());
        // The maximum number of batches at once, except those that the consumer holds.
        let (recycle, recycled) = bounded(options.prefetch + 2);
        let assembler = Assembler { part: Arc::clone(part), recycle, recycled };
        let batches = Background::spawn("rankine-batches", options.prefetch, move |out, stop| {
            assembler.run(windows, blocks, out, stop)
        })?;
        Ok(Self { rung, bytes, batches })
    }

    /// Returns the rung in use.
    #[doc(hidden)]
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// Returns the count of the bytes that were read.
    #[doc(hidden)]
    pub fn bytes(&self) -> &BytesRead {
        &self.bytes
    }

    /// Returns the number of batches that wait to be taken.
    #[doc(hidden)]
    pub fn ready(&self) -> usize {
        self.batches.ready()
    }

    /// Stops reading and returns the ring, for the next stream.
    #[doc(hidden)]
    pub fn close(self) -> SlabRing {
        self.batches.close()
    }
}

impl Iterator for BatchStream {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.next()
    }
}

/// Assembles batches from blocks.
struct Assembler {
    part: Arc<DatasetPart>,
    recycle: Sender<Samples>,
    recycled: Receiver<Samples>,
}

/// The state of an assembler.
struct Assembled {
    /// The rows of a window whose rows are chosen or shuffled.
    rows: RowWindow,
    /// A block.
    block: Samples,
    /// The share of the batch being filled.
    batch: Samples,
    /// The samples of that batch.
    len: usize,
}

/// Nobody takes batches any more, or the stream has failed and the consumer has the error.
struct Ended;

impl Assembler {
    fn run(
        self,
        windows: Windows,
        mut blocks: BlockStream,
        out: &Sender<Result<Batch>>,
        stop: &StopSignal,
    ) -> SlabRing {
        let schema = &self.part.schema;
        let mut assembled = Assembled {
            rows: RowWindow::new(schema),
            block: Samples::new(schema),
            batch: self.empty(),
            len: 0,
        };
        for window in windows {
            if self.add(&window, &mut blocks, &mut assembled, out, stop).is_err() {
                break;
            }
        }
        blocks.close()
    }

    /// Reads the needed blocks of a window, and adds its samples to batches.
    fn add(
        &self,
        window: &RowsOfWindow,
        blocks: &mut BlockStream,
        assembled: &mut Assembled,
        out: &Sender<Result<Batch>>,
        stop: &StopSignal,
    ) -> Result<(), Ended> {
        let fails = |error| {
            // If the consumer is gone, the error does not matter.
            let _ = out.send(Err(error));
            Ended
        };
        assembled.rows.clear();
        assembled.block.clear();
        let direct = window.is_whole_block();
        for _ in 0..window.needed_len() {
            if stop.is_asked() {
                return Err(Ended);
            }
            let block = blocks.next().ok_or(Ended)?.map_err(fails)?;
            // A whole block is unpacked directly into the batch, without a copy in between.
            let to = if direct { &mut assembled.batch } else { &mut assembled.block };
            block.decode_into(to).map_err(fails)?;
            // The unpacked samples are a copy, so the slab can be reused while they are divided into batches.
            drop(block);
            if !window.keeps_rows() {
                assembled.rows.push(&assembled.block);
                assembled.block.clear();
            }
        }
        for portion in &window.portions {
            let own = portion.own.start as usize..portion.own.end as usize;
            if own.is_empty() || direct {
                // Nothing, or all of it is there.
            } else if window.keeps_rows() {
                assembled.batch.append(&assembled.block, own);
            } else {
                assembled.rows.gather(&window.rows_in_needed(portion.own.clone()), &mut assembled.batch);
            }
            assembled.len += portion.positions.len();
            if portion.completes {
                let mut samples = std::mem::replace(&mut assembled.batch, self.empty());
                let mut out_of_range = Vec::new();
                self.part.ids.apply(&mut samples, &mut out_of_range);
                let len = std::mem::take(&mut assembled.len);
                let sample = window.window.first + u64::from(portion.positions.end);
                let end = Position { epoch: window.window.epoch, sample };
                let start = Position { sample: end.sample - len as u64, ..end };
                let (first, recycle) = (portion.share_start, self.recycle.clone());
                let batch = Batch { samples, len, first, start, end, out_of_range, recycle };
                out.send(Ok(batch)).map_err(|_| Ended)?;
            }
        }
        Ok(())
    }

    /// Returns an empty batch, in reused memory if available.
    fn empty(&self) -> Samples {
        let schema = &self.part.schema;
        let fits = |samples: &Samples| {
            samples.labels.len() == schema.labels.len()
                && samples.dense_columns == schema.dense.len()
                && samples.categorical.len() == schema.categorical.len()
        };
        // Memory is not reused if the consumer has replaced it or removed columns.
        match self.recycled.try_recv() {
            Ok(mut samples) if fits(&samples) => {
                samples.clear();
                samples
            }
            _ => Samples::new(schema),
        }
    }
}
