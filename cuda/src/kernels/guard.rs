//! `guard.cu`.

use bytemuck::{Pod, Zeroable};

use super::{Element, Id, Kernel, Step};
use crate::buffer::Pointer;

/// What every update looks at before it writes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct Guard {
    /// The last verdict: nothing is updated where this is not 0.
    pub stop: u32,
    /// What the loss is multiplied by on the way back.
    pub loss_scale: f32,
    /// What gradients of tables are multiplied by before the rules see them.
    pub table_scale: f32,
    /// The same of dense parameters, whose gradients are clipped, too.
    pub dense_scale: f32,
    /// Steps since the loss's scale changed last.
    pub steady: u32,
    /// What this rank has found in the step at hand, as [`Outcome::wrong`] has it, until the verdict takes it.
    pub found: u32,
    /// Steps that were left out since their gradients were beyond the elements' range.
    pub skipped: u64,
    /// 1 where nothing is to be written, whatever is found; else 0.
    pub held: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Guard>() == 40);

impl Guard {
    /// Before the first step.
    pub fn new(loss_scale: f32) -> Self {
        let scale = 1.0 / loss_scale;
        Self { loss_scale, table_scale: scale, dense_scale: scale, ..Self::zeroed() }
    }
}

/// What a step came to, as a [`Verdict`] leaves it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct Outcome {
    /// Its loss.
    pub loss: f64,
    /// The sum of the marks of ranks that found gradients by vectors to be wrong; [`Outcome::ranks`] reads it.
    pub vector_marks: f64,
    /// The same of losses.
    pub loss_marks: f64,
    /// [`Outcome::VECTORS`], [`Outcome::LOSS`] and [`Outcome::DENSE`], as far as they are no finite numbers; 0 where
    /// the step was written.
    pub wrong: u32,
    /// 1 where it was left out for the loss's scale alone, else 0.
    pub by_scale: u32,
}

const _: () = assert!(size_of::<Outcome>() == 32);

impl Outcome {
    /// Gradients by vectors.
    pub const VECTORS: u32 = 1;
    /// The loss.
    pub const LOSS: u32 = 2;
    /// Gradients of dense parameters.
    pub const DENSE: u32 = 4;

    /// How many ranks a sum of marks is of, and the sum of their numbers.
    pub fn ranks(marks: f64) -> (usize, usize) {
        let (marks, each) = (marks as u64, 1 << 20);
        ((marks % each) as usize, (marks / each) as usize)
    }
}

impl Pointer<Guard> {
    /// Where [`Guard::stop`] lies.
    pub fn stop(self) -> Pointer<u32> {
        self.field(std::mem::offset_of!(Guard, stop))
    }

    /// Where [`Guard::table_scale`] lies.
    pub fn table_scale(self) -> Pointer<f32> {
        self.field(std::mem::offset_of!(Guard, table_scale))
    }

    /// Where [`Guard::dense_scale`] lies.
    pub fn dense_scale(self) -> Pointer<f32> {
        self.field(std::mem::offset_of!(Guard, dense_scale))
    }

    fn field<T>(self, offset: usize) -> Pointer<T> {
        self.cast::<u8>().element(offset).cast()
    }
}

/// The sums of the squares of ranges of gradients, in parts. Grid: any along x, times the ranges.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Squares {
    /// The gradients.
    pub gradients: Pointer<f32>,
    /// Where each range begins, at a multiple of 4, and ends.
    pub ranges: Pointer<[u32; 2]>,
    /// `[range][block along x]`
    pub parts: Pointer<f64>,
    /// The first of the ranges that are summed here.
    pub first: u32,
    /// The one behind the last of these; parts of other ranges are 0.
    pub behind: u32,
}

const _: () = assert!(size_of::<Squares>() == 32);

// SAFETY: `guard.cu` has the same struct.
unsafe impl Kernel for Squares {
    const ID: Id = Id::Squares;
    const NAME: &'static str = "squares";
    const THREADS: u32 = 256;
}

/// What a rank has come to by itself: added up over the ranks, it is what [`Verdict`] reads. Grid: one block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tally {
    /// `[piece][head]`, as [`super::Head`] leaves them.
    pub losses: Pointer<f64>,
    /// Says what was found to be wrong.
    pub guard: Pointer<Guard>,
    /// One a head: the sum of its losses; then the rank's mark where a gradient by a vector, and where the loss is
    /// wrong.
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

const _: () = assert!(size_of::<Tally>() == 40);

impl Tally {
    /// Numbers of so many heads.
    pub const fn numbers(heads: usize) -> usize {
        heads + 2
    }
}

// SAFETY: `guard.cu` has the same struct.
unsafe impl Kernel for Tally {
    const ID: Id = Id::Tally;
    const NAME: &'static str = "tally";
    const THREADS: u32 = 256;
}

/// Sums up the loss and the gradients' squares: from them follow whether the step is written, how its gradients are
/// scaled, and how the loss is in the next one. Grid: one block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    /// `[piece][head]`, as [`super::Head`] leaves them; or what [`Tally`] leaves, added up over the ranks.
    pub losses: Pointer<f64>,
    /// One a head: what its loss is divided by; a head without weight has no loss.
    pub totals: Pointer<f64>,
    /// One a head: what its loss is multiplied by.
    pub head_weights: Pointer<f64>,
    /// As [`Squares`] leaves them.
    pub parts: Pointer<f64>,
    /// Says where the outcome goes.
    pub step: Pointer<Step>,
    /// Of steps.
    pub outcomes: Pointer<Outcome>,
    /// The verdict.
    pub guard: Pointer<Guard>,
    /// Pieces.
    pub pieces: u32,
    /// Heads.
    pub heads: u32,
    /// Parts.
    pub parts_count: u32,
    /// The longest norm of the gradients whose squares were summed; infinity where they are not clipped.
    pub norm_max: f32,
    /// Where gradients may be beyond the elements' range though nothing is wrong: the steps without such a one after
    /// which the loss's scale is doubled. Else 0.
    pub scale_interval: u32,
    /// 1 where there are several ranks, whose losses are one piece; else 0.
    pub together: u32,
}

const _: () = assert!(size_of::<Verdict>() == 80);

// SAFETY: `guard.cu` has the same struct.
unsafe impl Kernel for Verdict {
    const ID: Id = Id::Verdict;
    const NAME: &'static str = "verdict";
    const THREADS: u32 = 256;
}

/// Looks for elements that are no finite numbers. Grid: any; it loops over the samples.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Finite<T> {
    /// `[sample][stride]`
    pub values: Pointer<T>,
    /// Is told.
    pub guard: Pointer<Guard>,
    /// Samples.
    pub samples: u32,
    /// Elements of a sample that are looked at, a multiple of 4.
    pub columns: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Finite<f32>>() == 32);

// SAFETY: `guard.cu` has the same struct.
unsafe impl<T: Element> Kernel for Finite<T> {
    const ID: Id = Id::of::<T>([Id::FiniteF32, Id::FiniteBf16, Id::FiniteF16]);
    const NAME: &'static str = "finite";
    const THREADS: u32 = 256;
}
