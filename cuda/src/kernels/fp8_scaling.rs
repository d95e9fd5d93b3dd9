//! `fp8_scaling.cu`, and what `fp8.cuh` says of tensors.

use bytemuck::{Pod, Zeroable};

use super::{Guard, Id, Kernel};
use crate::buffer::Pointer;

/// How a tensor's values become numbers of fp8. It is part of what training has learned: a step's scale follows from
/// the steps before.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct Fp8Scaling {
    /// What numbers are multiplied by to be values.
    pub inverse: f32,
    /// What values are multiplied by: a power of two.
    pub scale: f32,
    /// The bits of the largest magnitude of this step times the scale.
    pub largest: u32,
    /// Steps that were kept so far.
    pub steps: u32,
    /// The largest magnitudes of the last steps, each in its turn.
    pub history: [f32; Fp8Scaling::HISTORY],
}

const _: () = assert!(size_of::<Fp8Scaling>() == 80);

impl Fp8Scaling {
    /// Steps whose largest magnitudes are kept.
    pub const HISTORY: usize = 16;

    /// Of a tensor that nothing is known of but a magnitude to expect, above 0 and finite.
    pub fn expecting(magnitude: f32) -> Self {
        let scale = Self::scale_of(magnitude);
        Self { inverse: 1.0 / scale, scale, largest: 0, steps: 0, history: [0.0; Self::HISTORY] }
    }

    /// The power of two that brings a magnitude between 112 and 224, so that it may double before it is beyond the
    /// largest number, 448. That of the kernel.
    pub fn scale_of(magnitude: f32) -> f32 {
        let power = (224.0 / f64::from(magnitude)).log2().floor();
        f64::exp2(power) as f32
    }
}

impl Pointer<Fp8Scaling> {
    /// Where [`Fp8Scaling::inverse`] lies.
    pub fn inverse(self) -> Pointer<f32> {
        self.cast::<u8>().element(std::mem::offset_of!(Fp8Scaling, inverse)).cast()
    }
}

/// What both kernels take.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Fp8Scalings {
    tensors: Pointer<Fp8Scaling>,
    guard: Pointer<Guard>,
    of_ranks: Pointer<f64>,
    count: u32,
    rank: u32,
    ranks: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Fp8Scalings>() == 40);

/// Where the ranks hand each other the largest magnitudes of a step.
#[derive(Debug, Clone, Copy)]
pub struct Fp8OfRanks {
    /// `[rank][tensor]`, which are added up over the ranks between [`Fp8Tell`] and [`Fp8Check`].
    pub largest: Pointer<f64>,
    /// This one.
    pub rank: u32,
    /// All.
    pub ranks: u32,
}

macro_rules! scalings {
    ($(#[$words:meta])+ $name:ident, $kernel:literal) => {
        $(#[$words])+
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name(Fp8Scalings);

        impl $name {
            /// Of so many tensors, on one rank.
            pub fn new(tensors: Pointer<Fp8Scaling>, count: usize, guard: Pointer<Guard>) -> Self {
                let none = Fp8OfRanks { largest: Pointer::NULL, rank: 0, ranks: 1 };
                Self::over_ranks(tensors, count, guard, none)
            }

            /// The same over ranks.
            pub fn over_ranks(
                tensors: Pointer<Fp8Scaling>,
                count: usize,
                guard: Pointer<Guard>,
                Fp8OfRanks { largest, rank, ranks }: Fp8OfRanks,
            ) -> Self {
                let count = count as u32;
                Self(Fp8Scalings { tensors, guard, of_ranks: largest, count, rank, ranks, reserved: 0 })
            }
        }

        // SAFETY: `fp8_scaling.cu` has the same struct.
        unsafe impl Kernel for $name {
            const ID: Id = Id::$name;
            const NAME: &'static str = $kernel;
            const THREADS: u32 = 256;
        }
    };
}

scalings! {
    /// Over ranks: puts the largest magnitudes of this rank's step where they are added up over the ranks. Grid: one
    /// block.
    Fp8Tell, "fp8_tell"
}

scalings! {
    /// Tells the guard where a tensor of the step had a value that is not finite, before the verdict; over ranks, of
    /// all of them. Grid: one block.
    Fp8Check, "fp8_check"
}

scalings! {
    /// Ends a step: where it was written, scales follow from it and the steps before, and else they stay. Grid: one
    /// block.
    Fp8Rescale, "fp8_rescale"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_leave_room_to_double() {
        for magnitude in [1e-12, 0.3, 1.0, 111.9, 112.0, 223.9, 224.0, 224.1, 5e7] {
            let scaled = magnitude * Fp8Scaling::scale_of(magnitude);
            assert!((112.0..=224.0).contains(&scaled), "{magnitude} becomes {scaled}");
        }
    }
}
