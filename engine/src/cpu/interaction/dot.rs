//! The dot interaction: the product of every pair of a sample's vectors, and the first vector unchanged.

use rankine_embedding::vectorized;

/// Products that are summed in parallel: one vector register of the widest kind.
const LANES: usize = 16;

/// Sizes of the interaction.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct DotInteraction {
    /// Vectors of a sample.
    pub(super) vectors: usize,
    /// Elements of a vector.
    pub(super) dim: usize,
    /// Elements of the first vector that are passed on: `dim`, or 0 without a bottom MLP.
    pub(super) passed: usize,
}

impl DotInteraction {
    /// Returns the number of outputs per sample.
    pub(super) fn outputs(&self) -> usize {
        self.passed + self.vectors * (self.vectors - 1) / 2
    }

    /// `vectors` is `[samples, vectors, dim]`, `out` `[samples, outputs]`: the first vector, then the dot products of
    /// vector 1 with 0, 2 with 0, 2 with 1, 3 with 0, ... `scratch` is any memory, reused from tile to tile.
    pub(super) fn forward(&self, vectors: &[f32], scratch: &mut Vec<f32>, out: &mut [f32]) {
        dot_forward(*self, vectors, scratch, out);
    }

    /// From the gradients with respect to `out` to those with respect to `vectors`.
    pub(super) fn backward(
        &self,
        vectors: &[f32],
        out_gradients: &[f32],
        scratch: &mut Vec<f32>,
        vector_gradients: &mut [f32],
    ) {
        dot_backward(*self, vectors, out_gradients, scratch, vector_gradients);
    }
}

vectorized! {
    /// Transposes the vectors of a sample, so that the products of one vector with sixteen others are summed in
    /// parallel lanes, and no sum crosses the lanes of a register.
    fn dot_forward(shape: DotInteraction, vectors: &[f32], scratch: &mut Vec<f32>, out: &mut [f32]) {
        let DotInteraction { vectors: count, dim, passed } = shape;
        let padded = count.next_multiple_of(LANES);
        scratch.clear();
        scratch.resize(dim * padded, 0.0);
        let samples = vectors.chunks_exact(count * dim).zip(out.chunks_exact_mut(shape.outputs()));
        for (vectors, out) in samples {
            for (number, vector) in vectors.chunks_exact(dim).enumerate() {
                for (element, &value) in vector.iter().enumerate() {
                    scratch[element * padded + number] = value;
                }
            }
            let (first, mut products) = out.split_at_mut(passed);
            first.copy_from_slice(&vectors[..passed]);
            for (i, left) in vectors.chunks_exact(dim).enumerate() {
                let (row, rest) = products.split_at_mut(i);
                products = rest;
                for (block, row) in row.chunks_mut(LANES).enumerate() {
                    let mut sums = [0.0; LANES];
                    for (&x, column) in left.iter().zip(scratch.chunks_exact(padded)) {
                        let column = &column[block * LANES..][..LANES];
                        for lane in 0..LANES {
                            sums[lane] += x * column[lane];
                        }
                    }
                    row.copy_from_slice(&sums[..row.len()]);
                }
            }
        }
    }
}

vectorized! {
    /// The gradient of a vector is the sum of all others, each times the gradient of their product.
    fn dot_backward(
        shape: DotInteraction,
        vectors: &[f32],
        out_gradients: &[f32],
        scratch: &mut Vec<f32>,
        vector_gradients: &mut [f32],
    ) {
        let DotInteraction { vectors: count, dim, passed } = shape;
        // The gradients of all products as a symmetric matrix, zeros on the diagonal.
        scratch.clear();
        scratch.resize(count * count, 0.0);
        let samples = vectors.chunks_exact(count * dim).zip(out_gradients.chunks_exact(shape.outputs()));
        for ((vectors, out), gradients) in samples.zip(vector_gradients.chunks_exact_mut(count * dim)) {
            let (first, mut products) = out.split_at(passed);
            for i in 0..count {
                let (row, rest) = products.split_at(i);
                products = rest;
                for (j, &product) in row.iter().enumerate() {
                    scratch[i * count + j] = product;
                    scratch[j * count + i] = product;
                }
            }
            for (scales, gradient) in scratch.chunks_exact(count).zip(gradients.chunks_exact_mut(dim)) {
                let mut start = 0;
                while dim - start >= LANES {
                    weighted_sum::<LANES>(scales, vectors, dim, start, gradient);
                    start += LANES;
                }
                if dim - start >= 8 {
                    weighted_sum::<8>(scales, vectors, dim, start, gradient);
                    start += 8;
                }
                if dim - start >= 4 {
                    weighted_sum::<4>(scales, vectors, dim, start, gradient);
                    start += 4;
                }
                while start < dim {
                    weighted_sum::<1>(scales, vectors, dim, start, gradient);
                    start += 1;
                }
            }
            gradients[..passed].iter_mut().zip(first).for_each(|(sum, gradient)| *sum += gradient);
        }
    }
}

