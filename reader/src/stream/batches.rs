//! Batches of unpacked samples, prepared ahead of their consumer.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use rankine_base::error::{Error, Result};

use crate::background::{Background, StopSignal};
use crate::dataset::DatasetPart;
use crate::io::{BytesRead, Rung, SlabRing};
use crate::samples::Samples;
use crate::stream::division::{self, Division, Portion};
use crate::stream::window::RowWindow;
use crate::stream::{BlockStream, Plan, Position, StreamOptions, Window};

/// The samples of one training step. Dropping it makes its memory available for a later batch.
#[derive(Debug)]
pub struct Batch {
    /// The samples. They may be moved out; their memory is then not reused.
    pub samples: Samples,
    /// The position at which the batch starts.
    pub start: Position,
    /// The position after the batch: a stream started there yields the next samples.
    pub end: Position,
    /// How many ids were out of range and were handled by the part's rules: one number per categorical column, or
    /// empty if all such ids are errors.
    pub out_of_range: Vec<u64>,
    recycle: Sender<Samples>,
}

impl Batch {
    /// Makes a batch of samples that start at a position. When it is dropped, their memory is sent to `recycle`, or
    /// freed if that is full.
    pub fn new(samples: Samples, start: Position, out_of_range: Vec<u64>, recycle: Sender<Samples>) -> Self {
        let end = Position { sample: start.sample + samples.len as u64, ..start };
        Self { samples, start, end, out_of_range, recycle }
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
/// Memory: the ring ([`BlockStream::ring_for`]: depth + 4 slabs of the largest block's size), one unpacked window,
/// and `prefetch + 2` batches in addition to those that the consumer holds. An unpacked sample takes 4 bytes per
/// label, dense column and categorical column, and 8 bytes per id.
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
        Self::over(BlockStream::open(part, plan, &options.io)?, options)
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
        Self::over(BlockStream::with_ring(part, plan, &options.io, ring)?, options)
    }

    fn over(blocks: BlockStream, options: &StreamOptions) -> Result<Self> {
        if options.batch_size == 0 || options.prefetch == 0 {
            return Err(Error::setting(
                "batch_size",
                "a stream of batches needs a batch size and a prefetch of at least 1",
            ));
        }
        let (rung, bytes) = (blocks.rung(), blocks.bytes().clone());
        // The maximum number of batches at once, except those that the consumer holds.
        let (recycle, recycled) = bounded(options.prefetch + 2);
        let assembler =
            Assembler { part: Arc::clone(blocks.part()), batch_size: options.batch_size, recycle, recycled };
        let batches = Background::spawn("rankine-batches", options.prefetch, move |out, stop| {
            assembler.run(blocks, out, stop)
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
    batch_size: usize,
    recycle: Sender<Samples>,
    recycled: Receiver<Samples>,
}

/// The consumer was dropped.
struct ConsumerDropped;

impl Assembler {
    fn run(self, mut blocks: BlockStream, out: &Sender<Result<Batch>>, stop: &StopSignal) -> SlabRing {
        let mut window = RowWindow::new(&self.part.schema);
        let mut unpacked = Samples::new(&self.part.schema);
        let mut batch = self.empty();
        let mut division = Division::new(self.batch_size, self.part.samples);
        let mut portions = Vec::new();
        for block in &mut blocks {
            if stop.is_asked() {
                break;
            }
            if let Ok(block) = &block
                && block.window_index == 0
            {
                window.clear();
                portions = division.divide(&block.window);
            }
            let sent = match block {
                Ok(block) if is_whole_block(&block.window, &portions) => {
                    // Directly into the batch, without a copy in between.
                    block
                        .decode_into(&mut batch)
                        .map(|()| self.deliver(&block.window, &portions, &mut batch, out, |_, _| ()))
                }
                Ok(block) => {
                    unpacked.clear();
                    let decoded = block.decode_into(&mut unpacked);
                    let (plan, complete) = (Arc::clone(&block.window), block.completes_window());
                    // The unpacked window is a copy, so the slab can be reused while the window is divided into
                    // batches.
                    drop(block);
                    decoded.map(|()| {
                        if plan.keeps_rows() {
                            let append = |batch: &mut Samples, rows| batch.append(&unpacked, rows);
                            return self.deliver(&plan, &portions, &mut batch, out, append);
                        }
                        window.push(&unpacked);
                        if !complete {
                            return Ok(());
                        }
                        let order = division::rows(&plan, &portions).expect("rows are chosen or shuffled");
                        let gather =
                            |batch: &mut Samples, rows: Range<usize>| window.gather(&order[rows], batch);
                        self.deliver(&plan, &portions, &mut batch, out, gather)
                    })
                }
                Err(error) => Err(error),
            };
            let sent = sent.unwrap_or_else(|error| {
                // If the consumer is gone, the error does not matter.
                let _ = out.send(Err(error));
                Err(ConsumerDropped)
            });
            if sent.is_err() {
                break;
            }
        }
        blocks.close()
    }

    /// Adds a window's portions to batches and sends those that are complete; `take` appends positions of the window's
    /// order to a batch. The remainder waits in `batch` for the next window.
    fn deliver(
        &self,
        window: &Window,
        portions: &[Portion],
        batch: &mut Samples,
        out: &Sender<Result<Batch>>,
        take: impl Fn(&mut Samples, Range<usize>),
    ) -> Result<(), ConsumerDropped> {
        for portion in portions {
            take(batch, portion.range());
            if !portion.completes {
                continue;
            }
            let mut samples = std::mem::replace(batch, self.empty());
            let mut out_of_range = Vec::new();
            self.part.ids.apply(&mut samples, &mut out_of_range);
            let end = window.first + u64::from(portion.positions.end);
            let start = Position { epoch: window.epoch, sample: end - samples.len as u64 };
            let batch = Batch::new(samples, start, out_of_range, self.recycle.clone());
            out.send(Ok(batch)).map_err(|_| ConsumerDropped)?;
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

/// Returns whether a window is one block whose rows, complete and in file order, belong to one batch.
fn is_whole_block(window: &Window, portions: &[Portion]) -> bool {
    window.blocks.len() == 1 && window.keeps_rows() && window.skip == 0 && portions.len() == 1
}
