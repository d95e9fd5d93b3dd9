//! Batches and each rank's share of them.

use std::any::Any;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use rankine_backend::PackedBatch;
use rankine_reader::Samples;
use rankine_topology::{Rank, Topology};
use rayon::prelude::*;

use super::feed::{FeedBatch, FeedPart};

/// A rank's samples of a batch.
pub(super) enum Batch<'a> {
    Unpacked(Cow<'a, Samples>, Range<usize>),
    /// One part to be learned from, or several that are scored together.
    Packed(Vec<Arc<FeedPart>>),
}

impl Batch<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Unpacked(_, samples) => samples.len(),
            Self::Packed(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }
}

/// A batch of all ranks, or several that are scored together.
pub(super) enum GlobalBatch<'a> {
    /// Samples at these positions of a batch. Those of this process's ranks, or more, are at hand: in `samples`, of
    /// which the first one is at position `first`.
    Unpacked {
        samples: &'a Samples,
        first: usize,
        positions: Range<usize>,
    },
    Packed(Vec<&'a FeedBatch>),
}

impl<'a> From<&'a rankine_backend::Batch> for GlobalBatch<'a> {
    fn from(batch: &'a rankine_backend::Batch) -> Self {
        match batch {
            rankine_backend::Batch::Unpacked(batch) => {
                Self::Unpacked { samples: &batch.samples, first: batch.first, positions: 0..batch.len }
            }
            rankine_backend::Batch::Packed(batch) => Self::Packed(vec![feed_batch(&**batch)]),
        }
    }
}

impl<'a> GlobalBatch<'a> {
    /// Samples of a batch that is at hand as a whole.
    pub(super) fn unpacked(samples: &'a Samples, positions: Range<usize>) -> Self {
        Self::Unpacked { samples, first: 0, positions }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Unpacked { positions, .. } => positions.len(),
            Self::Packed(batches) => batches.iter().map(|batch| batch.len()).sum(),
        }
    }

    /// Returns the share of the only rank of this process.
    pub(super) fn share(self, topology: Topology, rank: Rank) -> Batch<'a> {
        match self {
            Self::Unpacked { samples, first, positions } => {
                Batch::Unpacked(Cow::Borrowed(samples), share_of(&positions, topology, rank, first))
            }
            Self::Packed(batches) => parts_of(&batches, 1).swap_remove(0),
        }
    }

    /// Returns the shares of `count` ranks from `first` on.
    pub(super) fn shares(&self, topology: Topology, first: Rank, count: usize) -> Vec<Batch<'static>> {
        match self {
            Self::Unpacked { samples, first: at_hand, positions } => {
                let of_rank = |index| {
                    let share = share_of(positions, topology, first.plus(index), *at_hand);
                    let len = share.len();
                    Batch::Unpacked(Cow::Owned(samples.slice(share)), 0..len)
                };
                (0..count).into_par_iter().map(of_rank).collect()
            }
            Self::Packed(batches) => parts_of(batches, count),
        }
    }
}

/// Returns a packed batch as the feed made it.
pub(super) fn feed_batch(batch: &dyn PackedBatch) -> &FeedBatch {
    let batch: &dyn Any = batch;
    batch.downcast_ref().expect("packed batches are opened for the model")
}

/// Returns each GPU's parts of some batches.
fn parts_of(batches: &[&FeedBatch], gpus: usize) -> Vec<Batch<'static>> {
    let of_gpu = |gpu: usize| {
        let part = |batch: &&FeedBatch| {
            assert_eq!(batch.parts().len(), gpus, "one part per GPU");
            Arc::clone(&batch.parts()[gpu])
        };
        Batch::Packed(batches.iter().map(part).collect())
    };
    (0..gpus).map(of_gpu).collect()
}

/// Returns a rank's share of the samples at some positions, counted from the position `first`.
fn share_of(positions: &Range<usize>, topology: Topology, rank: Rank, first: usize) -> Range<usize> {
    let share = topology.share(positions.len(), rank);
    // In this order: the first rank's samples may start behind the first position.
    positions.start + share.start - first..positions.start + share.end - first
}

/// Divides samples into ranges of at most `size`.
pub(super) fn chunks(batch: &Samples, size: usize) -> impl Iterator<Item = Range<usize>> {
    let len = batch.len;
    (0..len).step_by(size).map(move |first| first..len.min(first + size))
}
