//! Products in fp8, their inputs, and the scales of tensors.

use half::bf16;
use rankine_cuda::blas::{Algorithms, Blas, Fp8Outputs, Fp8Tensor, Matrix, Product};
use rankine_cuda::kernels::{
    Dot, DotFp8, Element, FP8_MULTIPLE, Fp8Check, Fp8Quantize, Fp8QuantizeWeights, Fp8RankMagnitudes,
    Fp8Rescale, Fp8Scaling, Fp8Tell, Fp8Weights, Guard, paired_position, transposed_position,
};
use rankine_cuda::{Buffer, E4m3, Pointer};

use super::{BF16_ROUNDING, Bench, Body, CASES, F32_ROUNDING, Outcome, Words, close};

pub(crate) const BODIES: &[Body] = &[
    ("activations_become_fp8", CASES, activations_become_fp8),
    ("dot_products_become_fp8", CASES, dot_products_become_fp8),
    ("weights_become_fp8", CASES, weights_become_fp8),
    ("fp8_layers_are_the_sums", 4 * CASES, fp8_layers_are_the_sums),
    ("fp8_gradients_are_the_sums", 4 * CASES, fp8_gradients_are_the_sums),
    ("fp8_products_are_the_sums", 4 * CASES, fp8_products_are_the_sums),
    ("large_fp8_products_repeat_to_the_bit", 1, large_products_repeat_to_the_bit),
    ("ranks_agree_on_the_largest_magnitudes_of_fp8", CASES, ranks_agree_on_the_largest_magnitudes),
    ("fp8_scales_follow_the_steps", CASES, scales_follow_the_steps),
];

/// Half the distance from 1 to the next number, and from 0.
const FP8_ROUNDING: f64 = 1.0 / 16.0;
const FP8_LEAST: f64 = 1.0 / 1024.0;
/// The least normal number. The tensor cores treat smaller numbers, including zero, as having its exponent.
const LEAST_NORMAL: f64 = 1.0 / 64.0;
/// The tensor cores add 32 products to a sum at a time. They align all 33 terms to the largest exponent among them and
/// truncate each below the 13th bit after the point. A product's exponent is the sum of its factors' exponents.
const CUT_OFF: f64 = 1.0 / 8192.0;
const AT_ONCE: usize = 32;

/// A tensor on the GPU and on the CPU.
pub(crate) struct Tensor {
    rows: usize,
    columns: usize,
    /// The fp8 numbers, divided by the scale.
    pub(crate) values: Vec<f64>,
    /// The least normal number of fp8, divided by the scale.
    pub(crate) least: f64,
    pub(crate) buffers: (Buffer<E4m3>, Buffer<E4m3>, Buffer<Fp8Scaling>),
}

/// The layout of both copies' rows.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Order {
    Samples,
    Weights,
}

impl Tensor {
    /// Random numbers.
    pub(crate) fn random(
        bench: &Bench,
        words: &mut Words,
        (rows, columns): (usize, usize),
        order: Order,
    ) -> Result<Self, libtest_mimic::Failed> {
        let scaling = Fp8Scaling::expecting(words.one_of(&[0.003, 1.0, 70.0]));
        // Some are 0, some are below the normal numbers.
        let sizes = [0.0, 0.01, 1.0, 40.0, 40.0, 448.0];
        let pattern: Vec<_> = (0..4099).map(|_| E4m3::of(words.number() * words.one_of(&sizes))).collect();
        let begin = words.below(4099) as usize;
        let numbers: Vec<_> = (0..rows * columns).map(|i| pattern[(begin + i * 7) % 4099]).collect();
        let along = rows.next_multiple_of(FP8_MULTIPLE);
        let (mut straight, mut turned) = (vec![E4m3(0); rows * columns], vec![E4m3(0); along * columns]);
        for row in 0..rows {
            for column in 0..columns {
                let number = numbers[row * columns + column];
                let (to_row, to_column) = match order {
                    Order::Weights => (paired_position(row), paired_position(column)),
                    Order::Samples => (row, column),
                };
                let sample = if order == Order::Samples { transposed_position(row) } else { row };
                straight[to_row * columns + column] = number;
                turned[to_column * along + sample] = number;
            }
        }
        let inverse = f64::from(scaling.inverse);
        Ok(Self {
            rows,
            columns,
            values: numbers.iter().map(|number| f64::from(number.value()) * inverse).collect(),
            least: LEAST_NORMAL * inverse,
            buffers: (bench.buffer(&straight)?, bench.buffer(&turned)?, bench.buffer(&[scaling])?),
        })
    }

