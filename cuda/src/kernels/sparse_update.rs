//! `sparse_update.cu`.

use super::names::{Family, team};
use super::team::{self, THREADS, by_width};
use super::{Element, Feature, Id, Kernel, Pair, UpdateContext};
use crate::runtime::{Lane, Pointer, Result};

/// Sums the gradients of each distinct row and updates it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SparseUpdate<T> {
    /// Sorted. A bag is the feature's number above `sample_bits` and the sample's below.
    pub pairs: Pointer<Pair>,
    /// How many pairs.
    pub count: Pointer<u32>,
    /// Per slot: its row among those of all shards.
    pub rows: Pointer<u32>,
    /// All features.
    pub features: Pointer<Feature>,
    /// Where the bags of ragged columns start.
    pub offsets: Pointer<u32>,
    /// Per pair whose feature is pooled by factors: the factor of its gradient.
    pub factors: Pointer<f32>,
    /// `[sample][stride]`, then from `keys` on those with respect to keys.
    pub gradients: Pointer<T>,
    /// [`SparseUpdate::parts_len`] elements: partial sums of rows that span several blocks.
    pub parts: Pointer<f32>,
    /// Parameters of the update.
    pub context: UpdateContext,
    /// Bits of a bag that are the sample's.
    pub sample_bits: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// A quarter of the elements of the widest row, rounded up; at most [`SparseUpdate::VECTORS_MAX`].
    pub vectors: u32,
    /// Where the gradients with respect to keys start, a multiple of 4.
    pub keys: u32,
}

impl<T> SparseUpdate<T> {
    /// The most vectors of four elements per row.
    pub const VECTORS_MAX: u32 = team::VECTORS_MAX;

    /// Elements of `parts`.
    pub fn parts_len(room: usize, vectors: usize) -> usize {
        team::parts_len(room, vectors)
    }
}

impl<T: Element> SparseUpdate<T> {
    /// Enqueues the update for up to `room` pairs. `lean` says that all tables are f32 and learn by SGD or
    /// element-wise Adagrad, which is faster.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Panics
    /// If no kernel supports rows this wide.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue(&self, lane: &Lane, room: u32, lean: bool) -> Result<()> {
        // SAFETY: the caller vouches for the addresses; the team has the lanes and vectors of the widest row.
        unsafe { by_width!(self.vectors, self.enqueue_by(lane, room, lean)) }
    }

    unsafe fn enqueue_by<const LANES: u32, const VECTORS: u32>(
        &self,
        lane: &Lane,
        room: u32,
        lean: bool,
    ) -> Result<()> {
        let (runs, parts) = team::runs_grid(room, LANES);
        // SAFETY: as for `enqueue`.
        unsafe {
            if lean && VECTORS == 1 {
                lane.launch(&LeanRuns::<T, LANES>(*self), (runs, 1))?;
            } else {
                lane.launch(&UpdateRuns::<T, LANES, VECTORS>(*self), (runs, 1))?;
            }
            lane.launch(&UpdateParts::<T, LANES, VECTORS>(*self), (parts, 1))
        }
    }
}

/// Updates the rows that lie within one block's pairs, by teams of `LANES` lanes with `VECTORS` vectors each.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct UpdateRuns<T, const LANES: u32, const VECTORS: u32>(SparseUpdate<T>);

/// The same if all tables are lean and no row needs more than one vector per lane.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct LeanRuns<T, const LANES: u32>(SparseUpdate<T>);

/// Updates the rows that continue from one block to the next, after either of those.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct UpdateParts<T, const LANES: u32, const VECTORS: u32>(SparseUpdate<T>);

// SAFETY: `sparse_update.cu` has the same struct, and its blocks take this much shared memory.
unsafe impl<T: Element, const LANES: u32, const VECTORS: u32> Kernel for UpdateRuns<T, LANES, VECTORS> {
    const ID: Id = Family::SparseUpdate.variant([T::KIND as usize, team(LANES, VECTORS)]);
    const THREADS: u32 = THREADS;

    fn shared_bytes(&self) -> u32 {
        team::runs_bytes(LANES, VECTORS)
    }
}

// SAFETY: as for `UpdateRuns`.
unsafe impl<T: Element, const LANES: u32> Kernel for LeanRuns<T, LANES> {
    const ID: Id = Family::LeanUpdate.variant([T::KIND as usize, team(LANES, 1)]);
    const THREADS: u32 = THREADS;

    fn shared_bytes(&self) -> u32 {
        team::runs_bytes(LANES, 1)
    }
}

// SAFETY: as for `UpdateRuns`.
unsafe impl<T: Element, const LANES: u32, const VECTORS: u32> Kernel for UpdateParts<T, LANES, VECTORS> {
    const ID: Id = Family::SparseParts.variant([team(LANES, VECTORS)]);
    const THREADS: u32 = THREADS;

    fn shared_bytes(&self) -> u32 {
        team::parts_bytes(LANES, VECTORS)
    }
}
