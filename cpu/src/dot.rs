//! The dot interaction: the product of every pair of a sample's vectors, and the first vector unchanged.

use crate::kernel::Line;
use crate::simd::{Kernel, LANES, Simd, dispatch};

/// Sizes of the interaction.
#[derive(Debug, Clone, Copy)]
pub struct DotInteraction {
    /// Vectors of a sample.
    pub vectors: usize,
    /// Elements of a vector.
    pub dim: usize,
    /// Elements of the first vector that are passed on: `dim`, or 0 without a bottom MLP.
    pub passed: usize,
}

/// Working memory of the interaction.
#[derive(Debug, Default)]
pub struct DotScratch {
    lines: Vec<Line>,
    products: Vec<f32>,
}

impl DotInteraction {
    /// Returns the number of outputs per sample.
    pub fn outputs(&self) -> usize {
        self.passed + self.vectors * (self.vectors - 1) / 2
    }

    /// Returns the bytes of the working memory of both passes.
    pub fn scratch_bytes(&self) -> u64 {
        let Self { vectors, dim, .. } = *self;
        let lines = (dim * vectors.div_ceil(LANES)).max(vectors * dim.div_ceil(LANES));
        let products =
            (size_of::<f32>() as u64).saturating_mul(vectors as u64).saturating_mul(vectors as u64);
        products.saturating_add((size_of::<Line>() as u64).saturating_mul(lines as u64))
    }

    /// `vectors` is `[samples, vectors, dim]`, `out` `[samples, outputs]`: the first vector, then the dot products of
    /// vector 1 with 0, 2 with 0, 2 with 1, 3 with 0, ... `scratch` is reused from tile to tile.
    pub fn forward(&self, vectors: &[f32], scratch: &mut DotScratch, out: &mut [f32]) {
        let transposed = &mut scratch.lines;
        transposed.resize(self.dim * self.vectors.div_ceil(LANES), Line::ZERO);
        dispatch(Products { shape: *self, vectors, transposed, out });
    }

    /// From the gradients with respect to `out` to those with respect to `vectors`.
    pub fn backward(
        &self,
        vectors: &[f32],
        out_gradients: &[f32],
        scratch: &mut DotScratch,
        vector_gradients: &mut [f32],
    ) {
        let DotScratch { lines: padded, products } = scratch;
        padded.resize(self.vectors * self.dim.div_ceil(LANES), Line::ZERO);
        // Zeros on the diagonal, which nobody writes.
        products.clear();
        products.resize(self.vectors * self.vectors, 0.0);
        let shape = *self;
        dispatch(Gradients { shape, vectors, out_gradients, products, padded, vector_gradients });
    }
}

/// The products of the samples of a tile.
struct Products<'a> {
    shape: DotInteraction,
    vectors: &'a [f32],
    /// Where the vectors of a sample are transposed: `[dim][lines]`.
    transposed: &'a mut [Line],
    out: &'a mut [f32],
}

impl Kernel for Products<'_> {
    type Output = ();

    /// Transposes the vectors of a sample, so that the products of one vector with sixteen others are summed in
    /// parallel lanes, and no sum crosses the lanes of a register.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "see `sum_rows`")]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) {
        let Self { shape, vectors, transposed, out } = self;
        let DotInteraction { vectors: count, dim, passed } = shape;
        let lines = count.div_ceil(LANES);
        for (sample, vectors) in vectors.chunks_exact(count * dim).enumerate() {
            let flat = bytemuck::cast_slice_mut::<Line, f32>(transposed);
            for number in 0..count {
                let vector = &vectors[number * dim..][..dim];
                for element in 0..dim {
                    flat[element * lines * LANES + number] = vector[element];
                }
            }
            let out = &mut out[sample * shape.outputs()..];
            out[..passed].copy_from_slice(&vectors[..passed]);
            // Stored lines overwrite what the ones before had too much: see `store_line`.
            for line in (0..lines).rev() {
                // Vector `i` has products with the `i` vectors before it.
                let mut first = line * LANES + 1;
                while first < count {
                    let sums = sum_rows::<S, ROWS>(
                        simd,
                        RowsFrom { matrix: vectors, columns: dim, first },
                        &transposed[line..],
                        lines,
                    );
                    for row in 0..ROWS.min(count - first) {
                        let i = first + row;
                        store_line(simd, sums[row], &mut out[passed + i * (i - 1) / 2 + line * LANES..]);
                    }
                    first += ROWS;
                }
            }
        }
    }
}

