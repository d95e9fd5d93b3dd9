//! `head.cu`.

use super::{Element, Guard, Id, Kernel};
use crate::buffer::Pointer;

/// Samples of a piece.
const SAMPLES: u32 = 64;

/// The last layer, to one logit a head, with binary cross-entropy behind it, and back to the gradients of its input.
/// Grid: one block a piece, see [`Head::pieces`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Head<T> {
    /// `[sample][stride]`
    pub input: Pointer<T>,
    /// `[head][width]`, then a bias a head, then `[head][dense_columns]`.
    pub weights: Pointer<f32>,
    /// `[head][sample]`: 0, 1, or NaN where it is missing: such a sample counts for nothing.
    pub labels: Pointer<f32>,
    /// One a sample.
    pub sample_weights: Pointer<f32>,
    /// One a head: what its loss is divided by; a head without weight has no loss.
    pub totals: Pointer<f64>,
    /// One a head: what its loss is multiplied by.
    pub head_weights: Pointer<f64>,
    /// Says what gradients are multiplied by.
    pub guard: Pointer<Guard>,
    /// `[sample][dense_columns]`: first-order terms of the dense columns.
    pub dense: Pointer<f32>,
    /// `[sample][wide_stride]`: first-order terms of features, each `wide_step` elements, one a head and zeros.
    pub wide: Pointer<T>,
    /// The gradients by them.
    pub wide_gradients: Pointer<T>,
    /// Null, or one a sample: what is added to the logits of all heads.
    pub terms: Pointer<f32>,
    /// The gradients by it.
    pub term_gradients: Pointer<f32>,
    /// Null, or `[sample][head]`.
    pub logits: Pointer<f32>,
    /// Null where only logits are wanted; `[sample][stride]`.
    pub gradients: Pointer<T>,
    /// `[piece][weights]`: of the gradients by all weights.
    pub parts: Pointer<f32>,
    /// `[piece][head]`: weighted sums of losses.
    pub losses: Pointer<f64>,
    /// Samples.
    pub samples: u32,
    /// Heads, at most [`Head::HEADS_MAX`].
    pub heads: u32,
    /// Elements of a sample's input, a multiple of 4.
    pub width: u32,
    /// Elements from one sample's input to the next, a multiple of 4.
    pub stride: u32,
    /// Dense columns with first-order terms; 0 without.
    pub dense_columns: u32,
    /// Features with first-order terms; 0 without.
    pub wide_features: u32,
    /// Elements from one feature's terms to the next one's.
    pub wide_step: u32,
    /// Elements from one sample's terms to the next one's.
    pub wide_stride: u32,
    /// 1 where there is a ReLU before the input, else 0.
    pub relu: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Head<f32>>() == 168);

impl<T> Head<T> {
    /// Heads that fit where a multiprocessor works on them.
    pub const HEADS_MAX: usize = 64;

    /// Pieces of so many samples.
    pub const fn pieces(samples: u32) -> u32 {
        samples.div_ceil(SAMPLES)
    }
}

const _: () = assert!(Head::<f32>::HEADS_MAX as u32 * SAMPLES * 12 <= super::SHARED_BYTES_MAX as u32);

// SAFETY: `head.cu` has the same struct, and takes shared memory for a loss and a gradient a head and sample.
unsafe impl<T: Element> Kernel for Head<T> {
    const ID: Id = Id::of::<T>([Id::HeadF32, Id::HeadBf16, Id::HeadF16]);
    const NAME: &'static str = "head";
    const THREADS: u32 = 256;

    fn shared_bytes(&self) -> u32 {
        self.heads * SAMPLES * (size_of::<f64>() + size_of::<f32>()) as u32
    }
}
