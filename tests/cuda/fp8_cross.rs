//! Cross layers in fp8.

use half::bf16;
use rankine_cuda::blas::{
    Algorithms, Blas, Fp8CrossGradientMatrices, Fp8CrossKept, Fp8CrossMatrices, Fp8Factors, Matrix, Product,
};
use rankine_cuda::kernels::{CROSS_LAYERS, Element, Fp8CrossFirst, Fp8Scaling, Guard};
use rankine_cuda::{Buffer, E4m3, Pointer};

use super::fp8::{Order, Sum, Tensor, close_in_fp8, product};
use super::{BF16_ROUNDING, Bench, Body, CASES, F32_ROUNDING, Outcome, Words, close};

pub(crate) const BODIES: &[Body] = &[
    ("fp8_plain_products_are_the_sums", 2 * CASES, plain_products_are_the_sums),
    ("fp8_cross_layers_are_the_formula", 4 * CASES, layers_are_the_formula),
    ("fp8_cross_gradients_are_the_formula", 4 * CASES, gradients_are_the_formula),
    ("fp8_x0_gradients_are_those_of_all_layers", CASES, x0_gradients_are_those_of_all_layers),
    ("fp8_products_give_all_x0_gradients", 4 * CASES, products_give_all_x0_gradients),
    ("large_fp8_cross_layers_repeat_to_the_bit", 1, large_layers_repeat_to_the_bit),
];

/// Checks numbers of fp8 against values known within a tolerance, and the largest magnitude recorded in their scaling.
/// Rows after the last one are samples of zeros, whose values are 0.
struct Checked {
    scaling: Fp8Scaling,
    largest: f64,
    within: f64,
}

impl Checked {
    fn new(scaling: Fp8Scaling) -> Self {
        Self { scaling, largest: 0.0, within: 0.0 }
    }

    fn number(&mut self, what: &str, index: usize, found: E4m3, value: f64, tolerance: f64) -> Outcome {
        let scale = f64::from(self.scaling.scale);
        self.largest = self.largest.max(value.abs() * scale);
        self.within = self.within.max(tolerance * scale);
        close_in_fp8(what, index, found, self.scaling, (value, tolerance))
    }

    fn largest(&self, what: &str) -> Outcome {
        let recorded = f64::from(f32::from_bits(self.scaling.largest));
        // It is taken from values in f32.
        close(what, 0, recorded, self.largest, self.within + self.largest * F32_ROUNDING)
    }
}

/// Samples, and the width and depth of a product.
fn sizes(words: &mut Words) -> [usize; 3] {
    let mut size = || 16 * (1 + words.below(30)) as usize;
    let [n, k] = [size(), size()];
    [1 + words.below(500) as usize, n, k]
}

/// Returns the typical size of a product's sums.
fn typical(x: &Tensor, weights: &Tensor, depth: usize) -> f64 {
    product(x.row(0), weights.row(0).iter().copied(), [x.least, weights.least]).size.max(1e-3)
        / (depth as f64).sqrt()
}

fn plain_products_are_the_sums(bench: &Bench, words: &mut Words) -> Outcome {
    if !bench.device.multiplies_fp8() {
        return Ok(());
    }
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let [m, n, k] = sizes(words);
    let x = Tensor::random(bench, words, (m, k), Order::Samples)?;
    let weights = Tensor::random(bench, words, (n, k), Order::Weights)?;
    let out = Tensor::poison(bench, (m, n), typical(&x, &weights, k) * words.one_of(&[0.2, 1.0, 4.0]))?;
    let [of_x, of_weights] = [&x, &weights].map(|tensor| tensor.on_gpu().straight());
    let plain = Product::fp8_plain(&blas, of_x, of_weights, out.on_gpu(), true)?;
    // SAFETY: all buffers live until the lane has been waited for by reading.
    unsafe { plain.enqueue(&blas, &bench.lane) }?;
    let (found, scaling) = out.written(bench)?;
    let mut checked = Checked::new(scaling);
    for (i, &found) in found.iter().enumerate() {
        let Sum { value, size, off } =
            product(x.row(i / n), weights.row(i % n).iter().copied(), [x.least, weights.least]);
        checked.number("product", i, found, value, off + size * F32_ROUNDING)?;
    }
    checked.largest("the largest product")?;
    // Without a backward pass only the rows are written.
    let other = Tensor::poison(bench, (m, n), 1.0)?;
    let plain = Product::fp8_plain(&blas, of_x, of_weights, other.on_gpu(), false)?;
    // SAFETY: as above.
    unsafe { plain.enqueue(&blas, &bench.lane) }?;
    let turned = other.buffers.1.read(&bench.lane)?;
    if turned.iter().any(|&number| number != E4m3(0xff)) || other.buffers.2.read(&bench.lane)?[0].largest != 0
    {
        return Err("the turned matrix or the scaling was written without a backward pass".into());
    }
    Ok(())
}

