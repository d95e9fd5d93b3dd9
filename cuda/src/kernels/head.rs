//! `head.cu`.

use super::limits::SHARED_BYTES_MAX;
use super::names::Family;
use super::{Element, Guard, Id, Kernel};
use crate::runtime::Pointer;

/// Samples of a piece.
const SAMPLES: u32 = 32;
/// Warps of a block, and the columns that a warp reads at a time.
const WARPS: u32 = 8;
const COLUMNS: u32 = 128;

/// The last layer (one logit per head) with binary cross-entropy, and its backward pass to the gradients of its
/// input. Grid: one block per piece, see [`Head::pieces`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Head<T> {
    /// `[sample][stride]`
    pub input: Pointer<T>,
    /// `[head][width]`, then one bias per head, then `[head][dense_columns]`.
    pub weights: Pointer<f32>,
    /// `[head][sample]`: 0, 1, or NaN if it is missing: such a sample is ignored.
    pub labels: Pointer<f32>,
    /// One per sample.
    pub sample_weights: Pointer<f32>,
    /// One per head: divisor of its loss; a head without weight has no loss.
    pub totals: Pointer<f64>,
    /// One per head: factor of its loss.
    pub head_weights: Pointer<f64>,
    /// Has the factor of the gradients.
    pub guard: Pointer<Guard>,
    /// `[sample][dense_columns]`: first-order terms of the dense columns.
    pub dense: Pointer<f32>,
    /// `[sample][wide_stride]`: first-order terms of features, `wide_step` elements each: one per head, then zeros.
    pub wide: Pointer<T>,
    /// The gradients with respect to them.
    pub wide_gradients: Pointer<T>,
    /// Null, or one per sample, added to the logits of all heads.
    pub terms: Pointer<f32>,
    /// The gradients with respect to it.
    pub term_gradients: Pointer<f32>,
    /// Null, or `[sample][head]`.
    pub logits: Pointer<f32>,
    /// `[sample][stride]`; null if only logits are needed.
    pub gradients: Pointer<T>,
    /// `[piece][weights]`: partial sums of the gradients with respect to all weights.
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
    /// 1 if the input is the output of a ReLU, else 0.
    pub relu: u32,
    /// 0.
    pub reserved: u32,
}

impl<T> Head<T> {
    /// The most heads, limited by shared memory.
    pub const HEADS_MAX: usize = 64;

    /// Number of pieces for this many samples.
    pub const fn pieces(samples: u32) -> u32 {
        samples.div_ceil(SAMPLES)
    }
}

/// A gradient per head and sample, then a loss for each, or a sum for each warp and column.
const fn shared_bytes(heads: u32) -> u32 {
    let (losses, sums) = (heads * SAMPLES * 8, WARPS * COLUMNS * 4);
    heads * SAMPLES * 4 + if losses > sums { losses } else { sums }
}

const _: () = assert!(shared_bytes(Head::<f32>::HEADS_MAX as u32) <= SHARED_BYTES_MAX);

// SAFETY: `head.cu` has the same struct, and uses shared memory as `shared_bytes` says.
unsafe impl<T: Element> Kernel for Head<T> {
    const ID: Id = Family::Head.variant([T::KIND as usize]);
    const THREADS: u32 = WARPS * 32;

    fn shared_bytes(&self) -> u32 {
        shared_bytes(self.heads)
    }
}
