//! `positions.cu`.

use super::names::Family;
use super::{Element, Id, Kernel};
use crate::runtime::{Lane, Pointer, Result};

const THREADS: u32 = 256;
/// Threads of the gradients' kernel, as far as there are slices.
const GRADIENT_THREADS: usize = 1 << 18;
/// The most slices.
const SLICES_MAX: usize = 256;

/// The learned vectors of the positions of a sequence.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Positions<T> {
    /// `[position][width]`: the vectors are added to them.
    pub keys: Pointer<T>,
    /// `[position][width]`: with respect to the keys.
    pub key_gradients: Pointer<T>,
    /// Where the positions of each sample start, then the end.
    pub offsets: Pointer<u32>,
    /// The number of samples; later ones have no positions.
    pub samples_count: Pointer<u32>,
    /// `[length_max][width]`
    pub vectors: Pointer<T>,
    /// `[slice][columns]`: sums of the gradients with respect to the vectors; padding is 0.
    pub parts: Pointer<f32>,
    /// Samples.
    pub samples: u32,
    /// Elements of a key, a multiple of 4.
    pub width: u32,
    /// The most positions of a sample.
    pub length_max: u32,
    /// Elements of all vectors with the padding after them, a multiple of 4.
    pub columns: u32,
    /// 1 if positions are counted from the last one, 0 from the first.
    pub from_last: u32,
    /// 0.
    pub reserved: u32,
}

impl<T: Element> Positions<T> {
    /// Returns the slices of the samples whose gradients are summed apart: the same on all GPUs.
    pub fn slices(columns: usize) -> usize {
        (4 * GRADIENT_THREADS / columns).clamp(1, SLICES_MAX)
    }

    /// Enqueues adding the vectors to the keys, by any number of blocks.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue_add(&self, lane: &Lane, blocks: (u32, u32)) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe { lane.launch(&PositionsAdd(*self), blocks) }
    }

    /// Enqueues the sums of the gradients over the [`Positions::slices`].
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue_gradient(&self, lane: &Lane) -> Result<()> {
        let slices = Self::slices(self.columns as usize) as u32;
        // SAFETY: the caller vouches for it.
        unsafe { lane.launch(&PositionsGradient(*self), (self.columns.div_ceil(4 * THREADS), slices)) }
    }
}

/// Adds the vectors.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct PositionsAdd<T>(Positions<T>);

/// Sums the gradients.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct PositionsGradient<T>(Positions<T>);

// SAFETY: `positions.cu` has the same struct.
unsafe impl<T: Element> Kernel for PositionsAdd<T> {
    const ID: Id = Family::PositionsAdd.variant([T::KIND as usize]);
    const THREADS: u32 = THREADS;
}

// SAFETY: as for `PositionsAdd`.
unsafe impl<T: Element> Kernel for PositionsGradient<T> {
    const ID: Id = Family::PositionsGradient.variant([T::KIND as usize]);
    const THREADS: u32 = THREADS;
}
