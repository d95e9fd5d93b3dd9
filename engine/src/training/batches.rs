//! Batches on their way to a learner: unpacked by the CPU, or packed for a GPU that unpacks them.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use rankine_reader::dataset::BlockCoding;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::io::Rung;
use rankine_reader::stream::{self, BatchStream, Position, StreamOptions};

use super::TrainError;

/// Batches, prepared ahead of the step that uses them.
pub(super) enum Batches {
    Unpacked(BatchStream),
    #[cfg(feature = "cuda")]
    Packed(crate::cuda::Feed),
}

/// The samples of one step.
pub(super) enum Batch {
    Unpacked(stream::Batch),
    #[cfg(feature = "cuda")]
    Packed(crate::cuda::FedBatch),
}

impl Batches {
    /// Starts to read a part for a learner in host memory.
    ///
    /// # Errors
    /// As [`BatchStream::open`].
    pub(super) fn unpacked(
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
    ) -> Result<Self, TrainError> {
        Ok(Self::Unpacked(BatchStream::open(part, options)?))
    }

    /// Starts to read a part for the GPUs of a model. The CPU unpacks raw records and data whose ids have rules; GPUs
    /// unpack everything else, and keep the blocks if they are to stay resident.
    ///
    /// # Errors
    /// As [`crate::cuda::Feed::open`]; [`TrainError::Device`] if memory does not suffice.
    #[cfg(feature = "cuda")]
    pub(super) fn for_gpus(
        model: &crate::cuda::CudaModel,
        part: impl Into<Arc<DatasetPart>>,
        options: &StreamOptions,
        stay: bool,
    ) -> Result<Self, TrainError> {
        let part = part.into();
        match part.coding {
            BlockCoding::Packed { .. } if part.ids.all_fail() => {
                match crate::cuda::Feed::open_shares(model.shares(), part, options, stay) {
                    Ok(feed) => Ok(Self::Packed(feed)),
                    Err(crate::cuda::Error::Gpu(error)) => Err(TrainError::Device(format!(
                        "not enough memory to stage batches for the GPU: {error}. A smaller \
                     train.shuffle_window_blocks or train.batch_size needs less"
                    ))),
                    Err(error) => Err(error.into()),
                }
            }
            // Rules for ids are applied to whole batches, by the CPU.
            BlockCoding::Packed { .. } | BlockCoding::Records(_) => Self::unpacked(part, options),
        }
    }

    /// How blocks are read.
    pub(super) fn rung(&self) -> Rung {
        match self {
            Self::Unpacked(stream) => stream.rung(),
            #[cfg(feature = "cuda")]
            Self::Packed(feed) => feed.rung(),
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Unpacked(stream) => Some(stream.next()?.map(Batch::Unpacked).map_err(TrainError::from)),
            #[cfg(feature = "cuda")]
            Self::Packed(feed) => Some(feed.next()?.map(Batch::Packed).map_err(TrainError::from)),
        }
    }
}

impl Batch {
    /// Samples.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Unpacked(batch) => batch.samples.len,
            #[cfg(feature = "cuda")]
            Self::Packed(batch) => batch.len(),
        }
    }

    /// The position of its first sample.
    pub(super) fn start(&self) -> Position {
        match self {
            Self::Unpacked(batch) => batch.start,
            #[cfg(feature = "cuda")]
            Self::Packed(batch) => batch.start(),
        }
    }

    /// Ids outside their tables, one count per categorical column; empty if none was counted.
    pub(super) fn out_of_range(&self) -> &[u64] {
        match self {
            Self::Unpacked(batch) => &batch.out_of_range,
            #[cfg(feature = "cuda")]
            Self::Packed(_) => &[],
        }
    }

    /// The position behind its last sample.
    pub(super) fn end(&self) -> Position {
        let start = self.start();
        Position { sample: start.sample + self.len() as u64, ..start }
    }
}
