//! Matrix products.

use half::bf16;
use libtest_mimic::Failed;
use rankine_cuda::Buffer;
use rankine_cuda::blas::{Algorithms, Blas, Compute, Epilogue, Matrix, Product, Tuning};
use rankine_cuda::kernels::Element;

use super::{Bench, Body, CASES, F32_ROUNDING, Outcome, Words, close, rounding};

const TF32_ROUNDING: f64 = 1.0 / 2048.0;

pub(crate) const BODIES: &[Body] = &[
    ("products_are_the_sums", CASES, products_are_the_sums),
    ("products_are_taken_through_relus", 4 * CASES, products_are_taken_through_relus),
    ("cross_layers_are_made_on_the_way", 4 * CASES, cross_layers_are_made_on_the_way),
    (
        "cross_layers_are_gone_back_through_on_the_way",
        4 * CASES,
        cross_layers_are_gone_back_through_on_the_way,
    ),
    ("large_cross_layers_of_little_depth", 1, large_cross_layers_of_little_depth),
    ("timed_algorithms_can_be_recorded", 1, timed_algorithms_can_be_recorded),
    ("large_products_repeat_to_the_bit", 1, large_products_repeat_to_the_bit),
];

fn products_are_the_sums(bench: &Bench, words: &mut Words) -> Outcome {
    for (compute, rounding) in [(Compute::F32, 0.0), (Compute::Tf32, TF32_ROUNDING)] {
        products_in::<f32>(bench, words, compute, rounding)?;
    }
    products_in::<bf16>(bench, words, Compute::Bf16, 0.0)
}

/// `rounding` is the rounding of the factors.
fn products_in<T: Element>(bench: &Bench, words: &mut Words, compute: Compute, factors: f64) -> Outcome {
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
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
        Product::straight(&blas, compute, x_of, y_turned, matrix(&narrow, m, n), Epilogue::None)?,
        Product::of_transposed(&blas, compute, x_turned, y_turned, sums_out, Epilogue::None)?,
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

fn products_are_taken_through_relus(bench: &Bench, words: &mut Words) -> Outcome {
    relu_gradients_in::<f32>(bench, words, Compute::F32)?;
    relu_gradients_in::<bf16>(bench, words, Compute::Bf16)
}

fn relu_gradients_in<T: Element>(bench: &Bench, words: &mut Words, compute: Compute) -> Outcome {
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let [m, n, k] = small_sizes(words);
    let (x, y, outputs) = (words.numbers::<T>(m * k), words.numbers::<T>(k * n), words.numbers::<T>(m * n));
    let [x_buffer, y_buffer, outputs_buffer] =
        [bench.buffer(&x)?, bench.buffer(&y)?, bench.buffer(&outputs)?];
    // Within a wider matrix, as the vectors' gradients are.
    let stride = n + 8;
    let (out, sums) = (bench.poison::<T>(m * stride)?, bench.poison::<f32>(n)?);
    let matrix = |buffer: &Buffer<T>, rows, columns, stride| Matrix {
        pointer: buffer.pointer(),
        rows,
        columns,
        stride,
    };
    let epilogue = Epilogue::ReluGradient { outputs: matrix(&outputs_buffer, m, n, n), sums: sums.pointer() };
    let (x_of, y_of) = (matrix(&x_buffer, m, k, k), matrix(&y_buffer, k, n, n));
    let product = Product::straight(&blas, compute, x_of, y_of, matrix(&out, m, n, stride), epilogue)?;
    // SAFETY: all buffers live until the lane has been waited for by reading.
    unsafe { product.enqueue(&blas, &bench.lane) }?;
    let (out, sums) = (out.read(&bench.lane)?, sums.read(&bench.lane)?);
    let mut column_sums = vec![(0.0, 0.0); n];
    for (i, output) in outputs.iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let found = f64::from(out[row * stride + column].value());
        let terms = (0..k).map(|j| f64::from(x[row * k + j].value()) * f64::from(y[j * n + column].value()));
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let expected = if output.value() > 0.0 { sum } else { 0.0 };
        let tolerance = size * k as f64 * F32_ROUNDING + F32_ROUNDING;
        let tolerance = tolerance + rounding::<T>() * (expected.abs() + tolerance);
        close("through a ReLU", i, found, expected, if output.value() > 0.0 { tolerance } else { 0.0 })?;
        let (sum, size) = &mut column_sums[column];
        (*sum, *size) = (*sum + found, *size + found.abs());
    }
    for (column, &(sum, size)) in column_sums.iter().enumerate() {
        close("sum of", column, f64::from(sums[column]), sum, size * m as f64 * F32_ROUNDING + F32_ROUNDING)?;
    }
    if out.iter().enumerate().any(|(i, element)| i % stride >= n && !element.value().is_nan()) {
        return Err("something was written outside of the product".into());
    }
    Ok(())
}

