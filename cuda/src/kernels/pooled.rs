//! `pooled.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Element, Id, Kernel, LinkCounts, RANKS_MAX};
use crate::runtime::{Lane, Pointer, Result};

/// A feature of a rank's batch, for a table (or some of its columns) whose owners pool.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct PooledFeature {
    /// Where the column's ids start.
    pub ids: u32,
    /// Where the column's offsets start, or [`super::Feature::FIXED`].
    pub offsets: u32,
    /// Ids per sample; with offsets, the most ids per sample.
    pub hotness: u32,
    /// 1 if a bag's vector is the mean of its rows, 0 if it is their sum.
    pub mean: u32,
    /// Rows of its table.
    pub rows: u32,
    /// The rank that owns all rows, or [`super::Feature::TURNS`].
    pub owner: u32,
    /// Elements, a multiple of 4.
    pub dim: u32,
    /// Where its vector starts within a sample's vectors.
    pub vector_offset: u32,
    /// Where its part's vector starts within a sample's parts at an owner.
    pub part_offset: u32,
    /// Where its ids start at an owner, among those of this rank.
    pub part_ids: u32,
}

/// A rank's side of pooling by owners: splits bags into parts, one per owner, and adds up what owners have pooled.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Pooling {
    /// All such features.
    pub features: Pointer<PooledFeature>,
    /// Indexed as the features say.
    pub ids: Pointer<u32>,
    /// Indexed as the features say.
    pub offsets: Pointer<u32>,
    /// The number of samples; those after them have no ids, and vectors of zeros.
    pub samples_count: Pointer<u32>,
    /// `[owner][feature][samples + 1]`: where each part starts.
    pub starts: Pointer<u32>,
    /// Per owner, this rank's: `[feature][samples + 1]`.
    pub their_starts: [Pointer<u32>; RANKS_MAX],
    /// Per owner, this rank's: indexed as the features say.
    pub their_ids: [Pointer<u32>; RANKS_MAX],
    /// `[owner][sample][width]`: vectors of parts.
    pub parts: Pointer<u32>,
    /// Per owner, this rank's: `[sample][their_stride]`.
    pub their_gradients: [Pointer<u32>; RANKS_MAX],
    /// `[sample][stride]`
    pub vectors: Pointer<u32>,
    /// `[sample][stride]`
    pub gradients: Pointer<u32>,
    /// Counts ids that are out of range for their table; they are replaced by the last row.
    pub faults: Pointer<u32>,
    /// What this rank sends within its node; [`Pooling::send`] counts the parts of a step.
    pub counts: Pointer<LinkCounts>,
    /// Features.
    pub features_count: u32,
    /// The most samples.
    pub samples: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Elements from one sample's parts to the next one's, a multiple of 4.
    pub width: u32,
    /// Elements from one sample's gradients to the next one's at an owner, a multiple of 4.
    pub their_stride: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// This rank.
    pub rank: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<PooledFeature>() == 40 && size_of::<Pooling>() == 304);

impl Pooling {
    /// Enqueues splitting bags into parts and writing their ids to the owners of their rows.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn cut(&self, lane: &Lane) -> Result<()> {
        let threads = (self.samples.div_ceil(PooledCut::THREADS), self.features_count);
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            lane.launch(&PooledCount(*self), threads)?;
            lane.launch(&PooledScan(*self), (self.features_count, self.ranks))?;
            lane.launch(&PooledCut(*self), threads)
        }
    }

    /// Enqueues adding up the vectors of parts, with `blocks` blocks per feature.
    ///
    /// # Safety
    /// See [`Lane::launch`]; the elements of all matrices must be `T`.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn add<T: Element>(&self, lane: &Lane, blocks: u32) -> Result<()> {
        // SAFETY: the caller vouches for the addresses.
        unsafe { lane.launch(&PooledAdd::<T>(*self, Default::default()), (blocks, self.features_count)) }
    }

    /// Enqueues sending bags' gradients to each owner of a part, with `blocks` blocks per feature, and counting what
    /// the ranks of the node send each other for the parts of this rank's bags.
    ///
    /// # Safety
    /// As for [`Pooling::add`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn send<T: Element>(&self, lane: &Lane, blocks: u32) -> Result<()> {
        // SAFETY: the caller vouches for the addresses.
        unsafe { lane.launch(&PooledSend::<T>(*self, Default::default()), (blocks, self.features_count)) }
    }
}

#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct PooledCount(Pooling);

#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct PooledScan(Pooling);

#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct PooledCut(Pooling);

#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct PooledAdd<T>(Pooling, std::marker::PhantomData<T>);

#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct PooledSend<T>(Pooling, std::marker::PhantomData<T>);

// SAFETY: `pooled.cu` has the same struct.
unsafe impl Kernel for PooledCount {
    const ID: Id = Family::PooledCount.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `pooled.cu` has the same struct.
unsafe impl Kernel for PooledScan {
    const ID: Id = Family::PooledScan.variant([]);
    const THREADS: u32 = 1024;
}

// SAFETY: `pooled.cu` has the same struct.
unsafe impl Kernel for PooledCut {
    const ID: Id = Family::PooledCut.variant([]);
    const THREADS: u32 = 256;
}

// SAFETY: `pooled.cu` has the same struct.
unsafe impl<T: Element> Kernel for PooledAdd<T> {
    const ID: Id = Family::PooledAdd.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}

// SAFETY: `pooled.cu` has the same struct.
unsafe impl<T: Element> Kernel for PooledSend<T> {
    const ID: Id = Family::PooledSend.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}