    /// A tensor to be written: samples, with a scale for values of this size.
    pub(crate) fn poison(
        bench: &Bench,
        (rows, columns): (usize, usize),
        size: f64,
    ) -> Result<Self, libtest_mimic::Failed> {
        let along = rows.next_multiple_of(FP8_MULTIPLE);
        let filled = |len| Buffer::filled(&bench.device, len, 0xff);
        let scaling = bench.buffer(&[Fp8Scaling::expecting(size as f32)])?;
        let buffers = (filled(rows * columns)?, filled(along * columns)?, scaling);
        Ok(Self { rows, columns, values: Vec::new(), least: 0.0, buffers })
    }

    pub(crate) fn on_gpu(&self) -> Fp8Tensor {
        let Self { rows, columns, .. } = *self;
        Fp8Tensor {
            rows: dense(self.buffers.0.pointer(), rows, columns),
            turned: dense(self.buffers.1.pointer(), columns, rows.next_multiple_of(FP8_MULTIPLE)),
            scaling: self.buffers.2.pointer(),
        }
    }

    pub(crate) fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// Returns the numbers that were written, if both copies agree, and their scaling.
    pub(crate) fn written(&self, bench: &Bench) -> Result<(Vec<E4m3>, Fp8Scaling), libtest_mimic::Failed> {
        let Self { rows, columns, .. } = *self;
        let along = rows.next_multiple_of(FP8_MULTIPLE);
        let straight = self.buffers.0.read(&bench.lane)?;
        let turned = self.buffers.1.read(&bench.lane)?;
        for row in 0..rows {
            for column in 0..columns {
                let number = straight[row * columns + column];
                let other = turned[column * along + transposed_position(row)];
                if number != other {
                    return Err(format!("row {row}, column {column}: {number:?}, turned {other:?}").into());
                }
            }
        }
        Ok((straight, self.buffers.2.read(&bench.lane)?[0]))
    }
}

pub(crate) fn dense<T>(pointer: Pointer<T>, rows: usize, columns: usize) -> Matrix<T> {
    Matrix { pointer, rows, columns, stride: columns }
}

/// A sum of products, and its tolerance on tensor cores.
#[derive(Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) value: f64,
    /// The sum of the magnitudes.
    pub(crate) size: f64,
    /// The largest error of tensor cores.
    pub(crate) off: f64,
}

/// Computes the sum of products, and the largest error of tensor cores, which add 32 at a time in any order: every
/// partial sum consists of consecutive products. Sums of parts are added up in f32.
///
/// `least_normal` has the least normal number of each factor's tensor.
pub(crate) fn product(x: &[f64], y: impl Iterator<Item = f64>, least_normal: [f64; 2]) -> Sum {
    let [least_x, least_y] = least_normal;
    let (products, aligned): (Vec<f64>, Vec<f64>) =
        x.iter().zip(y).map(|(&x, y)| (x * y, x.abs().max(least_x) * y.abs().max(least_y))).unzip();
    let magnitude = |products: &[f64]| products.iter().map(|product| product.abs()).sum::<f64>();
    let (mut value, mut least, mut most) = (0.0, 0.0f64, 0.0f64);
    for part in products.chunks(AT_ONCE) {
        let above = part.iter().map(|product| product.max(0.0)).sum::<f64>();
        let below = part.iter().map(|product| product.min(0.0)).sum::<f64>();
        (least, most) = (least.min(value + below), most.max(value + above));
        value += above + below;
    }
    let size = magnitude(&products);
    // Partial sums with errors may start with another power of two: hence twice.
    let parts = products.chunks(AT_ONCE).zip(aligned.chunks(AT_ONCE)).map(|(part, aligned)| {
        let largest = aligned.iter().fold(most - least, |largest, &magnitude| largest.max(magnitude));
        let bit = 2.0 * CUT_OFF * largest;
        part.iter().map(|product| product.abs().min(bit)).sum::<f64>() + bit
    });
    let off = parts.sum::<f64>() + 2.0 * size * products.len().div_ceil(AT_ONCE) as f64 * F32_ROUNDING;
    Sum { value, size, off }
}