/// At a size at which many blocks have several tiles each.
fn large_products_repeat_to_the_bit(bench: &Bench, words: &mut Words) -> Outcome {
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let (m, n, k) = (24_000 + words.below(1000) as usize, 1024, 520);
    let buffers = [(m, k), (k, n), (m, n)].map(|(rows, columns)| {
        let numbers: Vec<bf16> = words.numbers(rows * columns / 64);
        let numbers: Vec<_> = numbers.iter().cycle().take(rows * columns).copied().collect();
        bench.buffer(&numbers).map(|buffer| (buffer, rows, columns))
    });
    let [x, y, outputs] = buffers;
    let (x, y, outputs) = (x?, y?, outputs?);
    let matrix = |(buffer, rows, columns): &(Buffer<bf16>, usize, usize)| Matrix {
        pointer: buffer.pointer(),
        rows: *rows,
        columns: *columns,
        stride: *columns,
    };
    let mut results = Vec::new();
    for _ in 0..3 {
        let (out, sums) = (bench.poison::<bf16>(m * n)?, bench.poison::<f32>(n)?);
        let epilogue = Epilogue::ReluGradient { outputs: matrix(&outputs), sums: sums.pointer() };
        let output = Matrix { pointer: out.pointer(), rows: m, columns: n, stride: n };
        let product = Product::straight(&blas, Compute::Bf16, matrix(&x), matrix(&y), output, epilogue)?;
        // SAFETY: all buffers live until the lane has been waited for by reading.
        unsafe { product.enqueue(&blas, &bench.lane) }?;
        let bits: Vec<_> = out.read(&bench.lane)?.iter().map(|element| element.to_bits()).collect();
        let sums: Vec<_> = sums.read(&bench.lane)?.iter().map(|sum| sum.to_bits()).collect();
        if bits.iter().any(|&bits| bf16::from_bits(bits).is_nan()) {
            return Err("an element was not written".into());
        }
        results.push((bits, sums));
    }
    if results.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err("results differ from run to run".into());
    }
    Ok(())
}

fn cross_layers_are_made_on_the_way(bench: &Bench, words: &mut Words) -> Outcome {
    let sizes = small_sizes(words);
    cross_layers_in::<f32>(bench, words, Compute::F32, sizes)?;
    cross_layers_in::<bf16>(bench, words, Compute::Bf16, sizes)
}

/// Samples, columns and depth: not multiples of any tile size, but of the eight elements to which rows are aligned.
fn small_sizes(words: &mut Words) -> [usize; 3] {
    let m = 1 + words.below(900) as usize;
    let mut size = || 8 * (1 + words.below(60)) as usize;
    [m, size(), size()]
}

/// At a size at which all blocks have several tiles each, whose products take less time than their elements.
fn large_cross_layers_of_little_depth(bench: &Bench, words: &mut Words) -> Outcome {
    let sizes = [12_000 + words.below(1000) as usize, 776, 8 * (1 + words.below(8)) as usize];
    cross_layers_in::<bf16>(bench, words, Compute::Bf16, sizes)?;
    cross_gradients_in::<bf16>(bench, words, Compute::Bf16, sizes)
}

