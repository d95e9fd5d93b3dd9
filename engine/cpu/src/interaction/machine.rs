//! The second-order term of a factorization machine: the sum of the dot products of all pairs of a sample's vectors.

use rankine_embedding::vectorized;

/// Sizes of the term.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FactorizationMachine {
    /// Vectors of a sample.
    pub(super) vectors: usize,
    /// Elements of a vector.
    pub(super) dim: usize,
}

impl FactorizationMachine {
    /// Adds the sum of each sample of `vectors`, `[samples, vectors, dim]`, to its `heads` logits.
    pub(super) fn add_to_logits(
        &self,
        vectors: &[f32],
        scratch: &mut Vec<f32>,
        heads: usize,
        logits: &mut [f32],
    ) {
        add_pair_sums(*self, vectors, scratch, heads, logits);
    }

    /// Adds the gradients with respect to the vectors.
    pub(super) fn backward(
        &self,
        vectors: &[f32],
        heads: usize,
        logit_gradients: &[f32],
        scratch: &mut Vec<f32>,
        vector_gradients: &mut [f32],
    ) {
        add_gradients(*self, vectors, heads, logit_gradients, scratch, vector_gradients);
    }
}

vectorized! {
    /// Multiplies each vector by the sum of those before it. The usual form, `(|sum|² - sum |v|²) / 2`, subtracts two
    /// large numbers.
    fn add_pair_sums(
        shape: FactorizationMachine,
        vectors: &[f32],
        scratch: &mut Vec<f32>,
        heads: usize,
        logits: &mut [f32],
    ) {
        let FactorizationMachine { vectors: count, dim } = shape;
        scratch.resize(2 * dim, 0.0);
        for (vectors, logits) in vectors.chunks_exact(count * dim).zip(logits.chunks_exact_mut(heads)) {
            scratch.fill(0.0);
            let (before, products) = scratch.split_at_mut(dim);
            for vector in vectors.chunks_exact(dim) {
                for ((before, product), &value) in before.iter_mut().zip(&mut *products).zip(vector) {
                    *product += *before * value;
                    *before += value;
                }
            }
            let sum: f32 = products.iter().sum();
            logits.iter_mut().for_each(|logit| *logit += sum);
        }
    }
}

vectorized! {
    /// The gradient with respect to a vector is the sum of all other vectors, times the sum of the logit gradients.
    fn add_gradients(
        shape: FactorizationMachine,
        vectors: &[f32],
        heads: usize,
        logit_gradients: &[f32],
        scratch: &mut Vec<f32>,
        vector_gradients: &mut [f32],
    ) {
        let FactorizationMachine { vectors: count, dim } = shape;
        scratch.resize(dim, 0.0);
        let samples = vectors.chunks_exact(count * dim).zip(logit_gradients.chunks_exact(heads));
        for ((vectors, logit), gradients) in samples.zip(vector_gradients.chunks_exact_mut(count * dim)) {
            scratch.fill(0.0);
            for vector in vectors.chunks_exact(dim) {
                scratch.iter_mut().zip(vector).for_each(|(sum, value)| *sum += value);
            }
            let scale: f32 = logit.iter().sum();
            for (gradients, vector) in gradients.chunks_exact_mut(dim).zip(vectors.chunks_exact(dim)) {
                for ((gradient, sum), value) in gradients.iter_mut().zip(&*scratch).zip(vector) {
                    *gradient += scale * (sum - value);
                }
            }
        }
    }
}