/// Checks a number of fp8 against a value known within a tolerance.
pub(crate) fn close_in_fp8(
    what: &str,
    index: usize,
    found: E4m3,
    scaling: Fp8Scaling,
    (expected, within): (f64, f64),
) -> Outcome {
    let (scale, found) = (f64::from(scaling.scale), f64::from(found.value()));
    let (scaled, within) = ((expected * scale).clamp(-448.0, 448.0), within * scale);
    let tolerance = within + (FP8_ROUNDING * (scaled.abs() + within)).max(FP8_LEAST);
    close(what, index, found, scaled, tolerance)
}

fn activations_become_fp8(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, columns) = (1 + words.below(600) as usize, 16 * (1 + words.below(20) as usize));
    let stride = columns + words.one_of(&[0, 8]);
    let mut values = words.numbers::<bf16>(samples * stride);
    values[0] = bf16::from_f32(3.0);
    let from = bench.buffer(&values)?;
    let out = Tensor::poison(bench, (samples, columns), 1.0)?;
    let [rows, turned] = [out.on_gpu().rows.pointer, out.on_gpu().turned.pointer];
    let quantize = Fp8Quantize {
        values: from.pointer(),
        rows,
        turned,
        scaling: out.on_gpu().scaling,
        samples: samples as u32,
        columns: columns as u32,
        stride: stride as u32,
        turned_stride: samples.next_multiple_of(FP8_MULTIPLE) as u32,
        learns: 1,
        rows_stride: columns as u32,
    };
    // SAFETY: the buffers have these lengths.
    unsafe { bench.lane.launch(&quantize, quantize.grid()) }?;
    let (found, scaling) = out.written(bench)?;
    let mut largest = 0.0f32;
    for (i, &found) in found.iter().enumerate() {
        let value = values[i / columns * stride + i % columns].to_f32() * scaling.scale;
        largest = largest.max(value.abs());
        if found != E4m3::of(value) {
            return Err(format!("{value} became {found:?}, not {:?}", E4m3::of(value)).into());
        }
    }
    if scaling.largest != largest.to_bits() {
        return Err(format!("the largest is {largest}, and {scaling:?}").into());
    }
    Ok(())
}

/// The results are those of the kernel for bf16, rounded once more.
fn dot_products_become_fp8(bench: &Bench, words: &mut Words) -> Outcome {
    let (count, dim) = (2 + words.below(47) as usize, words.one_of(&[16, 48, 128]));
    let samples = 1 + words.below(if count < 12 { 20_000 } else { 300 }) as usize;
    let (passed, learns) = (words.one_of(&[0, dim]), words.below(4) > 0);
    let columns = (passed + count * (count - 1) / 2).next_multiple_of(FP8_MULTIPLE);
    if !DotFp8::fits(count as u32, dim as u32, columns as u32) {
        return Err(format!("there is no kernel for {count} vectors of {dim}").into());
    }
    let vectors_stride = count * dim + words.one_of(&[0, 8]);
    let vectors = bench.buffer(&words.numbers::<bf16>(samples * vectors_stride))?;
    let in_bf16 = bench.poison::<bf16>(samples * columns)?;
    let guard = Buffer::of(&bench.device, &[Guard::new(1.0)])?;
    let dot = Dot {
        vectors: vectors.pointer(),
        products: in_bf16.pointer(),
        gradients: Pointer::NULL,
        guard: guard.pointer(),
        samples: samples as u32,
        count: count as u32,
        dim: dim as u32,
        vectors_stride: vectors_stride as u32,
        passed: passed as u32,
        stride: columns as u32,
        relu: 0,
        learns: learns.into(),
    };
    let out = Tensor::poison(bench, (samples, columns), words.one_of(&[0.3, 100.0]))?;
    let tensor = out.on_gpu();
    let in_fp8 = DotFp8 {
        dot: Dot { products: Pointer::NULL, ..dot },
        rows: tensor.rows.pointer,
        turned: tensor.turned.pointer,
        scaling: tensor.scaling,
        turned_stride: tensor.turned.stride as u32,
        reserved: 0,
    };
    // SAFETY: the buffers have these lengths.
    unsafe {
        dot.enqueue_forward(&bench.lane, None)?;
        in_fp8.enqueue(&bench.lane, None)?;
    }
    let values = in_bf16.read(&bench.lane)?;
    let (found, scaling) = if learns {
        out.written(bench)?
    } else {
        (out.buffers.0.read(&bench.lane)?, out.buffers.2.read(&bench.lane)?[0])
    };
    let mut largest = 0.0f32;
    for (i, (value, &found)) in values.iter().zip(&found).enumerate() {
        let value = value.to_f32() * scaling.scale;
        largest = largest.max(value.abs());
        if found != E4m3::of(value) {
            let (sample, column) = (i / columns, i % columns);
            return Err(format!("sample {sample}, column {column}: {value} became {found:?}").into());
        }
    }
    let expected = if learns { largest } else { 0.0 };
    if scaling.largest != expected.to_bits() {
        return Err(format!("the largest is {expected}, and {scaling:?}").into());
    }
    if learns {
        // What pads the transposed rows is zero: weight gradients sum over it.
        let along = samples.next_multiple_of(FP8_MULTIPLE);
        let turned = out.buffers.1.read(&bench.lane)?;
        for sample in samples..along {
            for column in 0..columns {
                let number = turned[column * along + transposed_position(sample)];
                if number != E4m3(0) {
                    return Err(format!("padding of column {column} is {number:?}").into());
                }
            }
        }
    }
    Ok(())
}

