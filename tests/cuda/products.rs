//! Products of matrices.

use half::bf16;
use rankine_cuda::Buffer;
use rankine_cuda::blas::{Blas, Compute, Epilogue, Matrix, Product};
use rankine_cuda::kernels::Element;

use super::{Bench, Body, CASES, F32_ROUNDING, Outcome, Words, close, rounding};

const TF32_ROUNDING: f64 = 1.0 / 2048.0;

pub(crate) const BODIES: &[Body] = &[("products_are_the_sums", CASES, products_are_the_sums)];

fn products_are_the_sums(bench: &Bench, words: &mut Words) -> Outcome {
    for (compute, rounding) in [(Compute::F32, 0.0), (Compute::Tf32, TF32_ROUNDING)] {
        products_in::<f32>(bench, words, compute, rounding)?;
    }
    products_in::<bf16>(bench, words, Compute::Bf16, 0.0)
}

/// `rounding` is that of the factors.
fn products_in<T: Element>(bench: &Bench, words: &mut Words, compute: Compute, factors: f64) -> Outcome {
    let blas = Blas::new(&bench.device)?;
    let mut size = || 8 * (1 + words.below(40)) as usize;
    let (m, n, k) = (size(), size(), size());
    let (x, y, bias) = (words.numbers::<T>(m * k), words.numbers::<T>(n * k), words.numbers::<T>(n));
    let transposed = |from: &[T], rows: usize, columns: usize| -> Vec<T> {
        (0..rows * columns).map(|i| from[i % rows * columns + i / rows]).collect()
    };
    let buffers = [
        bench.buffer(&x)?,
        bench.buffer(&y)?,
        bench.buffer(&transposed(&x, m, k))?,
        bench.buffer(&transposed(&y, n, k))?,
    ];
    let matrix = |buffer: &Buffer<T>, rows, columns| Matrix {
        pointer: buffer.pointer(),
        rows,
        columns,
        stride: columns,
    };
    let [x_of, y_of] = [matrix(&buffers[0], m, k), matrix(&buffers[1], n, k)];
    let [x_turned, y_turned] = [matrix(&buffers[2], k, m), matrix(&buffers[3], k, n)];
    let bias_buffer = bench.buffer(&bias)?;
    // An output within a wider matrix, as the vectors are.
    let stride = n + 16;
    let (wide, narrow, sums) =
        (bench.poison::<T>(m * stride)?, bench.poison::<T>(m * n)?, bench.poison::<f32>(m * n)?);
    let wide_out = Matrix { pointer: wide.pointer(), rows: m, columns: n, stride };
    let sums_out = Matrix { pointer: sums.pointer(), rows: m, columns: n, stride: n };
    let epilogue = Epilogue::BiasRelu { bias: bias_buffer.pointer() };
    let products = [
        Product::by_transposed(&blas, compute, x_of, y_of, wide_out, epilogue)?,
        Product::straight(&blas, compute, x_of, y_turned, matrix(&narrow, m, n))?,
        Product::of_transposed(&blas, compute, x_turned, y_turned, sums_out)?,
    ];
    for product in &products {
        // SAFETY: all buffers live until the lane has been waited for by reading.
        unsafe { product.enqueue(&blas, &bench.lane) }?;
    }
    let (wide, narrow, sums) = (wide.read(&bench.lane)?, narrow.read(&bench.lane)?, sums.read(&bench.lane)?);
    for i in 0..m * n {
        let (row, column) = (i / n, i % n);
        let pairs = x[row * k..][..k].iter().zip(&y[column * k..][..k]);
        let terms: Vec<_> = pairs.map(|(x, y)| f64::from(x.value()) * f64::from(y.value())).collect();
        let (sum, size) = (terms.iter().sum::<f64>(), terms.iter().map(|term| term.abs()).sum::<f64>());
        let with_bias = (sum + f64::from(bias[column].value())).max(0.0);
        // Each factor rounded, each of `k` sums, and the result.
        let tolerance = size * (2.0 * factors + k as f64 * F32_ROUNDING) + F32_ROUNDING;
        let rounded = |value: f64| tolerance + rounding::<T>() * (value.abs() + tolerance);
        let of_wide = f64::from(wide[row * stride + column].value());
        close("with bias and ReLU", i, of_wide, with_bias, rounded(with_bias) + F32_ROUNDING)?;
        close("straight", i, f64::from(narrow[i].value()), sum, rounded(sum))?;
        close("transposed", i, f64::from(sums[i]), sum, tolerance)?;
    }
    Ok(())
}