/// The gradients with respect to the vectors of the samples of a tile.
struct Gradients<'a> {
    shape: DotInteraction,
    vectors: &'a [f32],
    out_gradients: &'a [f32],
    /// Where the gradients of a sample's products become a symmetric matrix, zeros on the diagonal.
    products: &'a mut [f32],
    /// Where the vectors of a sample are padded to whole lines.
    padded: &'a mut [Line],
    vector_gradients: &'a mut [f32],
}

impl Kernel for Gradients<'_> {
    type Output = ();

    /// The gradient of a vector is the sum of all others, each times the gradient of their product.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "see `sum_rows`")]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) {
        let Self { shape, vectors, out_gradients, products, padded, vector_gradients } = self;
        let DotInteraction { vectors: count, dim, passed } = shape;
        let lines = dim.div_ceil(LANES);
        for (sample, vectors) in vectors.chunks_exact(count * dim).enumerate() {
            let (of_first, mut of_products) =
                out_gradients[sample * shape.outputs()..][..shape.outputs()].split_at(passed);
            for i in 0..count {
                let (row, rest) = of_products.split_at(i);
                of_products = rest;
                for j in 0..i {
                    products[i * count + j] = row[j];
                    products[j * count + i] = row[j];
                }
            }
            let flat = bytemuck::cast_slice_mut::<Line, f32>(padded);
            for number in 0..count {
                flat[number * lines * LANES..][..dim].copy_from_slice(&vectors[number * dim..][..dim]);
            }
            let gradients = &mut vector_gradients[sample * count * dim..];
            for line in (0..lines).rev() {
                let mut first = 0;
                while first < count {
                    let sums = sum_rows::<S, ROWS>(
                        simd,
                        RowsFrom { matrix: products, columns: count, first },
                        &padded[line..],
                        lines,
                    );
                    for row in 0..ROWS.min(count - first) {
                        store_line(simd, sums[row], &mut gradients[(first + row) * dim + line * LANES..]);
                    }
                    first += ROWS;
                }
            }
            for element in 0..passed {
                gradients[element] += of_first[element];
            }
        }
    }
}

/// The rows of a matrix from one on. Beyond the last row, it is that row again.
struct RowsFrom<'a> {
    matrix: &'a [f32],
    columns: usize,
    first: usize,
}

/// Returns `sum over k of x[row][k] lines[k * stride]` for `ROWS` rows of `x`.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "iterators in closures become calls without the instruction set's features"
)]
fn sum_rows<S: Simd, const ROWS: usize>(
    simd: S,
    x: RowsFrom<'_>,
    lines: &[Line],
    stride: usize,
) -> [S::Vector; ROWS] {
    let RowsFrom { matrix, columns, first } = x;
    let last = matrix.len() / columns - 1;
    let mut rows: [&[f32]; ROWS] = [&[]; ROWS];
    for row in 0..ROWS {
        rows[row] = &matrix[(first + row).min(last) * columns..][..columns];
    }
    let mut sums = [simd.splat(0.0); ROWS];
    for k in 0..columns {
        let line = simd.load(&lines[k * stride].0);
        for row in 0..ROWS {
            sums[row] = simd.multiply_add(simd.splat(rows[row][k]), line, sums[row]);
        }
    }
    sums
}

/// Stores a line at the start of `to`, as far as there is room. If fewer of its numbers belong there, those that follow
/// must be stored later.
#[inline(always)]
fn store_line<S: Simd>(simd: S, line: S::Vector, to: &mut [f32]) {
    if let Some(to) = to.first_chunk_mut() {
        simd.store(line, to);
    } else {
        let mut last = Line::ZERO;
        simd.store(line, &mut last.0);
        to.copy_from_slice(&last.0[..to.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::uniform;
    use proptest::prelude::*;

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
            let vectors = uniform(seed, 0, samples * features * dim);
            let out_gradients = uniform(seed, 1, samples * shape.outputs());
            let mut scratch = DotScratch::default();
            let mut out = vec![f32::NAN; out_gradients.len()];
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