fn weights_become_fp8(bench: &Bench, words: &mut Words) -> Outcome {
    let mut size = || 16 * (1 + words.below(20) as usize);
    let sizes: Vec<_> = (0..3).map(|_| (size(), size())).collect();
    let mut layers = Vec::new();
    let mut tensors = Vec::new();
    for (outputs, inputs) in sizes {
        let values = words.numbers::<f32>(outputs * inputs);
        let at = bench.buffer(&values)?;
        let out = Tensor::poison(bench, (outputs, inputs), 0.7)?;
        let on_gpu = out.on_gpu();
        layers.push(Fp8Weights {
            values: at.pointer(),
            rows: on_gpu.rows.pointer,
            turned: on_gpu.turned.pointer,
            scaling: on_gpu.scaling,
            outputs: outputs as u32,
            inputs: inputs as u32,
        });
        tensors.push((values, out, at));
    }
    let layers_at = bench.buffer(&layers)?;
    let kernel = Fp8QuantizeWeights { layers: layers_at.pointer() };
    // SAFETY: the buffers have these lengths, and live until the lane has been waited for by reading.
    unsafe { bench.lane.launch(&kernel, Fp8QuantizeWeights::grid(&layers)) }?;
    for (values, out, _at) in &tensors {
        let Tensor { rows: outputs, columns: inputs, .. } = *out;
        let scaling = out.buffers.2.read(&bench.lane)?[0];
        let (rows, turned) = (out.buffers.0.read(&bench.lane)?, out.buffers.1.read(&bench.lane)?);
        let mut largest = 0.0f32;
        for (i, value) in values.iter().enumerate() {
            let (output, input) = (i / inputs, i % inputs);
            let value = value * scaling.scale;
            largest = largest.max(value.abs());
            let found = [
                rows[paired_position(output) * inputs + input],
                turned[paired_position(input) * outputs + output],
            ];
            if found != [E4m3::of(value); 2] {
                return Err(format!("{value} became {found:?}, not {:?}", E4m3::of(value)).into());
            }
        }
        if scaling.largest != largest.to_bits() {
            return Err(format!("the largest is {largest}, and {scaling:?}").into());
        }
    }
    Ok(())
}