fn cross_layers_in<T: Element>(
    bench: &Bench,
    words: &mut Words,
    compute: Compute,
    [m, n, k]: [usize; 3],
) -> Outcome {
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    // x0 within a wider matrix, as the vectors are.
    let stride = n + 8;
    let (x, y) = (words.numbers::<T>(m * k), words.numbers::<T>(n * k));
    let first = words.numbers::<T>(m * stride);
    // The input of the first layer is x0 itself.
    let input_stride = if words.below(3) == 0 { stride } else { n };
    let input = if input_stride == stride { first.clone() } else { words.numbers::<T>(m * n) };
    let bias = words.numbers::<f32>(n);
    let buffers = [bench.buffer(&x)?, bench.buffer(&y)?, bench.buffer(&first)?, bench.buffer(&input)?];
    let bias_buffer = bench.buffer(&bias)?;
    let (out, product) = (bench.poison::<T>(m * n)?, bench.poison::<T>(m * n)?);
    let matrix = |buffer: &Buffer<T>, rows, columns, stride| Matrix {
        pointer: buffer.pointer(),
        rows,
        columns,
        stride,
    };
    let epilogue = Epilogue::Cross {
        first: matrix(&buffers[2], m, n, stride),
        input: matrix(&buffers[if input_stride == stride { 2 } else { 3 }], m, n, input_stride),
        bias: bias_buffer.pointer(),
        product: matrix(&product, m, n, n),
    };
    let (x_of, y_of) = (matrix(&buffers[0], m, k, k), matrix(&buffers[1], n, k, k));
    let whole = Product::by_transposed(&blas, compute, x_of, y_of, matrix(&out, m, n, n), epilogue)?;
    // SAFETY: all buffers live until the lane has been waited for by reading.
    unsafe { whole.enqueue(&blas, &bench.lane) }?;
    let (out, product) = (out.read(&bench.lane)?, product.read(&bench.lane)?);
    for i in 0..m * n {
        let (row, column) = (i / n, i % n);
        let pairs = x[row * k..][..k].iter().zip(&y[column * k..][..k]);
        let terms = pairs.map(|(x, y)| f64::from(x.value()) * f64::from(y.value()));
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let tolerance = size * k as f64 * F32_ROUNDING + F32_ROUNDING;
        let tolerance = tolerance + rounding::<T>() * (sum.abs() + tolerance);
        let u = f64::from(product[i].value());
        close("product", i, u, sum, tolerance)?;
        let [x0, x, b] =
            [first[row * stride + column].value(), input[row * input_stride + column].value(), bias[column]]
                .map(f64::from);
        let expected = x0 * (u + b) + x;
        let size = x0.abs() * (u.abs() + b.abs()) + x.abs();
        let tolerance = 3.0 * size * F32_ROUNDING + rounding::<T>() * expected.abs();
        close("cross layer", i, f64::from(out[i].value()), expected, tolerance)?;
    }
    Ok(())
}

fn cross_layers_are_gone_back_through_on_the_way(bench: &Bench, words: &mut Words) -> Outcome {
    let sizes = small_sizes(words);
    cross_gradients_in::<f32>(bench, words, Compute::F32, sizes)?;
    cross_gradients_in::<bf16>(bench, words, Compute::Bf16, sizes)
}

