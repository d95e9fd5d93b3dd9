//! What a feed hands out: batches, and each GPU's part of them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use rankine_cuda::Moment;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::{BatchStream, BlockRow, PackedBatch, Position, StreamOptions};
use rankine_reader::{Error as DataError, Schema};

use super::freed::Freed;
use super::ring::BlockRing;

/// Samples to learn from together, for one GPU or several.
#[derive(Debug, Clone)]
pub struct FedBatch {
    pub(super) len: usize,
    pub(super) start: Position,
    pub(super) parts: Vec<Arc<FedPart>>,
}

/// A GPU's samples of a batch, whose blocks lie there or are copied there. Dropped, it lets go of those that no later
/// batch needs.
#[derive(Debug)]
pub struct FedPart {
    pub(super) batch: Arc<PackedBatch>,
    pub(super) rows: Range<usize>,
    pub(super) number: u64,
    /// When its blocks are there: all of these have passed.
    pub(super) copied: Vec<Arc<Moment>>,
    pub(super) ring: Arc<BlockRing>,
    pub(super) source: Arc<Source>,
    /// The threads that copy to this GPU, and the number by which they know it.
    pub(super) freed: (Arc<[Sender<Freed>]>, Range<usize>, usize),
}

/// Where batches come from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) part: Arc<DatasetPart>,
    pub(super) options: StreamOptions,
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

    /// When its blocks are there: once all of these have passed.
    pub(in crate::cuda) fn copied(&self) -> impl Iterator<Item = &Moment> {
        self.copied.iter().map(|moment| &**moment)
    }

    pub(in crate::cuda) fn ring(&self) -> &BlockRing {
        &self.ring
    }

    /// Each sample's slot, and its row there.
    pub(in crate::cuda) fn rows(&self) -> impl Iterator<Item = [u32; 2]> {
        let slots = self.ring.slots as u32;
        self.batch.rows(self.rows.clone()).map(move |BlockRow { block, row }| [block % slots, row])
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
        let (freed, copiers, gpu) = &self.freed;
        for freed in &freed[copiers.clone()] {
            let (gpu, number, keep_from) = (*gpu, self.number, self.batch.keep_from);
            // Where the thread has ended, nothing waits for it.
            let _ = freed.send(Freed::Batch { gpu, number, keep_from });
        }
    }
}