fn fp8_layers_are_the_sums(bench: &Bench, words: &mut Words) -> Outcome {
    if !bench.device.multiplies_fp8() {
        return Ok(());
    }
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let m = 1 + words.below(500) as usize;
    let mut size = || 16 * (1 + words.below(30)) as usize;
    let (n, k) = (size(), size());
    let x = Tensor::random(bench, words, (m, k), Order::Samples)?;
    let weights = Tensor::random(bench, words, (n, k), Order::Weights)?;
    let typical = product(x.row(0), weights.row(0).iter().copied(), [x.least, weights.least]).size.max(1e-3)
        / (k as f64).sqrt();
    let bias: Vec<_> = words.numbers::<f32>(n).iter().map(|bias| bias * typical as f32).collect();
    let bias_at = bench.buffer(&bias)?;
    let out = Tensor::poison(bench, (m, n), typical * words.one_of(&[1.0, 4.0]))?;
    let bits = Buffer::filled(&bench.device, Fp8Outputs::words(m, n), 0xff)?;
    let outputs = Fp8Outputs { outputs: out.on_gpu(), bits: bits.pointer() };
    let layer = Product::fp8_relu(&blas, x.on_gpu(), weights.on_gpu(), bias_at.pointer(), outputs, true)?;
    // SAFETY: all buffers live until the lane has been waited for by reading.
    unsafe { layer.enqueue(&blas, &bench.lane) }?;
    let (found, scaling) = out.written(bench)?;
    // Rows after the last one count as samples of zeros.
    let scale = f64::from(scaling.scale);
    let padding =
        if m.is_multiple_of(160) { 0.0 } else { bias.iter().fold(0.0, |most: f32, &b| most.max(b)) };
    let (mut largest, mut within) = (f64::from(padding) * scale, 0.0f64);
    for (i, &found) in found.iter().enumerate() {
        let sum = product(x.row(i / n), weights.row(i % n).iter().copied(), [x.least, weights.least]);
        let bias = f64::from(bias[i % n]);
        let tolerance = sum.off + 2.0 * (sum.size + bias.abs()) * F32_ROUNDING;
        let expected = (sum.value + bias).max(0.0);
        close_in_fp8("output", i, found, scaling, (expected, tolerance))?;
        largest = largest.max(expected * scale);
        within = within.max(tolerance * scale);
    }
    close("the largest", 0, f64::from(f32::from_bits(scaling.largest)), largest, within)
}

fn fp8_gradients_are_the_sums(bench: &Bench, words: &mut Words) -> Outcome {
    if !bench.device.multiplies_fp8() {
        return Ok(());
    }
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let m = 1 + words.below(500) as usize;
    let mut size = || 16 * (1 + words.below(30)) as usize;
    let (before, n, k) = (size(), size(), size());
    // A layer with both kinds of outputs, some of them too small for fp8.
    let x = Tensor::random(bench, words, (m, before), Order::Samples)?;
    let weights = Tensor::random(bench, words, (n, before), Order::Weights)?;
    let typical = product(x.row(0), weights.row(0).iter().copied(), [x.least, weights.least]).size.max(1e-3)
        / (before as f64).sqrt();
    let out = Tensor::poison(bench, (m, n), typical * words.one_of(&[1.0, 1000.0]))?;
    let bits = Buffer::filled(&bench.device, Fp8Outputs::words(m, n), 0xff)?;
    let outputs = Fp8Outputs { outputs: out.on_gpu(), bits: bits.pointer() };
    let no_bias = Buffer::filled(&bench.device, n, 0)?;
    let layer = Product::fp8_relu(&blas, x.on_gpu(), weights.on_gpu(), no_bias.pointer(), outputs, true)?;
    let dy = Tensor::random(bench, words, (m, k), Order::Samples)?;
    let next = Tensor::random(bench, words, (k, n), Order::Weights)?;
    let turned: Vec<Vec<f64>> =
        (0..n).map(|column| (0..k).map(|row| next.row(row)[column]).collect()).collect();
    let typical = product(dy.row(0), turned[0].iter().copied(), [dy.least, next.least]).size.max(1e-3)
        / (k as f64).sqrt();
    let back = Tensor::poison(bench, (m, n), typical)?;
    let sums = bench.poison::<f32>(n)?;
    let gradient = Product::fp8_relu_gradient(
        &blas,
        dy.on_gpu(),
        next.on_gpu(),
        bits.pointer(),
        back.on_gpu(),
        sums.pointer(),
    )?;
    // SAFETY: all buffers live until the lane has been waited for by reading.
    unsafe {
        layer.enqueue(&blas, &bench.lane)?;
        gradient.enqueue(&blas, &bench.lane)?;
    }
    let (outputs, _) = out.written(bench)?;
    let (found, scaling) = back.written(bench)?;
    let sums = sums.read(&bench.lane)?;
    let scale = f64::from(scaling.scale);
    let (mut largest, mut within) = (0.0f64, 0.0f64);
    let mut of_columns = vec![(0.0, 0.0, 0.0); n];
    for (i, &found) in found.iter().enumerate() {
        let (row, column) = (i / n, i % n);
        if outputs[i].value() == 0.0 {
            if found.value() != 0.0 {
                return Err(format!("row {row}, column {column}: {found:?} after a ReLU of 0").into());
            }
            continue;
        }
        let Sum { value, size, off } =
            product(dy.row(row), turned[column].iter().copied(), [dy.least, next.least]);
        let tolerance = off + size * F32_ROUNDING;
        close_in_fp8("gradient", i, found, scaling, (value, tolerance))?;
        largest = largest.max(value.abs() * scale);
        within = within.max(tolerance * scale);
        let (all, sizes, tolerances) = &mut of_columns[column];
        (*all, *sizes, *tolerances) = (*all + value, *sizes + value.abs(), *tolerances + tolerance);
    }
    close("the largest", 0, f64::from(f32::from_bits(scaling.largest)), largest, within)?;
    for (column, &(sum, size, tolerance)) in of_columns.iter().enumerate() {
        let tolerance = tolerance + size * m as f64 * F32_ROUNDING;
        close("sum of", column, f64::from(sums[column]), sum, tolerance)?;
    }
    Ok(())
}