fn layers_are_the_formula(bench: &Bench, words: &mut Words) -> Outcome {
    if !bench.device.multiplies_fp8() {
        return Ok(());
    }
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let [m, n, k] = sizes(words);
    let low = Tensor::random(bench, words, (m, k), Order::Samples)?;
    let weights = Tensor::random(bench, words, (n, k), Order::Weights)?;
    let first = Tensor::random(bench, words, (m, n), Order::Samples)?;
    let input = Tensor::random(bench, words, (m, n), Order::Samples)?;
    let is_first = words.below(2) == 0;
    let learns = words.below(4) > 0;
    let typical = typical(&low, &weights, k);
    let bias: Vec<_> = words.numbers::<f32>(n).iter().map(|bias| bias * typical as f32).collect();
    let bias_at = bench.buffer(&bias)?;
    let most = first.values.iter().fold(0.0, |most: f64, x0| most.max(x0.abs()));
    let u = Tensor::poison(bench, (m, n), typical)?;
    let out = Tensor::poison(bench, (m, n), most * typical)?;
    let [of_low, of_weights] = [&low, &weights].map(|tensor| tensor.on_gpu().straight());
    let matrices = Fp8CrossMatrices {
        factors: Fp8Factors { samples: of_low, weights: of_weights },
        bias: bias_at.pointer(),
        first: first.on_gpu().straight(),
        input: (!is_first).then(|| input.on_gpu().straight()),
        product: u.on_gpu().straight(),
        out: out.on_gpu(),
    };
    let layer = Product::fp8_cross(&blas, matrices, learns)?;
    // SAFETY: all buffers live until the lane has been waited for by reading.
    unsafe { layer.enqueue(&blas, &bench.lane) }?;
    let of_u = u.buffers.0.read(&bench.lane)?;
    let (found, scaling) = if learns {
        out.written(bench)?
    } else {
        let written =
            of_u.iter().chain(&out.buffers.1.read(&bench.lane)?).any(|&number| number != E4m3(0xff));
        if written || out.buffers.2.read(&bench.lane)?[0].largest != 0 {
            return Err("data for a backward pass was written without one".into());
        }
        (out.buffers.0.read(&bench.lane)?, out.buffers.2.read(&bench.lane)?[0])
    };
    let mut of_product = Checked::new(u.buffers.2.read(&bench.lane)?[0]);
    let mut of_output = Checked::new(scaling);
    for (i, &found) in found.iter().enumerate() {
        let Sum { value, size, off } =
            product(low.row(i / n), weights.row(i % n).iter().copied(), [low.least, weights.least]);
        let off = off + size * F32_ROUNDING;
        if learns {
            of_product.number("product", i, of_u[i], value, off)?;
        }
        let (x0, b) = (first.values[i], f64::from(bias[i % n]));
        let x = if is_first { x0 } else { input.values[i] };
        let tolerance =
            x0.abs() * (off + 3.0 * (size + b.abs()) * F32_ROUNDING) + 3.0 * x.abs() * F32_ROUNDING;
        of_output.number("cross layer", i, found, x0 * (value + b) + x, tolerance)?;
    }
    if learns {
        of_product.largest("the largest product")?;
        of_output.largest("the largest result")?;
    }
    Ok(())
}

