//! `fp8_scaling.cu`, and the scalings of `fp8.cuh`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Guard, Id, Kernel};
use crate::runtime::Pointer;

/// How a tensor's values are converted to fp8. It is part of the training state: a step's scale follows from earlier
/// steps.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct Fp8Scaling {
    /// Factor from stored numbers to values.
    pub inverse: f32,
    /// Factor from values to stored numbers, a power of two.
    pub scale: f32,
    /// The bits of the largest magnitude of this step times the scale.
    pub largest: u32,
    /// Steps recorded so far.
    pub steps: u32,
    /// The largest magnitudes of the last steps, a ring buffer.
    pub history: [f32; Fp8Scaling::HISTORY],
}

impl Fp8Scaling {
    /// Number of recorded steps.
    pub const HISTORY: usize = 16;

    /// The initial scaling of a tensor with an expected magnitude, which must be positive and finite.
    pub fn expecting(magnitude: f32) -> Self {
        let scale = Self::scale_of(magnitude);
        Self { inverse: 1.0 / scale, scale, largest: 0, steps: 0, history: [0.0; Self::HISTORY] }
    }

    /// Returns the power of two that brings a magnitude to between 112 and 224, so that it may double before it
    /// exceeds the largest number, 448. The kernel computes the same.
    pub fn scale_of(magnitude: f32) -> f32 {
        let power = (224.0 / f64::from(magnitude)).log2().floor();
        f64::exp2(power) as f32
    }
}

impl Pointer<Fp8Scaling> {
    /// The address of [`Fp8Scaling::inverse`].
    pub fn inverse(self) -> Pointer<f32> {
        self.cast::<u8>().element(std::mem::offset_of!(Fp8Scaling, inverse)).cast()
    }
}

/// Parameters of all kernels.
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

/// How ranks exchange the largest magnitudes of a step.
#[derive(Debug, Clone, Copy)]
pub struct Fp8RankMagnitudes {
    /// `[rank][tensor]`, all-reduced between [`Fp8Tell`] and [`Fp8Check`].
    pub largest: Pointer<f64>,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
}

macro_rules! scalings {
    ($(#[$words:meta])+ $name:ident) => {
        $(#[$words])+
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name(Fp8Scalings);

        impl $name {
            /// For `count` tensors, on one rank.
            pub fn new(tensors: Pointer<Fp8Scaling>, count: usize, guard: Pointer<Guard>) -> Self {
                let none = Fp8RankMagnitudes { largest: Pointer::NULL, rank: 0, ranks: 1 };
                Self::over_ranks(tensors, count, guard, none)
            }

            /// The same over several ranks.
            pub fn over_ranks(
                tensors: Pointer<Fp8Scaling>,
                count: usize,
                guard: Pointer<Guard>,
                Fp8RankMagnitudes { largest, rank, ranks }: Fp8RankMagnitudes,
            ) -> Self {
                let count = count as u32;
                Self(Fp8Scalings { tensors, guard, of_ranks: largest, count, rank, ranks, reserved: 0 })
            }
        }

        // SAFETY: `fp8_scaling.cu` has the same struct.
        unsafe impl Kernel for $name {
            const ID: Id = Family::$name.variant([]);
            const THREADS: u32 = 256;
        }
    };
}

scalings! {
    /// With several ranks: writes this rank's largest magnitudes to the array that is all-reduced. Grid: one block.
    Fp8Tell
}

scalings! {
    /// Records in the guard, before the verdict, whether a tensor of the step had a non-finite value; with several
    /// ranks, at any of them. Grid: one block.
    Fp8Check
}

scalings! {
    /// Ends a step: if it was applied, scales follow from it and earlier steps; otherwise they stay. Grid: one block.
    Fp8Rescale
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