fn fp8_products_are_the_sums(bench: &Bench, words: &mut Words) -> Outcome {
    if !bench.device.multiplies_fp8() {
        return Ok(());
    }
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let mut size = || 16 * (1 + words.below(30)) as usize;
    let (n, k) = (size(), size());
    let m = 1 + words.below(500) as usize;
    let x = Tensor::random(bench, words, (m, k), Order::Samples)?;
    let dy = Tensor::random(bench, words, (m, n), Order::Samples)?;
    let weights = Tensor::random(bench, words, (n, k), Order::Weights)?;
    let bias = words.numbers::<f32>(n);
    let bias_at = bench.buffer(&bias)?;
    let (out, back) = (bench.poison::<bf16>(m * n)?, bench.poison::<bf16>(m * k)?);
    let by_weights = bench.poison::<f32>(n * k)?;
    let (at_out, at_back) = (dense(out.pointer(), m, n), dense(back.pointer(), m, k));
    let straight = [&x, &weights].map(|tensor| tensor.on_gpu().straight());
    let products = [
        Product::fp8_to_bf16(&blas, straight[0], straight[1], Some(bias_at.pointer()), at_out)?,
        Product::fp8_to_bf16(&blas, dy.on_gpu().straight(), weights.on_gpu().across(), None, at_back)?,
        Product::fp8_by_weights(&blas, dy.on_gpu(), x.on_gpu(), dense(by_weights.pointer(), n, k))?,
    ];
    for product in &products {
        // SAFETY: all buffers live until the lane has been waited for by reading.
        unsafe { product.enqueue(&blas, &bench.lane) }?;
    }
    for (i, found) in out.read(&bench.lane)?.into_iter().enumerate() {
        let sum = product(x.row(i / n), weights.row(i % n).iter().copied(), [x.least, weights.least]);
        let bias = f64::from(bias[i % n]);
        let expected = (sum.value + bias).max(0.0);
        let tolerance = sum.off + 2.0 * (sum.size + bias.abs()) * F32_ROUNDING;
        let tolerance = tolerance + BF16_ROUNDING * (expected + tolerance);
        close("output", i, f64::from(found.value()), expected, tolerance)?;
    }
    for (i, found) in back.read(&bench.lane)?.into_iter().enumerate() {
        let column = (0..n).map(|row| weights.row(row)[i % k]);
        let Sum { value, off, .. } = product(dy.row(i / k), column, [dy.least, weights.least]);
        let tolerance = off + BF16_ROUNDING * (value.abs() + off);
        close("input gradient", i, f64::from(found.value()), value, tolerance)?;
    }
    for (i, found) in by_weights.read(&bench.lane)?.into_iter().enumerate() {
        let of_dy: Vec<_> = (0..m).map(|row| dy.row(row)[i / k]).collect();
        let Sum { value, off, .. } =
            product(&of_dy, (0..m).map(|row| x.row(row)[i % k]), [dy.least, x.least]);
        close("weight gradient", i, f64::from(found), value, off)?;
    }
    Ok(())
}