fn cross_gradients_in<T: Element>(
    bench: &Bench,
    words: &mut Words,
    compute: Compute,
    [m, n, k]: [usize; 3],
) -> Outcome {
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    // x0 within a wider matrix, as the vectors are.
    let stride = n + 8;
    let (x, y) = (words.numbers::<T>(m * k), words.numbers::<T>(k * n));
    let (first, more) = (words.numbers::<T>(m * stride), words.numbers::<T>(m * n));
    let added = words.below(2) == 0;
    let buffers = [bench.buffer(&x)?, bench.buffer(&y)?, bench.buffer(&first)?, bench.buffer(&more)?];
    let (out, product) = (bench.poison::<T>(m * n)?, bench.poison::<T>(m * n)?);
    let sums = bench.poison::<f32>(n)?;
    let matrix = |buffer: &Buffer<T>, rows, columns, stride| Matrix {
        pointer: buffer.pointer(),
        rows,
        columns,
        stride,
    };
    let epilogue = Epilogue::CrossGradient {
        added: added.then(|| matrix(&buffers[3], m, n, n)),
        first: matrix(&buffers[2], m, n, stride),
        product: matrix(&product, m, n, n),
        sums: sums.pointer(),
    };
    let (x_of, y_of) = (matrix(&buffers[0], m, k, k), matrix(&buffers[1], k, n, n));
    let whole = Product::straight(&blas, compute, x_of, y_of, matrix(&out, m, n, n), epilogue)?;
    // SAFETY: all buffers live until the lane has been waited for by reading.
    unsafe { whole.enqueue(&blas, &bench.lane) }?;
    let (out, product, sums) = (out.read(&bench.lane)?, product.read(&bench.lane)?, sums.read(&bench.lane)?);
    let mut column_sums = vec![(0.0, 0.0); n];
    for i in 0..m * n {
        let (row, column) = (i / n, i % n);
        let terms = (0..k).map(|j| f64::from(x[row * k + j].value()) * f64::from(y[j * n + column].value()));
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let more = if added { f64::from(more[i].value()) } else { 0.0 };
        // The sum may be rounded before another term is added.
        let tolerance = (size + 1.0) * k as f64 * F32_ROUNDING + F32_ROUNDING;
        let tolerance = tolerance + 2.0 * rounding::<T>() * (sum.abs() + more.abs() + tolerance);
        let g = f64::from(out[i].value());
        close("result gradient", i, g, sum + more, tolerance)?;
        // With the gradients as they were rounded.
        let expected = f64::from(first[row * stride + column].value()) * g;
        let (found, tolerance) = (f64::from(product[i].value()), expected.abs() * rounding::<T>());
        close("product gradient", i, found, expected, tolerance + F32_ROUNDING)?;
        let (sum, size) = &mut column_sums[column];
        // Including those that are summed before they are rounded.
        (*sum, *size) = (*sum + found, *size + found.abs() * (m as f64 * F32_ROUNDING + rounding::<T>()));
    }
    for (column, &(sum, tolerance)) in column_sums.iter().enumerate() {
        close("sum of", column, f64::from(sums[column]), sum, tolerance + F32_ROUNDING)?;
    }
    Ok(())
}

fn timed_algorithms_can_be_recorded(bench: &Bench, words: &mut Words) -> Outcome {
    let (m, n, k) = (8 * (100 + words.below(400)) as usize, 256, 128);
    let numbers = bench.buffer(&words.numbers::<bf16>(m * k + n * k))?;
    let bits = |algorithms: Algorithms| -> Result<_, Failed> {
        let blas = Blas::new(&bench.device, algorithms)?;
        let out = bench.poison::<bf16>(m * n)?;
        let matrix = |pointer, rows, columns| Matrix { pointer, rows, columns, stride: columns };
        let (x, y) = (matrix(numbers.pointer(), m, k), matrix(numbers.pointer().element(m * k), n, k));
        let output = matrix(out.pointer(), m, n);
        let product = Product::by_transposed(&blas, Compute::Bf16, x, y, output, Epilogue::None)?;
        // SAFETY: all buffers live until the lane has been waited for by reading.
        unsafe { product.enqueue(&blas, &bench.lane) }?;
        let bits: Vec<_> = out.read(&bench.lane)?.iter().map(|element| element.to_bits()).collect();
        Ok((bits, blas.tuning()))
    };
    let (timed, record) = bits(Algorithms::Timed)?;
    if record.algorithms.len() != 1 {
        return Err(format!("the record has {} algorithms for one product", record.algorithms.len()).into());
    }
    if bits(Algorithms::Recorded(record.clone()))? != (timed, record.clone()) {
        return Err("with the record the product differs".into());
    }
    let elsewhere = Tuning { gpu: "another GPU".into(), ..record.clone() };
    let refused = |tuning, words: &str| match bits(Algorithms::Recorded(tuning)) {
        Err(failed) if failed.message().is_some_and(|message| message.contains(words)) => Ok(()),
        other => Err(format!("a record with {words} should be refused, but: {other:?}")),
    };
    refused(elsewhere, "another GPU")?;
    let mut unknown = record;
    unknown.algorithms.values_mut().for_each(|words| *words = "ffff 0 0 0 0 0 0 0".into());
    refused(unknown, "rejects its algorithm")?;
    Ok(())
}
