//! Batches on their way to a device: unpacked by the CPU, or packed for a GPU that unpacks them.

use std::sync::Arc;

use rankine_reader::dataset::DatasetPart;
use rankine_reader::io::Rung;
use rankine_reader::stream::{self, BatchStream, Position, StreamOptions};

use super::gpu::FeedBatch;
use crate::training::error::TrainError;

/// Batches, prepared ahead of the step that uses them.
pub(in crate::training) struct Batches(Box<dyn BatchSource>);

/// Where batches come from.
pub(super) trait BatchSource: Iterator<Item = Result<Batch, TrainError>> {
    /// How blocks are read.
    fn rung(&self) -> Rung;

    /// Bytes read so far.
    fn bytes_read(&self) -> u64;

    /// Batches that wait to be taken.
    fn ready(&self) -> usize;
}

/// Batches that the CPU unpacks.
struct UnpackedBatches(BatchStream);

/// The samples of one step.
pub(in crate::training) enum Batch {
    Unpacked(stream::Batch),
    #[allow(dead_code, reason = "only builds with CUDA have GPUs that unpack batches")]
    Packed(FeedBatch),
}

impl Batches {
    /// Batches from a source.
    pub(super) fn new(source: impl BatchSource + 'static) -> Self {
        Self(Box::new(source))
    }

    /// Starts to read a part that the CPU unpacks.
    ///
    /// # Errors
    /// As [`BatchStream::open`].
    pub(super) fn unpacked(
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
    ) -> Result<Self, TrainError> {
        Ok(Self::new(UnpackedBatches(BatchStream::open(part, options)?)))
    }

    /// How blocks are read.
    pub(in crate::training) fn rung(&self) -> Rung {
        self.0.rung()
    }

    /// Bytes read so far.
    pub(in crate::training) fn bytes_read(&self) -> u64 {
        self.0.bytes_read()
    }

    /// Batches that wait to be taken.
    pub(in crate::training) fn ready(&self) -> usize {
        self.0.ready()
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl Iterator for UnpackedBatches {
    type Item = Result<Batch, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(Batch::Unpacked).map_err(TrainError::from))
    }
}

impl BatchSource for UnpackedBatches {
    fn rung(&self) -> Rung {
        self.0.rung()
    }

    fn bytes_read(&self) -> u64 {
        self.0.bytes().get()
    }

    fn ready(&self) -> usize {
        self.0.ready()
    }
}

impl Batch {
    /// Samples.
    pub(in crate::training) fn len(&self) -> usize {
        match self {
            Self::Unpacked(batch) => batch.samples.len,
            Self::Packed(batch) => batch.len(),
        }
    }

    /// The position of its first sample.
    pub(in crate::training) fn start(&self) -> Position {
        match self {
            Self::Unpacked(batch) => batch.start,
            Self::Packed(batch) => batch.start(),
        }
    }

    /// Ids outside their tables, one count per categorical column; empty if none was counted.
    pub(in crate::training) fn out_of_range(&self) -> &[u64] {
        match self {
            Self::Unpacked(batch) => &batch.out_of_range,
            Self::Packed(_) => &[],
        }
    }

    /// The position behind its last sample.
    pub(in crate::training) fn end(&self) -> Position {
        let start = self.start();
        Position { sample: start.sample + self.len() as u64, ..start }
    }
}
