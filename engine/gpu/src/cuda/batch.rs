//! Batches and each rank's share of them.

use std::any::Any;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use rankine_reader::Samples;
use rankine_topology::{Rank, Topology};
use rayon::prelude::*;

use super::feed::{FeedBatch, FeedPart};

/// A rank's samples of a batch.
pub(super) enum Batch<'a> {
    Unpacked(Cow<'a, Samples>, Range<usize>),
    Packed(Arc<FeedPart>),
}

impl Batch<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Unpacked(_, samples) => samples.len(),
            Self::Packed(batch) => batch.len(),
        }
    }
}

/// A batch of all ranks.
pub(super) enum GlobalBatch<'a> {
    Unpacked(&'a Samples, Range<usize>),
    Packed(&'a FeedBatch),
}

impl<'a> From<&'a rankine_backend::Batch> for GlobalBatch<'a> {
    fn from(batch: &'a rankine_backend::Batch) -> Self {
        match batch {
            rankine_backend::Batch::Unpacked(batch) => Self::Unpacked(&batch.samples, 0..batch.samples.len),
            rankine_backend::Batch::Packed(batch) => {
                let batch: &dyn Any = &**batch;
                Self::Packed(batch.downcast_ref().expect("packed batches are opened for the model"))
            }
        }
    }
}

impl<'a> GlobalBatch<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Unpacked(_, samples) => samples.len(),
            Self::Packed(batch) => batch.len(),
        }
    }

    /// Returns the share of the only rank of this process.
    pub(super) fn share(self, topology: Topology, rank: Rank) -> Batch<'a> {
        match self {
            Self::Unpacked(batch, samples) => {
                let share = topology.share(samples.len(), rank);
                Batch::Unpacked(Cow::Borrowed(batch), samples.start + share.start..samples.start + share.end)
            }
            Self::Packed(batch) => match batch.parts() {
                [part] => Batch::Packed(Arc::clone(part)),
                parts => panic!("a batch for {} GPUs, but this process has one", parts.len()),
            },
        }
    }

    /// Returns the shares of `count` ranks from `first` on.
    pub(super) fn shares(&self, topology: Topology, first: Rank, count: usize) -> Vec<Batch<'static>> {
        match self {
            Self::Unpacked(batch, samples) => {
                let of_rank = |index| {
                    let share = topology.share(samples.len(), first.plus(index));
                    let own = batch.slice(samples.start + share.start..samples.start + share.end);
                    Batch::Unpacked(Cow::Owned(own), 0..share.len())
                };
                (0..count).into_par_iter().map(of_rank).collect()
            }
            Self::Packed(batch) => {
                let parts = batch.parts();
                assert_eq!(parts.len(), count, "one part per GPU");
                parts.iter().map(|part| Batch::Packed(Arc::clone(part))).collect()
            }
        }
    }
}

/// Divides samples into ranges of at most `size`.
pub(super) fn chunks(batch: &Samples, size: usize) -> impl Iterator<Item = Range<usize>> {
    let len = batch.len;
    (0..len).step_by(size).map(move |first| first..len.min(first + size))
}
