//! Batches on their way to a device: unpacked by the CPU, or packed for a GPU that unpacks them.

use std::sync::Arc;

use rankine_reader::dataset::DatasetPart;
use rankine_reader::io::Rung;
use rankine_reader::stream::{self, BatchStream, Position, StreamOptions};

use super::super::TrainError;
use super::gpu::FeedBatch;

/// Batches, prepared ahead of the step that uses them.
pub(in super::super) struct Batches {
    /// How blocks are read.
    rung: Rung,
    batches: Box<dyn Iterator<Item = Result<Batch, TrainError>>>,
}

/// The samples of one step.
pub(in super::super) enum Batch {
    Unpacked(stream::Batch),
    #[allow(dead_code, reason = "only builds with CUDA have GPUs that unpack batches")]
    Packed(FeedBatch),
}

impl Batches {
    /// Batches from a source that reads blocks as `rung` says.
    pub(super) fn new(
        rung: Rung,
        batches: impl Iterator<Item = Result<Batch, TrainError>> + 'static,
    ) -> Self {
        Self { rung, batches: Box::new(batches) }
    }

    /// Starts to read a part that the CPU unpacks.
    ///
    /// # Errors
    /// As [`BatchStream::open`].
    pub(super) fn unpacked(
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
    ) -> Result<Self, TrainError> {
        let stream = BatchStream::open(part, options)?;
        Ok(Self::new(stream.rung(), stream.map(|batch| Ok(Batch::Unpacked(batch?)))))
    }

    /// How blocks are read.
    pub(in super::super) fn rung(&self) -> Rung {
        self.rung
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.next()
    }
}

impl Batch {
    /// Samples.
    pub(in super::super) fn len(&self) -> usize {
        match self {
            Self::Unpacked(batch) => batch.samples.len,
            Self::Packed(batch) => batch.len(),
        }
    }

    /// The position of its first sample.
    pub(in super::super) fn start(&self) -> Position {
        match self {
            Self::Unpacked(batch) => batch.start,
            Self::Packed(batch) => batch.start(),
        }
    }

    /// Ids outside their tables, one count per categorical column; empty if none was counted.
    pub(in super::super) fn out_of_range(&self) -> &[u64] {
        match self {
            Self::Unpacked(batch) => &batch.out_of_range,
            Self::Packed(_) => &[],
        }
    }

    /// The position behind its last sample.
    pub(in super::super) fn end(&self) -> Position {
        let start = self.start();
        Position { sample: start.sample + self.len() as u64, ..start }
    }
}