fn gradients_are_the_formula(bench: &Bench, words: &mut Words) -> Outcome {
    if !bench.device.multiplies_fp8() {
        return Ok(());
    }
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let [m, n, k] = sizes(words);
    let dy = Tensor::random(bench, words, (m, k), Order::Samples)?;
    let weights = Tensor::random(bench, words, (k, n), Order::Weights)?;
    let first = Tensor::random(bench, words, (m, n), Order::Samples)?;
    let more = Tensor::random(bench, words, (m, n), Order::Samples)?;
    let added = words.below(2) == 0;
    let turned: Vec<Vec<f64>> =
        (0..n).map(|column| (0..k).map(|row| weights.row(row)[column]).collect()).collect();
    let typical = product(dy.row(0), turned[0].iter().copied(), [dy.least, weights.least]).size.max(1e-3)
        / (k as f64).sqrt();
    let most = first.values.iter().fold(0.0, |most: f64, x0| most.max(x0.abs()));
    let out = Tensor::poison(bench, (m, n), typical)?;
    let by_product = Tensor::poison(bench, (m, n), most * typical)?;
    let sums = bench.poison::<f32>(n)?;
    let matrices = Fp8CrossGradientMatrices {
        factors: Fp8Factors { samples: dy.on_gpu().straight(), weights: weights.on_gpu().across() },
        first: first.on_gpu().straight(),
        added: added.then(|| more.on_gpu().straight()),
        out: out.on_gpu().straight(),
        product: by_product.on_gpu(),
    };
    let gradient = Product::fp8_cross_gradient(&blas, matrices, sums.pointer())?;
    // SAFETY: all buffers live until the lane has been waited for by reading.
    unsafe { gradient.enqueue(&blas, &bench.lane) }?;
    let of_out = out.buffers.0.read(&bench.lane)?;
    let mut of_result = Checked::new(out.buffers.2.read(&bench.lane)?[0]);
    let (found, scaling) = by_product.written(bench)?;
    let mut of_product = Checked::new(scaling);
    let sums = sums.read(&bench.lane)?;
    let mut of_columns = vec![(0.0, 0.0); n];
    for (i, &found) in found.iter().enumerate() {
        let Sum { value, size, off } =
            product(dy.row(i / n), turned[i % n].iter().copied(), [dy.least, weights.least]);
        let more = if added { more.values[i] } else { 0.0 };
        let off = off + 3.0 * (size + more.abs()) * F32_ROUNDING;
        of_result.number("result gradient", i, of_out[i], value + more, off)?;
        let (x0, g) = (first.values[i], value + more);
        let tolerance = x0.abs() * (off + 2.0 * g.abs() * F32_ROUNDING);
        of_product.number("product gradient", i, found, x0 * g, tolerance)?;
        let (sum, within) = &mut of_columns[i % n];
        (*sum, *within) = (*sum + x0 * g, *within + tolerance + (x0 * g).abs() * m as f64 * F32_ROUNDING);
    }
    of_result.largest("the largest result gradient")?;
    of_product.largest("the largest product gradient")?;
    for (column, &(sum, within)) in of_columns.iter().enumerate() {
        close("sum of", column, f64::from(sums[column]), sum, within)?;
    }
    Ok(())
}

