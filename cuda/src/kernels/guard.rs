//! `guard.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Element, Id, Kernel, Step};
use crate::runtime::Pointer;

/// The state that every update checks before it writes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct Guard {
    /// The last verdict: if this is not 0, nothing is updated.
    pub stop: u32,
    /// Factor of the loss in the backward pass.
    pub loss_scale: f32,
    /// Factor of table gradients before the update rules.
    pub table_scale: f32,
    /// The same for dense parameters, including clipping.
    pub dense_scale: f32,
    /// Steps since the loss scale last changed.
    pub steady: u32,
    /// What this rank has found in the current step, as in [`Outcome::wrong`]; cleared by the verdict.
    pub found: u32,
    /// Steps skipped because gradients overflowed their element type.
    pub skipped: u64,
    /// 1 if nothing is written, whatever is found; else 0.
    pub held: u32,
    /// 0.
    pub reserved: u32,
}

impl Guard {
    /// The state before the first step.
    pub fn new(loss_scale: f32) -> Self {
        let scale = 1.0 / loss_scale;
        Self { loss_scale, table_scale: scale, dense_scale: scale, ..Self::zeroed() }
    }
}

/// The outcome of a step, written by [`Verdict`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct Outcome {
    /// Its loss.
    pub loss: f64,
    /// The sum of the marks of ranks that found wrong vector gradients; decoded by [`Outcome::ranks`].
    pub vector_marks: f64,
    /// The same for losses.
    pub loss_marks: f64,
    /// [`Outcome::VECTORS`], [`Outcome::LOSS`] and [`Outcome::DENSE`], for what is not finite; 0 if the step was
    /// applied.
    pub wrong: u32,
    /// 1 if it was skipped only because of the loss scale, else 0.
    pub by_scale: u32,
}

impl Outcome {
    /// Vector gradients.
    pub const VECTORS: u32 = 1;
    /// The loss.
    pub const LOSS: u32 = 2;
    /// Gradients of dense parameters.
    pub const DENSE: u32 = 4;

    /// Decodes a sum of marks: how many ranks it is from, and the sum of their numbers.
    pub fn ranks(marks: f64) -> (usize, usize) {
        let (marks, each) = (marks as u64, 1 << 20);
        ((marks % each) as usize, (marks / each) as usize)
    }
}

impl Pointer<Guard> {
    /// The address of [`Guard::stop`].
    pub fn stop(self) -> Pointer<u32> {
        self.field(std::mem::offset_of!(Guard, stop))
    }

    /// The address of [`Guard::table_scale`].
    pub fn table_scale(self) -> Pointer<f32> {
        self.field(std::mem::offset_of!(Guard, table_scale))
    }

    /// The address of [`Guard::dense_scale`].
    pub fn dense_scale(self) -> Pointer<f32> {
        self.field(std::mem::offset_of!(Guard, dense_scale))
    }

    fn field<T>(self, offset: usize) -> Pointer<T> {
        self.cast::<u8>().element(offset).cast()
    }
}

/// Sums the squares of ranges of gradients, in parts. Grid: any along x, times the ranges.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Squares {
    /// The gradients.
    pub gradients: Pointer<f32>,
    /// First element (a multiple of 4) and end of each range.
    pub ranges: Pointer<[u32; 2]>,
    /// `[range][block along x]`
    pub parts: Pointer<f64>,
    /// The first range to sum.
    pub first: u32,
    /// The end of the ranges to sum; parts of other ranges become 0.
    pub behind: u32,
}

// SAFETY: `guard.cu` has the same struct.
unsafe impl Kernel for Squares {
    const ID: Id = Family::Squares.variant([]);
    const THREADS: u32 = 256;
}

