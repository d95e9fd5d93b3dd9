//! The batches of a feed, and each GPU's part of them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use rankine_backend::PackedBatch;
use rankine_base::Error as DataError;
use rankine_cuda::Moment;
use rankine_reader::Schema;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::{self, BatchStream, BlockRow, Position, StreamOptions};

use super::release::CopierMessage;
use super::ring::BlockRing;

/// Samples of one step, for one GPU or several.
#[derive(Debug, Clone)]
pub struct FeedBatch {
    pub(super) len: usize,
    pub(super) start: Position,
    pub(super) parts: Vec<Arc<FeedPart>>,
}

/// A GPU's samples of a batch, whose blocks are in its memory or are being copied there. Dropping it releases the
/// blocks that no later batch needs.
#[derive(Debug)]
pub struct FeedPart {
    pub(super) batch: Arc<stream::PackedBatch>,
    pub(super) rows: Range<usize>,
    pub(super) number: u64,
    pub(super) copied: Moment,
    pub(super) ring: Arc<BlockRing>,
    pub(super) source: Arc<Source>,
    /// To the thread that copies to the GPU.
    pub(super) release: Sender<CopierMessage>,
}

/// The source of batches.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) part: Arc<DatasetPart>,
    pub(super) options: StreamOptions,
}

impl FeedBatch {
    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the batch has no samples.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns each GPU's part, in the order of ranks.
    pub fn parts(&self) -> &[Arc<FeedPart>] {
        &self.parts
    }
}

impl PackedBatch for FeedBatch {
    fn samples(&self) -> usize {
        self.len
    }

    fn start(&self) -> Position {
        self.start
    }
}

impl FeedPart {
    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the part has no samples.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the columns.
    pub fn schema(&self) -> &Schema {
        &self.source.part.schema
    }

    /// Returns the moment after which its blocks are complete.
    pub(in crate::cuda) fn copied(&self) -> &Moment {
        &self.copied
    }

    pub(in crate::cuda) fn ring(&self) -> &BlockRing {
        &self.ring
    }

    /// Returns the slot of each sample, and its row there.
    pub(in crate::cuda) fn rows(&self) -> impl Iterator<Item = [u32; 2]> {
        let slots = self.ring.slots as u32;
        self.batch.rows(self.rows.clone()).map(move |BlockRow { block, row }| [block % slots, row])
    }

    /// Describes what is wrong with batches in which the GPU has found an error: the CPU unpacks them again and names
    /// the first one.
    ///
    /// # Panics
    /// If there are none.
    pub fn diagnose(parts: &[Arc<Self>]) -> DataError {
        let start = parts.first().expect("a GPU finds errors in batches").batch.start;
        parts.iter().find_map(|part| part.first_error()).unwrap_or_else(|| DataError::Changed {
            path: None,
            what: format!(
                "in the batch that starts at sample {} of epoch {}, the GPU found ids, labels or bags that the schema \
                 does not allow, and the CPU did not: the memory of the CPU or the GPU is unreliable",
                start.sample, start.epoch
            ),
        })
    }

    /// Unpacks the batch on the CPU and returns the first error.
    fn first_error(&self) -> Option<DataError> {
        let Source { part, options } = &*self.source;
        let again = StreamOptions { start: self.batch.start, prefetch: 1, ..*options };
        match BatchStream::open(Arc::clone(part), &again).map(|mut batches| batches.next()) {
            Err(error) | Ok(Some(Err(error))) => Some(error),
            Ok(_) => None,
        }
    }
}

impl Drop for FeedPart {
    fn drop(&mut self) {
        let Self { number, .. } = *self;
        // If the thread has ended, nothing waits for this.
        let _ = self.release.send(CopierMessage::Batch { number, keep_from: self.batch.keep_from });
    }
}
