//! Products in bf16, and what the tests of this crate share.

mod bf16;

#[path = "../../../tests/support/skipped.rs"]
mod skipped;

use rankine_embedding::random::UniformField;

/// Returns numbers from -1 to 1.
pub(crate) fn uniform(seed: u64, stream: u32, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    UniformField::new(seed, stream).fill_row(0, 1.0, &mut values);
    values
}

/// Returns the first stream of them.
pub(crate) fn random(len: usize, seed: u64) -> Vec<f32> {
    uniform(seed, 0, len)
}