/// Elements `start..start + WIDTH` of the sum of all vectors, each times its scale.
#[inline(always)]
fn weighted_sum<const WIDTH: usize>(
    scales: &[f32],
    vectors: &[f32],
    dim: usize,
    start: usize,
    out: &mut [f32],
) {
    let mut sums = [0.0; WIDTH];
    for (&scale, vector) in scales.iter().zip(vectors.chunks_exact(dim)) {
        let vector = &vector[start..start + WIDTH];
        for lane in 0..WIDTH {
            sums[lane] += scale * vector[lane];
        }
    }
    out[start..start + WIDTH].copy_from_slice(&sums);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rankine_embedding::random::UniformField;

    proptest! {
        /// Against sums in f64, pair by pair.
        #[test]
        fn products_and_gradients_equal_the_oracle(
            features in 2..40usize,
            dim in 1..40usize,
            samples in 1..4usize,
            pass in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let shape = DotInteraction { vectors: features, dim, passed: if pass { dim } else { 0 } };
            let random = |len, stream| {
                let mut values = vec![0.0; len];
                UniformField::new(seed, stream).fill_row(0, 1.0, &mut values);
                values
            };
            let vectors = random(samples * features * dim, 0);
            let out_gradients = random(samples * shape.outputs(), 1);
            let (mut scratch, mut out) = (Vec::new(), vec![f32::NAN; out_gradients.len()]);
            let mut gradients = vec![f32::NAN; vectors.len()];
            shape.forward(&vectors, &mut scratch, &mut out);
            shape.backward(&vectors, &out_gradients, &mut scratch, &mut gradients);

            let at = |sample: usize, i: usize, d: usize| f64::from(vectors[(sample * features + i) * dim + d]);
            let mut expected = vec![0.0; vectors.len()];
            for sample in 0..samples {
                let base = sample * shape.outputs();
                for d in 0..shape.passed {
                    prop_assert_eq!(f64::from(out[base + d]), at(sample, 0, d));
                    expected[sample * features * dim + d] += f64::from(out_gradients[base + d]);
                }
                let mut pair = base + shape.passed;
                for i in 0..features {
                    for j in 0..i {
                        let product: f64 = (0..dim).map(|d| at(sample, i, d) * at(sample, j, d)).sum();
                        // `dim` products and sums below `dim`, each rounded to 24 bits.
                        let tolerance = ((dim + 1) * (dim + 1)) as f64 / f64::from(1 << 24);
                        prop_assert!((f64::from(out[pair]) - product).abs() <= tolerance);
                        for d in 0..dim {
                            let gradient = f64::from(out_gradients[pair]);
                            expected[(sample * features + i) * dim + d] += gradient * at(sample, j, d);
                            expected[(sample * features + j) * dim + d] += gradient * at(sample, i, d);
                        }
                        pair += 1;
                    }
                }
            }
            let tolerance = ((features + 2) * (features + 2)) as f64 / f64::from(1 << 24);
            for (gradient, expected) in gradients.iter().zip(&expected) {
                prop_assert!((f64::from(*gradient) - expected).abs() <= tolerance, "{gradient} {expected}");
            }
        }
    }
}
