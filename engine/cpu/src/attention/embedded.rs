//! The learned vectors of positions: added to keys, and the gradients with respect to them.

use rankine_model::{AttentionSpec, Layer};
use rankine_reader::schema::Keep;
use rayon::prelude::*;

use super::add_times;

/// The vectors of the positions of a sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmbeddedPositions {
    /// `[position, elements of a key]` among the dense parameters.
    pub(crate) vectors: Layer,
    /// The end of a sample's sequence from which positions are counted.
    first: Keep,
    /// A column of the sequence.
    pub(crate) column: usize,
}

impl EmbeddedPositions {
    /// `vectors` are those of the model's layout; returns `None` if positions have none.
    pub(super) fn new(attention: &AttentionSpec, vectors: Option<Layer>) -> Option<Self> {
        let (vectors, first) = (vectors?, attention.position_embedding?);
        Some(Self { vectors, first, column: attention.features[0] })
    }

    /// Returns the vector that belongs to a key of a sample with `length` keys. It is its own inverse: also the key
    /// that belongs to a vector.
    fn counted(&self, position: usize, length: usize) -> usize {
        match self.first {
            Keep::First => position,
            Keep::Last => length - 1 - position,
        }
    }

    /// Adds the vectors to the keys of samples, whose positions start where `starts` says. Positions after the last
    /// vector, which no converted sample has, stay as they are.
    pub(super) fn add_to(&self, parameters: &[f32], starts: &[usize], keys: &mut [f32]) {
        let (vectors, width) = (&parameters[self.vectors.weight()], self.vectors.inputs);
        for range in starts.windows(2).map(|pair| pair[0]..pair[1]) {
            let keys = keys[range.start * width..range.end * width].chunks_exact_mut(width);
            for (position, key) in keys.enumerate() {
                let row = self.counted(position, range.len());
                if let Some(vector) = vectors.get(row * width..(row + 1) * width) {
                    add_times(key, vector, 1.0);
                }
            }
        }
    }

    /// Writes the gradients with respect to the vectors: for each, the sum in the order of samples of the gradients
    /// with respect to keys, `[position, elements of a key]`. `offsets` is where the positions of each sample start.
    pub(crate) fn sum_gradients(&self, offsets: &[u32], key_gradients: &[f32], gradients: &mut [f32]) {
        let width = self.vectors.inputs;
        gradients.par_chunks_exact_mut(width).enumerate().for_each(|(row, sum)| {
            sum.fill(0.0);
            for pair in offsets.windows(2) {
                let (start, length) = (pair[0] as usize, (pair[1] - pair[0]) as usize);
                if row < length {
                    let position = start + self.counted(row, length);
                    add_times(sum, &key_gradients[position * width..][..width], 1.0);
                }
            }
        });
    }
}