fn x0_gradients_are_those_of_all_layers(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, columns) = (1 + words.below(600) as usize, 16 * (1 + words.below(30) as usize));
    let stride = columns + words.one_of(&[0, 8]);
    let layers = 1 + words.below(CROSS_LAYERS as u64) as usize;
    let mut before = words.numbers::<bf16>(samples * stride);
    // A gradient that is not finite must be reported.
    let wrong = words.below(2) == 0;
    if wrong {
        let index = words.below(samples as u64) as usize * stride + words.below(columns as u64) as usize;
        before[index] = words.one_of(&[bf16::INFINITY, bf16::NAN]);
    }
    let through = words.below(2) == 0;
    let (by_x0, guard) = (bench.buffer(&before)?, Buffer::of(&bench.device, &[Guard::new(1.0)])?);
    let mut first = Fp8CrossFirst {
        products: [Pointer::NULL; CROSS_LAYERS],
        gradients: [Pointer::NULL; CROSS_LAYERS],
        products_scalings: [Pointer::NULL; CROSS_LAYERS],
        gradients_scalings: [Pointer::NULL; CROSS_LAYERS],
        biases: [Pointer::NULL; CROSS_LAYERS],
        first_gradients: by_x0.pointer(),
        guard: guard.pointer(),
        layers: layers as u32,
        samples: samples as u32,
        columns: columns as u32,
        first_stride: stride as u32,
        through: u32::from(through),
        reserved: 0,
    };
    let mut tensors = Vec::new();
    for layer in 0..layers {
        let [u, g] = [(); 2].map(|()| Tensor::random(bench, words, (samples, columns), Order::Samples));
        let (u, g, b) = (u?, g?, words.numbers::<f32>(columns));
        let at = bench.buffer(&b)?;
        (first.products[layer], first.gradients[layer]) = (u.on_gpu().rows.pointer, g.on_gpu().rows.pointer);
        first.products_scalings[layer] = u.on_gpu().scaling;
        first.gradients_scalings[layer] = g.on_gpu().scaling;
        first.biases[layer] = at.pointer();
        tensors.push((u, g, b, at));
    }
    // SAFETY: the buffers have these lengths.
    unsafe { bench.lane.launch(&first, first.grid()) }?;
    let (by_x0, guard) = (by_x0.read(&bench.lane)?, guard.read(&bench.lane)?[0]);
    if (guard.found != 0) != wrong {
        return Err(format!("the guard has {}, expected a finding: {wrong}", guard.found).into());
    }
    for index in 0..samples * columns {
        let (sample, column) = (index / columns, index % columns);
        let mut expected = f64::from(before[sample * stride + column].value());
        let mut size = expected.abs();
        for (number, (u, g, b, _)) in tensors.iter().enumerate() {
            let (u, g, b) = (u.values[index], g.values[index], f64::from(b[column]));
            let once = if through && number == 0 { g } else { 0.0 };
            expected += (u + b) * g + once;
            size += (u.abs() + b.abs()) * g.abs() + once.abs();
        }
        if expected.is_finite() {
            let found = f64::from(by_x0[sample * stride + column].value());
            let tolerance = 4.0 * (layers + 1) as f64 * size * F32_ROUNDING;
            let tolerance = tolerance + BF16_ROUNDING * (expected.abs() + tolerance);
            close("x0 gradient", index, found, expected, tolerance)?;
        }
    }
    Ok(())
}

fn products_give_all_x0_gradients(bench: &Bench, words: &mut Words) -> Outcome {
    if !bench.device.multiplies_fp8() {
        return Ok(());
    }
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let [m, n, k] = sizes(words);
    let dy = Tensor::random(bench, words, (m, k), Order::Samples)?;
    let weights = Tensor::random(bench, words, (k, n), Order::Weights)?;
    let (mut kept, mut tensors) = (Vec::new(), Vec::new());
    for _ in 0..1 + words.below(CROSS_LAYERS as u64) {
        let u = Tensor::random(bench, words, (m, n), Order::Samples)?;
        let g = Tensor::random(bench, words, (m, n), Order::Samples)?;
        let b = words.numbers::<f32>(n);
        let at = bench.buffer(&b)?;
        kept.push(Fp8CrossKept {
            product: u.on_gpu().straight(),
            gradients: g.on_gpu().straight(),
            bias: at.pointer(),
        });
        tensors.push((u, g, b, at));
    }
    // A gradient that is not finite must be reported.
    let wrong = (words.below(2) == 0).then(|| words.below((m * n) as u64) as usize);
    if let (Some(index), Some((_, g, ..))) = (wrong, tensors.last()) {
        let mut numbers = g.buffers.0.read(&bench.lane)?;
        numbers[index] = E4m3::NAN;
        g.buffers.0.write(&bench.lane, &numbers)?;
    }
    let stride = n + words.one_of(&[0, 8]);
    let before = words.numbers::<bf16>(m * stride);
    let (by_x0, guard) = (bench.buffer(&before)?, Buffer::of(&bench.device, &[Guard::new(1.0)])?);
    let out = Matrix { pointer: by_x0.pointer(), rows: m, columns: n, stride };
    let factors = Fp8Factors { samples: dy.on_gpu().straight(), weights: weights.on_gpu().across() };
    let product_of_all = Product::fp8_by_first(&blas, factors, &kept, out, guard.pointer())?;
    // SAFETY: all buffers live until the lane has been waited for by reading.
    unsafe { product_of_all.enqueue(&blas, &bench.lane) }?;
    let (by_x0, guard) = (by_x0.read(&bench.lane)?, guard.read(&bench.lane)?[0]);
    if (guard.found != 0) != wrong.is_some() {
        return Err(format!("the guard has {}, expected the finding {wrong:?}", guard.found).into());
    }
    let turned: Vec<Vec<f64>> =
        (0..n).map(|column| (0..k).map(|row| weights.row(row)[column]).collect()).collect();
    for (index, found) in by_x0.iter().enumerate() {
        let (row, column) = (index / stride, index % stride);
        if column >= n {
            if found.to_bits() != before[index].to_bits() {
                return Err(format!("row {row}: memory after the gradients was written").into());
            }
            continue;
        }
        let i = row * n + column;
        if wrong == Some(i) {
            continue;
        }
        let Sum { value, size, off } =
            product(dy.row(row), turned[column].iter().copied(), [dy.least, weights.least]);
        let (mut expected, mut size) = (value, size);
        for (number, (u, g, b, _)) in tensors.iter().enumerate() {
            let (u, g, b) = (u.values[i], g.values[i], f64::from(b[column]));
            let once = if number == 0 { g } else { 0.0 };
            expected += (u + b) * g + once;
            size += (u.abs() + b.abs()) * g.abs() + once.abs();
        }
        let tolerance = off + 4.0 * (tensors.len() + 1) as f64 * size * F32_ROUNDING;
        let tolerance = tolerance + BF16_ROUNDING * (expected.abs() + tolerance);
        close("x0 gradient", i, f64::from(found.value()), expected, tolerance)?;
    }
    Ok(())
}