/// At a size at which many blocks have several tiles each.
fn large_products_repeat_to_the_bit(bench: &Bench, words: &mut Words) -> Outcome {
    if !bench.device.multiplies_fp8() {
        return Ok(());
    }
    let blas = Blas::new(&bench.device, Algorithms::Known)?;
    let (m, n, k) = (24_000 + words.below(1000) as usize, 1024, 528);
    let x = Tensor::random(bench, words, (m, k), Order::Samples)?;
    let weights = Tensor::random(bench, words, (n, k), Order::Weights)?;
    let back = Tensor::random(bench, words, (k, n), Order::Weights)?;
    let no_bias = Buffer::filled(&bench.device, n, 0)?;
    let mut results = Vec::new();
    for _ in 0..3 {
        let (out, gradients) = (
            Tensor::poison(bench, (m, n), f64::from(1u32 << 10))?,
            Tensor::poison(bench, (m, n), f64::from(1u32 << 10))?,
        );
        let bits = Buffer::filled(&bench.device, Fp8Outputs::words(m, n), 0xff)?;
        let sums = bench.poison::<f32>(n)?;
        let outputs = Fp8Outputs { outputs: out.on_gpu(), bits: bits.pointer() };
        let layer = Product::fp8_relu(&blas, x.on_gpu(), weights.on_gpu(), no_bias.pointer(), outputs, true)?;
        let at = (bits.pointer(), gradients.on_gpu(), sums.pointer());
        let gradient = Product::fp8_relu_gradient(&blas, x.on_gpu(), back.on_gpu(), at.0, at.1, at.2)?;
        // SAFETY: all buffers live until the lane has been waited for by reading.
        unsafe {
            layer.enqueue(&blas, &bench.lane)?;
            gradient.enqueue(&blas, &bench.lane)?;
        }
        let (of_layer, of_gradient) = (out.written(bench)?, gradients.written(bench)?);
        let is_left = |numbers: &[E4m3]| numbers.contains(&E4m3(0xff));
        if is_left(&of_layer.0) || is_left(&of_gradient.0) {
            return Err("an element was not written".into());
        }
        let sums: Vec<_> = sums.read(&bench.lane)?.iter().map(|sum| sum.to_bits()).collect();
        results.push((of_layer, of_gradient, sums));
    }
    if results.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err("results differ from run to run".into());
    }
    Ok(())
}

fn scales_follow_the_steps(bench: &Bench, words: &mut Words) -> Outcome {
    let count = 1 + words.below(300) as usize;
    let mut expected: Vec<_> =
        (0..count).map(|_| Fp8Scaling::expecting(words.number().abs() + 1e-3)).collect();
    let tensors = bench.buffer(&expected)?;
    let guard = Buffer::of(&bench.device, &[Guard::new(1.0)])?;
    let check = Fp8Check::new(tensors.pointer(), count, guard.pointer());
    let rescale = Fp8Rescale::new(tensors.pointer(), count, guard.pointer());
    let mut of_tensor = vec![Vec::new(); count];
    for step in 0..40 {
        let wrong = words.below(5) == 0;
        for tensor in &mut expected {
            let size = words.one_of(&[0.0, 1e-20, 1.0, 300.0]);
            tensor.largest = (words.number().abs() * size).to_bits();
        }
        if wrong {
            let tensor = words.below(count as u64) as usize;
            expected[tensor].largest = words.one_of(&[f32::INFINITY, f32::NAN]).to_bits();
        }
        tensors.write(&bench.lane, &expected)?;
        // SAFETY: the buffers have these lengths.
        unsafe {
            bench.lane.launch(&check, (1, 1))?;
            let found = guard.read(&bench.lane)?[0];
            // The verdict does the same.
            guard.write(&bench.lane, &[Guard { stop: found.found, ..found }])?;
            bench.lane.launch(&rescale, (1, 1))?;
        }
        if (guard.read(&bench.lane)?[0].stop != 0) != wrong {
            return Err(format!("step {step}: wrong is {wrong}, but the guard disagrees").into());
        }
        guard.write(&bench.lane, &[Guard::new(1.0)])?;
        for (tensor, seen) in expected.iter_mut().zip(&mut of_tensor) {
            if !wrong {
                let magnitude = f32::from_bits(tensor.largest) * tensor.inverse;
                tensor.history[seen.len() % Fp8Scaling::HISTORY] = magnitude;
                seen.push(magnitude);
                tensor.steps = seen.len() as u32;
                let last = &seen[seen.len().saturating_sub(Fp8Scaling::HISTORY)..];
                let largest = last.iter().copied().fold(0.0, f32::max);
                if largest >= 1e-30 {
                    tensor.scale = Fp8Scaling::scale_of(largest);
                    tensor.inverse = 1.0 / tensor.scale;
                }
            }
            tensor.largest = 0;
        }
        for (number, (found, expected)) in tensors.read(&bench.lane)?.iter().zip(&expected).enumerate() {
            // Between two powers of two, both are correct.
            let same = Fp8Scaling { scale: found.scale, inverse: found.inverse, ..*expected } == *found;
            let scaled = found.history.iter().copied().fold(0.0, f32::max) * found.scale;
            let fits = found.scale == expected.scale || (112.0..=224.0).contains(&scaled);
            if !same || !fits || found.scale * found.inverse != 1.0 {
                return Err(format!("step {step}, tensor {number}: {found:?}, not {expected:?}").into());
            }
        }
    }
    Ok(())
}

