//! Batches on their way to a device: unpacked by the CPU, or packed for a device that unpacks them.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use rankine_reader::dataset::DatasetPart;
use rankine_reader::io::Rung;
use rankine_reader::stream::{self, BatchStream, Position, StreamOptions};
use serde::{Deserialize, Serialize};

use super::error::BackendError;

/// Batches, prepared ahead of the step that uses them.
pub type Batches = Box<dyn BatchSource>;

/// Where batches come from.
pub trait BatchSource: Iterator<Item = Result<Batch, BackendError>> {
    /// Returns how blocks are read.
    fn rung(&self) -> Rung;

    /// Returns the bytes read so far.
    fn bytes_read(&self) -> u64;

    /// Returns the bytes copied to GPUs so far; `None` if batches are unpacked by the CPU.
    fn bytes_copied(&self) -> Option<CopiedBytes> {
        None
    }

    /// Returns how many batches wait to be taken.
    fn ready(&self) -> usize;
}

/// Bytes of blocks that were copied to the GPUs of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedBytes {
    /// From host memory.
    pub from_host: u64,
    /// From one GPU to another.
    pub between_gpus: u64,
}

/// The samples of one step.
#[derive(Debug)]
pub enum Batch {
    /// Unpacked by the CPU.
    Unpacked(stream::Batch),
    /// For the device that opened the batches, which unpacks them.
    Packed(Box<dyn PackedBatch>),
}

/// Samples that a device unpacks. The device finds its own type again by [`Any`].
pub trait PackedBatch: Any + Debug + Send + Sync {
    /// Returns the number of samples.
    fn samples(&self) -> usize;

    /// Returns the position of the first sample.
    fn start(&self) -> Position;
}

/// Batches that the CPU unpacks.
struct UnpackedBatches(BatchStream);

impl Batch {
    /// Starts to read a part that the CPU unpacks.
    ///
    /// # Errors
    /// As [`BatchStream::open`].
    pub fn unpacked(
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
    ) -> Result<Batches, BackendError> {
        Ok(Box::new(UnpackedBatches(BatchStream::open(part, options)?)))
    }

    /// Returns a batch of [`Batch::unpacked`].
    ///
    /// # Panics
    /// If a device unpacks it.
    pub fn as_unpacked(&self) -> &stream::Batch {
        let Self::Unpacked(batch) = self else { unreachable!("the batch was opened for the CPU") };
        batch
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> usize {
        match self {
            Self::Unpacked(batch) => batch.len,
            Self::Packed(batch) => batch.samples(),
        }
    }

    /// Returns the position of the first sample.
    pub fn start(&self) -> Position {
        match self {
            Self::Unpacked(batch) => batch.start,
            Self::Packed(batch) => batch.start(),
        }
    }

    /// Returns the number of ids outside their tables, one count per categorical column; empty if none was counted.
    pub fn out_of_range(&self) -> &[u64] {
        match self {
            Self::Unpacked(batch) => &batch.out_of_range,
            Self::Packed(_) => &[],
        }
    }

    /// Returns the position behind the last sample.
    pub fn end(&self) -> Position {
        let start = self.start();
        Position { sample: start.sample + self.samples() as u64, ..start }
    }
}

impl Iterator for UnpackedBatches {
    type Item = Result<Batch, BackendError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(Batch::Unpacked).map_err(BackendError::from))
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