/// At a size at which many blocks have several tiles each.
fn large_layers_repeat_to_the_bit(bench: &Bench, words: &mut Words) -> Outcome {
    if !bench.device.multiplies_fp8() {
        return Ok(());
    }
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let (m, n, k) = (16_000 + words.below(1000) as usize, 1040, 256);
    let low = Tensor::random(bench, words, (m, k), Order::Samples)?;
    let weights = Tensor::random(bench, words, (n, k), Order::Weights)?;
    let back = Tensor::random(bench, words, (k, n), Order::Weights)?;
    let first = Tensor::random(bench, words, (m, n), Order::Samples)?;
    let input = Tensor::random(bench, words, (m, n), Order::Samples)?;
    let no_bias = Buffer::filled(&bench.device, n, 0)?;
    let mut results = Vec::new();
    for _ in 0..3 {
        let poison = || Tensor::poison(bench, (m, n), f64::from(1u32 << 20));
        let [u, out, g, by_product] = [poison()?, poison()?, poison()?, poison()?];
        let sums = bench.poison::<f32>(n)?;
        let [of_low, of_first, of_input] = [&low, &first, &input].map(|tensor| tensor.on_gpu().straight());
        let forward = Fp8CrossMatrices {
            factors: Fp8Factors { samples: of_low, weights: weights.on_gpu().straight() },
            bias: no_bias.pointer(),
            first: of_first,
            input: Some(of_input),
            product: u.on_gpu().straight(),
            out: out.on_gpu(),
        };
        let backward = Fp8CrossGradientMatrices {
            factors: Fp8Factors { samples: of_low, weights: back.on_gpu().across() },
            first: of_first,
            added: Some(of_input),
            out: g.on_gpu().straight(),
            product: by_product.on_gpu(),
        };
        let layer = Product::fp8_cross(&blas, forward, true)?;
        let gradient = Product::fp8_cross_gradient(&blas, backward, sums.pointer())?;
        // SAFETY: all buffers live until the lane has been waited for by reading.
        unsafe {
            layer.enqueue(&blas, &bench.lane)?;
            gradient.enqueue(&blas, &bench.lane)?;
        }
        let written = [out.written(bench)?.0, by_product.written(bench)?.0];
        let straight = [u.buffers.0.read(&bench.lane)?, g.buffers.0.read(&bench.lane)?];
        if written.iter().chain(&straight).any(|numbers| numbers.contains(&E4m3(0xff))) {
            return Err("an element was not written".into());
        }
        let sums: Vec<_> = sums.read(&bench.lane)?.iter().map(|sum| sum.to_bits()).collect();
        results.push((written, straight, sums));
    }
    if results.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err("results differ from run to run".into());
    }
    Ok(())
}