fn ranks_agree_on_the_largest_magnitudes(bench: &Bench, words: &mut Words) -> Outcome {
    let (count, ranks) = (1 + words.below(70) as usize, 2 + words.below(7) as usize);
    let guard = Buffer::of(&bench.device, &[Guard::new(1.0)])?;
    let wrong = words.one_of(&[None, None, Some(f32::INFINITY), Some(f32::NAN)]);
    let mut of_ranks = Vec::new();
    for _ in 0..ranks {
        let magnitude = |_| words.number().abs() * words.one_of(&[0.0, 1e-30, 1.0, 400.0]);
        of_ranks.push((0..count).map(magnitude).collect::<Vec<f32>>());
    }
    if let Some(wrong) = wrong {
        let (rank, tensor) = (words.below(ranks as u64) as usize, words.below(count as u64) as usize);
        of_ranks[rank][tensor] = wrong;
    }
    let tensors = |largest: &[f32]| {
        let tensor = |largest: &f32| Fp8Scaling { largest: largest.to_bits(), ..Fp8Scaling::expecting(1.0) };
        Buffer::of(&bench.device, &largest.iter().map(tensor).collect::<Vec<_>>())
    };
    let numbers = |numbers_at: &Buffer<f64>, rank: usize| {
        let (rank, ranks) = (rank as u32, ranks as u32);
        Fp8RankMagnitudes { largest: numbers_at.pointer(), rank, ranks }
    };
    // The all-reduce over the ranks.
    let mut sums = vec![0.0_f64; ranks * count];
    for (rank, largest) in of_ranks.iter().enumerate() {
        let (tensors, numbers_at) =
            (tensors(largest)?, Buffer::of(&bench.device, &vec![7.0_f64; ranks * count])?);
        let tell = Fp8Tell::over_ranks(tensors.pointer(), count, guard.pointer(), numbers(&numbers_at, rank));
        // SAFETY: the buffers have these lengths.
        unsafe { bench.lane.launch(&tell, (1, 1)) }?;
        sums.iter_mut().zip(numbers_at.read(&bench.lane)?).for_each(|(sum, number)| *sum += number);
    }
    let rank = words.below(ranks as u64) as usize;
    let (tensors, numbers_at) = (tensors(&of_ranks[rank])?, Buffer::of(&bench.device, &sums)?);
    let check = Fp8Check::over_ranks(tensors.pointer(), count, guard.pointer(), numbers(&numbers_at, rank));
    // SAFETY: as above.
    unsafe { bench.lane.launch(&check, (1, 1)) }?;
    for (tensor, found) in tensors.read(&bench.lane)?.iter().enumerate() {
        let seen = of_ranks.iter().map(|largest| largest[tensor]);
        let (found, expected) = (f32::from_bits(found.largest), seen.clone().fold(0.0, f32::max));
        if found != expected && !seen.clone().any(f32::is_nan) {
            return Err(format!("tensor {tensor}: {found}, not {expected} of {ranks} ranks").into());
        }
    }
    let stopped = guard.read(&bench.lane)?[0].found != 0;
    if stopped != wrong.is_some() {
        return Err(format!("with {wrong:?} among them, the guard's decision is {stopped}").into());
    }
    Ok(())
}