/// A rank's own findings; all-reduced, they are the input of [`Verdict`]. Grid: one block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tally {
    /// `[piece][head]`, as [`super::Head`] writes them.
    pub losses: Pointer<f64>,
    /// Has what was found to be wrong.
    pub guard: Pointer<Guard>,
    /// One per head: the sum of its losses; then the rank's marks for a wrong vector gradient and for a wrong loss.
    pub numbers: Pointer<f64>,
    /// Pieces.
    pub pieces: u32,
    /// Heads.
    pub heads: u32,
    /// The rank.
    pub rank: u32,
    /// 0.
    pub reserved: u32,
}

impl Tally {
    /// Length of `numbers` for this many heads.
    pub const fn numbers(heads: usize) -> usize {
        heads + 2
    }
}

// SAFETY: `guard.cu` has the same struct.
unsafe impl Kernel for Tally {
    const ID: Id = Family::Tally.variant([]);
    const THREADS: u32 = 256;
}

/// Sums the loss and the gradients' squares, and decides whether the step is applied, how its gradients are scaled,
/// and the loss scale of the next step. Grid: one block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    /// `[piece][head]`, as [`super::Head`] writes them; or the output of [`Tally`], all-reduced.
    pub losses: Pointer<f64>,
    /// One per head: divisor of its loss; a head without weight has no loss.
    pub totals: Pointer<f64>,
    /// One per head: factor of its loss.
    pub head_weights: Pointer<f64>,
    /// As [`Squares`] writes them.
    pub parts: Pointer<f64>,
    /// Has the index for the outcome.
    pub step: Pointer<Step>,
    /// One per step in flight.
    pub outcomes: Pointer<Outcome>,
    /// Receives the verdict.
    pub guard: Pointer<Guard>,
    /// Pieces.
    pub pieces: u32,
    /// Heads.
    pub heads: u32,
    /// Parts.
    pub parts_count: u32,
    /// The largest norm of the gradients whose squares were summed; infinity if they are not clipped.
    pub norm_max: f32,
    /// If gradients may overflow their element type (fp16): the number of steps without overflow after which the loss
    /// scale is doubled. Otherwise 0.
    pub scale_interval: u32,
    /// 1 if there are several ranks, whose losses are one piece; else 0.
    pub together: u32,
}

// SAFETY: `guard.cu` has the same struct.
unsafe impl Kernel for Verdict {
    const ID: Id = Family::Verdict.variant([]);
    const THREADS: u32 = 256;
}

/// Looks for non-finite elements. Grid: any; it loops over the samples.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FiniteCheck<T> {
    /// `[sample][stride]`
    pub values: Pointer<T>,
    /// Records them.
    pub guard: Pointer<Guard>,
    /// Samples.
    pub samples: u32,
    /// Elements of a sample to check, a multiple of 4.
    pub columns: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `guard.cu` has the same struct.
unsafe impl<T: Element> Kernel for FiniteCheck<T> {
    const ID: Id = Family::FiniteCheck.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}

/// A feature that is pooled by factors which may exceed 1.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct FactorFeature {
    /// Where its column's offsets start.
    pub offsets: u32,
    /// Where the factors of its column's ids start.
    pub factors: u32,
    /// Where its vector starts within a sample's vectors.
    pub vector_offset: u32,
    /// Elements of its vector, a multiple of 4.
    pub dim: u32,
}

/// Looks for gradients that are out of bounds once they are multiplied by the factors of a bag's rows. Grid: x any, it
/// loops over the samples; y over features.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FactorCheck<T> {
    /// With respect to vectors: `[sample][stride]`.
    pub gradients: Pointer<T>,
    /// The features.
    pub features: Pointer<FactorFeature>,
    /// Indexed as the features say.
    pub offsets: Pointer<u32>,
    /// Indexed as the features say.
    pub factors: Pointer<f32>,
    /// The number of samples.
    pub samples_count: Pointer<u32>,
    /// Records them.
    pub guard: Pointer<Guard>,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `guard.cu` has the same struct.
unsafe impl<T: Element> Kernel for FactorCheck<T> {
    const ID: Id = Family::FactorCheck.variant([T::KIND as usize]);
    const THREADS: u32 = 256;
}
