//! `head.cu`.

use super::{Element, Id, Kernel, Step};
use crate::buffer::Pointer;

/// The last layer, to one logit, with binary cross-entropy behind it, and back to the gradients of its input. Grid: one
/// block a piece, see [`Head::pieces`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Head<T> {
    /// `[sample][width]`
    pub input: Pointer<T>,
    /// `[width]`, and the bias behind them.
    pub weights: Pointer<f32>,
    /// 0, 1, or NaN where it is missing: such a sample counts for nothing.
    pub labels: Pointer<f32>,
    /// One a sample.
    pub sample_weights: Pointer<f32>,
    /// The sum of the weights of the samples with labels.
    pub total: Pointer<f64>,
    /// What the loss is multiplied by.
    pub head_weight: f64,
    /// Null, or one a sample.
    pub logits: Pointer<f32>,
    /// Null where only logits are wanted; `[sample][width]`.
    pub gradients: Pointer<T>,
    /// `[piece][width + 1]`: of the weights' gradients and the bias's.
    pub parts: Pointer<f32>,
    /// Of each piece: the weighted sum of its samples' losses.
    pub losses: Pointer<f64>,
    /// Samples.
    pub samples: u32,
    /// Elements of a sample's input, a multiple of 4.
    pub width: u32,
    /// 1 where there is a ReLU before the input, else 0.
    pub relu: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Head<f32>>() == 96);

impl<T> Head<T> {
    /// Pieces of so many samples.
    pub const fn pieces(samples: u32) -> u32 {
        samples.div_ceil(64)
    }
}

// SAFETY: `head.cu` has the same struct.
unsafe impl<T: Element> Kernel for Head<T> {
    const ID: Id = if T::BF16 { Id::HeadBf16 } else { Id::HeadF32 };
    const NAME: &'static str = "head";
    const THREADS: u32 = 256;
}

/// Adds up the losses of pieces, and sets a flag where the loss is no finite number. Grid: one block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Loss {
    /// Of each piece.
    pub losses: Pointer<f64>,
    /// Says where the loss goes.
    pub step: Pointer<Step>,
    /// What the sum is divided by; where it is 0, so is the loss.
    pub total: Pointer<f64>,
    /// What it is multiplied by then.
    pub head_weight: f64,
    /// Losses.
    pub sums: Pointer<f64>,
    /// Becomes 1 where the loss is no finite number.
    pub stop: Pointer<u32>,
    /// Pieces.
    pub pieces: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Loss>() == 56);

// SAFETY: `head.cu` has the same struct.
unsafe impl Kernel for Loss {
    const ID: Id = Id::Loss;
    const NAME: &'static str = "loss";
    const THREADS: u32 = 256;
}
