//! The memory layout of a row, and how its numbers are read and written.

use std::ops::Range;

use crate::dtype::{Dtype, all_finite};
use crate::optimizer::UpdateRule;

/// Elements, or words of four bytes, to multiples of which GPUs pad rows: they read vectors.
pub(crate) const VECTOR: usize = 4;

/// The memory layout of a row, in words of four bytes: weights, then optimizer state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLayout {
    /// From one row to the next.
    pub words: usize,
    /// Elements.
    pub dim: usize,
    /// The type of the weights.
    pub dtype: Dtype,
    /// Whether state is one number per row rather than one per element.
    pub rowwise: bool,
    /// The first word of each kind of state, for as many kinds as the rule keeps.
    begins: [usize; 2],
    kinds: usize,
}

impl RowLayout {
    /// The layout of rows of `words` words, with `weight_words` words of weights and `filled` words for each kind of
    /// state.
    pub fn new(
        words: usize,
        (dim, dtype): (usize, Dtype),
        rule: UpdateRule,
        (weight_words, filled): (usize, usize),
    ) -> Self {
        let begins = [weight_words, weight_words + filled];
        Self { words, dim, dtype, rowwise: rule.is_rowwise(), begins, kinds: rule.state_names().len() }
    }

    /// The layout of rows on a GPU, with weights and each kind of state padded to whole vectors.
    pub(crate) fn padded(dim: usize, dtype: Dtype, rule: UpdateRule) -> Self {
        let filled = dim.next_multiple_of(VECTOR);
        let weight_words = (filled * dtype.bytes() / size_of::<f32>()).next_multiple_of(VECTOR);
        let words = weight_words + rule.state_elements(filled).next_multiple_of(VECTOR);
        Self::new(words, (dim, dtype), rule, (weight_words, filled))
    }

    /// Words of the weights.
    #[cfg(feature = "cuda")]
    pub(crate) fn weight_words(&self) -> usize {
        self.begins[0]
    }

    /// The first word of each kind of state.
    pub fn state(&self) -> &[usize] {
        &self.begins[..self.kinds]
    }

    /// Words of each kind of state.
    pub fn state_words(&self) -> usize {
        if self.rowwise { 1 } else { self.dim }
    }

    /// Reads a row's weights.
    pub fn read_weights(&self, row: &[f32], weights: &mut [f32]) {
        if self.dtype == Dtype::Fp32 {
            return weights.copy_from_slice(&row[..self.dim]);
        }
        let bytes: &[u8] = bytemuck::cast_slice(row);
        for (weight, bytes) in weights.iter_mut().zip(bytes.chunks_exact(self.dtype.bytes())) {
            *weight = self.dtype.read(bytes);
        }
    }

    /// Writes a row's weights as numbers of a type.
    ///
    /// # Panics
    /// If `bytes` does not have exactly the size of the weights.
    pub fn write_weights(&self, row: &[f32], dtype: Dtype, bytes: &mut [u8]) {
        let own: &[u8] = bytemuck::cast_slice(row);
        let own = &own[..self.dim * self.dtype.bytes()];
        if self.dtype == dtype {
            return bytes.copy_from_slice(own);
        }
        assert_eq!(bytes.len(), self.dim * dtype.bytes(), "room for the weights of a row");
        for (own, bytes) in own.chunks_exact(self.dtype.bytes()).zip(bytes.chunks_exact_mut(dtype.bytes())) {
            dtype.put(self.dtype.read(own), bytes);
        }
    }

    /// Sets some of a row's weights, from `first` on, from numbers of a type.
    pub fn set_weights(&self, row: &mut [f32], first: usize, dtype: Dtype, bytes: &[u8]) {
        let size = self.dtype.bytes();
        let own: &mut [u8] = bytemuck::cast_slice_mut(row);
        let own = &mut own[first * size..];
        if self.dtype == dtype {
            return own[..bytes.len()].copy_from_slice(bytes);
        }
        for (own, bytes) in own.chunks_exact_mut(size).zip(bytes.chunks_exact(dtype.bytes())) {
            self.dtype.put(dtype.read(bytes), own);
        }
    }

    /// Returns whether all numbers of a row are finite.
    pub fn is_finite(&self, row: &[f32]) -> bool {
        let weights = match self.dtype {
            Dtype::Fp32 => all_finite(&row[..self.dim]),
            Dtype::Bf16 => {
                halves(row, self.dim).iter().fold(true, |all, bits| all & (bits & 0x7f80 != 0x7f80))
            }
            Dtype::Fp16 => {
                halves(row, self.dim).iter().fold(true, |all, bits| all & (bits & 0x7c00 != 0x7c00))
            }
        };
        weights && self.state().iter().all(|&begin| all_finite(&row[begin..begin + self.state_words()]))
    }
}

fn halves(row: &[f32], dim: usize) -> &[u16] {
    &bytemuck::cast_slice(row)[..dim]
}

/// The intersection of two ranges.
pub(super) fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}
