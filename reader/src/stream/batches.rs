//! Batches of unpacked samples, made ahead of whoever takes them.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::background::{Background, Stop};
use crate::dataset::DatasetPart;
use crate::error::{Error, Result};
use crate::io::{Rung, SlabRing};
use crate::samples::Samples;
use crate::stream::window::RowWindow;
use crate::stream::{BlockStream, PackedBlock, Plan, Position, StreamOptions, Window};

/// Some samples that are learnt from together. Dropped, it gives its memory to a batch to come.
#[derive(Debug)]
pub struct Batch {
    /// The samples. They may be taken out; the memory is then the taker's.
    pub samples: Samples,
    /// Where it begins.
    pub start: Position,
    /// Where the stream goes on: a stream started there yields what would come next.
    pub end: Position,
    /// How many ids were no rows of their tables, and were dealt with by the part's rules: one number a categorical
    /// column, or none where all such ids are errors.
    pub out_of_range: Vec<u64>,
    recycle: Sender<Samples>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        // Where the stream is gone, or has enough to reuse, the memory is freed.
        let _ = self.recycle.try_send(std::mem::take(&mut self.samples));
    }
}

/// An iterator over batches, which a thread of its own makes ahead: it checks and unpacks the blocks that a second one
/// reads. After an error it ends; dropped, it stops both threads after the block at hand.
///
/// Memory: the ring ([`BlockStream::ring_for`]: depth + 4 slabs of the largest block's size), one window unpacked, and
/// `prefetch + 2` batches besides those that the consumer holds. An unpacked sample takes 4 bytes a label, dense column
/// and categorical column, and 8 an id.
#[derive(Debug)]
pub struct BatchStream {
    rung: Rung,
    batches: Background<Result<Batch>, SlabRing>,
}

impl BatchStream {
    /// Starts to read and unpack.
    ///
    /// # Errors
    /// See [`BlockStream::with_ring`] and [`Plan::new`]; [`Error::Invalid`] for batches of no samples. Later errors
    /// come through the iterator.
    pub fn open(part: impl Into<Arc<DatasetPart>>, options: &StreamOptions) -> Result<Self> {
        let part = part.into();
        let plan = Plan::new(&part, options.order, options.epochs, options.start)?;
        Self::over(BlockStream::open(part, plan, &options.io)?, options)
    }

    /// The same, reading into a ring of the caller's.
    ///
    /// # Errors
    /// See [`BatchStream::open`].
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
            return Err(Error::invalid(
                "a stream of batches needs a batch size and a prefetch of at least 1",
            ));
        }
        let rung = blocks.rung();
        // As many as there can be at once, but for those that the consumer hoards.
        let (recycle, recycled) = bounded(options.prefetch + 2);
        let assembler =
            Assembler { part: Arc::clone(blocks.part()), batch_size: options.batch_size, recycle, recycled };
        let batches = Background::spawn("rankine-batches", options.prefetch, move |out, stop| {
            assembler.run(blocks, out, stop)
        })?;
        Ok(Self { rung, batches })
    }

    /// The rung that is used.
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// Stops reading and gives the ring back, for the next stream.
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

/// What makes batches of blocks.
struct Assembler {
    part: Arc<DatasetPart>,
    batch_size: usize,
    recycle: Sender<Samples>,
    recycled: Receiver<Samples>,
}

/// Nobody takes batches any more.
struct Stopped;

impl Assembler {
    fn run(self, mut blocks: BlockStream, out: &Sender<Result<Batch>>, stop: &Stop) -> SlabRing {
        let mut window = RowWindow::new(&self.part.schema);
        let mut unpacked = Samples::new(&self.part.schema);
        let mut batch = self.empty();
        for block in &mut blocks {
            if stop.is_asked() {
                break;
            }
            let sent = match block {
                Ok(block) if self.fits_whole(&block, &batch) => {
                    // Straight to where it belongs, without a copy in between.
                    block
                        .decode_into(&mut batch)
                        .map(|()| self.send_if_full(&block.window, block.window.samples, &mut batch, out))
                }
                Ok(block) => {
                    if block.place == 0 {
                        window.clear();
                    }
                    unpacked.clear();
                    let decoded = block.decode_into(&mut unpacked);
                    let (plan, complete) = (Arc::clone(&block.window), block.completes_window());
                    // Unpacked, it is a copy: the slab can be read into while the window is cut up.
                    drop(block);
                    decoded.map(|()| {
                        if plan.keeps_rows() {
                            let append = |batch: &mut Samples, rows| batch.append(&unpacked, rows);
                            return self.deliver(&plan, unpacked.len, &mut batch, out, append);
                        }
                        window.push(&unpacked);
                        if !complete {
                            return Ok(());
                        }
                        let order = plan.shuffled_rows().expect("rows that are not kept are shuffled");
                        let gather =
                            |batch: &mut Samples, rows: Range<usize>| window.gather(&order[rows], batch);
                        self.deliver(&plan, window.len(), &mut batch, out, gather)
                    })
                }
                Err(error) => Err(error),
            };
            let sent = sent.unwrap_or_else(|error| {
                // Where nobody takes it, nobody misses it.
                let _ = out.send(Err(error));
                Err(Stopped)
            });
            if sent.is_err() {
                break;
            }
        }
        blocks.close()
    }

    /// Whether a block is a window of its own whose rows, all of them and as they are, come next in the batch.
    fn fits_whole(&self, block: &PackedBlock, batch: &Samples) -> bool {
        let window = &block.window;
        let straight = window.blocks.len() == 1 && window.keeps_rows() && window.skip == 0;
        straight && batch.len + window.samples as usize <= self.batch_size
    }

    /// Cuts a window of `len` samples into batches: `take` appends a range of them, in the window's order. What is left
    /// over waits in `batch` for the next window.
    fn deliver(
        &self,
        window: &Window,
        len: usize,
        batch: &mut Samples,
        out: &Sender<Result<Batch>>,
        take: impl Fn(&mut Samples, Range<usize>),
    ) -> Result<(), Stopped> {
        let mut from = window.skip as usize;
        while from < len {
            let to = len.min(from + self.batch_size - batch.len);
            take(batch, from..to);
            from = to;
            self.send_if_full(window, to as u32, batch, out)?;
        }
        Ok(())
    }

    /// Hands the batch on where it is full or the epoch ends, `delivered` rows of the window being in batches.
    fn send_if_full(
        &self,
        window: &Window,
        delivered: u32,
        batch: &mut Samples,
        out: &Sender<Result<Batch>>,
    ) -> Result<(), Stopped> {
        let end = Position { epoch: window.epoch, sample: window.first + u64::from(delivered) };
        if batch.len < self.batch_size && end.sample < self.part.samples {
            return Ok(());
        }
        let mut samples = std::mem::replace(batch, self.empty());
        let out_of_range = self.part.ids.apply(&mut samples);
        let start = Position { sample: end.sample - samples.len as u64, ..end };
        let batch = Batch { samples, start, end, out_of_range, recycle: self.recycle.clone() };
        out.send(Ok(batch)).map_err(|_| Stopped)
    }

    /// A batch to fill, in used memory where there is some.
    fn empty(&self) -> Samples {
        let schema = &self.part.schema;
        let fits = |samples: &Samples| {
            samples.labels.len() == schema.labels.len()
                && samples.dense_columns == schema.dense.len()
                && samples.categorical.len() == schema.categorical.len()
        };
        // What its taker has put another thing into, or taken columns from, is not used again.
        match self.recycled.try_recv() {
            Ok(mut samples) if fits(&samples) => {
                samples.clear();
                samples
            }
            _ => Samples::new(schema),
        }
    }
}
