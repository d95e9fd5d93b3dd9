//! The dot interaction: every pair of a sample's feature vectors, and the first vector as it is.

/// Sizes of the interaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct DotInteraction {
    /// Vectors of a sample.
    pub(super) features: usize,
    /// Elements of a vector.
    pub(super) dim: usize,
    /// Elements of the first vector that are passed on: `dim`, or 0 where there is no bottom MLP.
    pub(super) passed: usize,
}

impl DotInteraction {
    /// Elements out, a sample.
    pub(super) fn outputs(&self) -> usize {
        self.passed + self.features * (self.features - 1) / 2
    }

    /// `features` is `[samples, features, dim]`, `out` `[samples, outputs]`: the first vector, then the dot products of
    /// vector 1 with 0, 2 with 0, 2 with 1, 3 with 0, ...
    pub(super) fn forward(&self, features: &[f32], out: &mut [f32]) {
        let samples =
            features.chunks_exact(self.features * self.dim).zip(out.chunks_exact_mut(self.outputs()));
        for (features, out) in samples {
            let (passed, products) = out.split_at_mut(self.passed);
            passed.copy_from_slice(&features[..self.passed]);
            let mut products = products.iter_mut();
            for (i, left) in features.chunks_exact(self.dim).enumerate() {
                for (right, product) in features.chunks_exact(self.dim).take(i).zip(&mut products) {
                    *product = dot(left, right);
                }
            }
        }
    }

    /// From the gradients by `out` to those by `features`.
    pub(super) fn backward(&self, features: &[f32], out_gradients: &[f32], feature_gradients: &mut [f32]) {
        let elements = self.features * self.dim;
        let samples = features.chunks_exact(elements).zip(out_gradients.chunks_exact(self.outputs()));
        for ((features, out), gradients) in samples.zip(feature_gradients.chunks_exact_mut(elements)) {
            let (passed, products) = out.split_at(self.passed);
            gradients[..self.passed].copy_from_slice(passed);
            gradients[self.passed..].fill(0.0);
            let mut products = products.iter();
            for i in 0..self.features {
                let (lower, upper) = gradients.split_at_mut(i * self.dim);
                let (left, left_gradient) = (&features[i * self.dim..][..self.dim], &mut upper[..self.dim]);
                let rights = features.chunks_exact(self.dim).zip(lower.chunks_exact_mut(self.dim));
                for ((right, right_gradient), &product) in rights.zip(&mut products) {
                    add_scaled(left_gradient, product, right);
                    add_scaled(right_gradient, product, left);
                }
            }
        }
    }
}

/// Sums in eight lanes, then over the lanes: an order that vector units of any width up to eight can keep.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (b + f)) + ((c + g) + (d + h)) + rest
}

fn add_scaled(out: &mut [f32], scale: f32, values: &[f32]) {
    out.iter_mut().zip(values).for_each(|(out, value)| *out += scale * value);
}
