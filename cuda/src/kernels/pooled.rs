//! `pooled.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Addresses, Element, Id, Kernel, LinkCounts};
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
    /// How bags are pooled: a [`super::BagPooling`].
    pub pooling: u32,
    /// Rows of its table.
    pub rows: u32,
    /// The rank that owns all rows, by its number among the owners, or its node; or [`super::Feature::TURNS`].
    pub owner: u32,
    /// Elements, a multiple of 4.
    pub dim: u32,
    /// Where its vector starts within a sample's vectors.
    pub vector_offset: u32,
    /// Where its part's vector starts within a sample's parts at an owner.
    pub part_offset: u32,
    /// Where its ids start at an owner, among those of this rank.
    pub part_ids: u32,
    /// Where the factors of the column's ids start, if it is pooled by factors.
    pub factors: u32,
    /// Where these factors start at an owner, among the factors of this rank.
    pub part_factors: u32,
}

/// A rank's side of pooling by owners: splits bags into parts, one per owner, and adds up what owners have pooled. Over
/// several nodes, a rank first splits its bags among nodes, and then the parts that it receives among its node's ranks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Pooling {
    /// All such features.
    pub features: Pointer<PooledFeature>,
    /// Per source, indexed as the features say.
    pub ids: Pointer<u32>,
    /// Of ids in columns that are pooled by factors, per source, indexed as the features say.
    pub factors: Pointer<f32>,
    /// Per source, indexed as the features say.
    pub offsets: Pointer<u32>,
    /// The number of samples; those after them have no ids, and vectors of zeros.
    pub samples_count: Pointer<u32>,
    /// `[owner][feature][sources * samples + 1]`: where each part starts.
    pub starts: Pointer<u32>,
    /// Per owner, this rank's: `[feature][sources * samples + 1]`.
    pub their_starts: Addresses,
    /// Per owner, this rank's: indexed as the features say.
    pub their_ids: Addresses,
    /// The same for the factors of these ids.
    pub their_factors: Addresses,
    /// `[owner][source][sample][width]`: vectors of parts.
    pub parts: Pointer<u32>,
    /// Per owner, this rank's: `[source][sample][their_stride]`.
    pub their_gradients: Addresses,
    /// Per source: `[sample][stride]`.
    pub vectors: Addresses,
    /// `[source][sample][stride]`
    pub gradients: Pointer<u32>,
    /// Counts ids that are out of range for their table; they are replaced by the last row.
    pub faults: Pointer<u32>,
    /// What this rank sends over the links to these owners; [`Pooling::send`] counts the parts of a step.
    pub counts: Pointer<LinkCounts>,
    /// Words from one source's ids to the next one's.
    pub ids_spacing: u64,
    /// Words from one source's factors to the next one's.
    pub factors_spacing: u64,
    /// Words from one source's offsets to the next one's.
    pub offsets_spacing: u64,
    /// Features.
    pub features_count: u32,
    /// Where bags come from: 1 for this rank's own bags, or the number of ranks of its rail.
    pub sources: u32,
    /// The most samples of a source.
    pub samples: u32,
    /// Number of owners: ranks of a node, or nodes.
    pub owners: u32,
    /// Of rows that take turns, how many follow each other at an owner.
    pub owner_rows: u32,
    /// For rows that take turns, an id is divided by this before it is sent.
    pub turns: u32,
    /// Elements from one sample's parts to the next one's, a multiple of 4.
    pub width: u32,
    /// Elements from one sample's gradients to the next one's at an owner, a multiple of 4.
    pub their_stride: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// This rank's number among the owners.
    pub rank: u32,
    /// 1 if ids and gradients are sent in messages of fixed size, as lengths and vectors always are; else 0.
    pub contained: u32,
    /// The first samples of each source, whose vectors are added up.
    pub added: u32,
}

const _: () = assert!(size_of::<PooledFeature>() == 48 && size_of::<Pooling>() == 552);

impl Pooling {
    /// Enqueues splitting bags into parts and writing their ids to the owners of their rows.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn cut(&self, lane: &Lane) -> Result<()> {
        let threads = (self.samples.div_ceil(PooledCut::THREADS), self.columns());
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            lane.launch(&PooledCount(*self), threads)?;
            lane.launch(&PooledScan(*self), (self.features_count, self.owners))?;
            lane.launch(&PooledCut(*self), threads)
        }
    }

    /// The columns of bags: one per source and feature.
    fn columns(&self) -> u32 {
        self.sources * self.features_count
    }

    /// Enqueues adding up the vectors of parts, with `blocks` blocks per source and feature.
    ///
    /// # Safety
    /// See [`Lane::launch`]; the elements of all matrices must be `T`.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn add<T: Element>(&self, lane: &Lane, blocks: u32) -> Result<()> {
        // SAFETY: the caller vouches for the addresses.
        unsafe { lane.launch(&PooledAdd::<T>(*self, Default::default()), (blocks, self.columns())) }
    }

    /// Enqueues sending bags' gradients to each owner of a part, with `blocks` blocks per source and feature, and
    /// counting what this rank and the owners send each other for the parts of these bags.
    ///
    /// # Safety
    /// As for [`Pooling::add`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn send<T: Element>(&self, lane: &Lane, blocks: u32) -> Result<()> {
        // SAFETY: the caller vouches for the addresses.
        unsafe { lane.launch(&PooledSend::<T>(*self, Default::default()), (blocks, self.columns())) }
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
