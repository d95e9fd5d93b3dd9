//! The GPU against the CPU: kernels and products within what rounding explains, whole trainings, and the same bits each
//! time.
//!
//! Inputs are new in each run; a failure tells the seed, and `RANKINE_TEST_SEED` repeats it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use half::bf16;
use libtest_mimic::{Arguments, Failed, Trial};
use rankine::cpu::CpuModel;
use rankine::cuda::CudaModel;
use rankine::job::Precision;
use rankine::model::{FeatureSpec, HeadSpec, Interaction, ModelSpec, TrainingRules};
use rankine_cuda::blas::{Blas, Compute, Epilogue, Matrix, Product};
use rankine_cuda::kernels::{
    Columns, DenseInput, DenseSgd, Dot, DotBackward, DotForward, Element, Head, Loss, Step, Total,
};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::random::philox4x32;
use rankine_embedding::{Optimizer, Pooling, TableSpec};
use rankine_reader::{Bags, Samples};

type Outcome = Result<(), Failed>;

/// Half the distance from 1 to the next number.
const F32_ROUNDING: f64 = 1.0 / (1 << 24) as f64;
const TF32_ROUNDING: f64 = 1.0 / 2048.0;
const BF16_ROUNDING: f64 = 1.0 / 256.0;
const CASES: u64 = 6;

fn main() -> ExitCode {
    let there = match Device::count() {
        Ok(count) => count > 0,
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    };
    let seed = std::env::var("RANKINE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
    });
    type Body = fn(&Bench, &mut Words) -> Outcome;
    let bodies: [(&str, u64, Body); 9] = [
        ("products_are_the_sums", CASES, products_are_the_sums),
        ("dense_columns_are_filled_up", CASES, dense_columns_are_filled_up),
        ("dots_and_their_gradients_are_the_sums_in_f32", CASES, dots_are_the_sums::<f32>),
        ("dots_and_their_gradients_are_the_sums_in_bf16", CASES, dots_are_the_sums::<bf16>),
        ("columns_are_summed", CASES, columns_are_summed),
        ("the_head_is_the_formula", CASES, the_head_is_the_formula),
        ("training_is_the_cpus", 3, training_is_the_cpus),
        ("bf16_learns_as_the_cpu_does", 1, bf16_learns_as_the_cpu_does),
        ("a_loss_that_is_no_number_changes_nothing", 1, a_loss_that_is_no_number_changes_nothing),
    ];
    let trials = bodies.map(|(name, cases, body)| {
        let trial = Trial::test(name, move || {
            let bench = Bench::new()?;
            (0..cases).try_for_each(|case| {
                body(&bench, &mut Words { seed: seed ^ case << 32, next: 0 }).map_err(|failed| {
                    let what = failed.message().unwrap_or_default();
                    format!("seed {seed}, case {case}: {what}").into()
                })
            })
        });
        trial.with_ignored_flag(!there)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

/// Random numbers.
struct Words {
    seed: u64,
    next: u32,
}

impl Words {
    fn below(&mut self, end: u64) -> u64 {
        self.next += 1;
        let words = philox4x32([self.next, 0, 0, 0], [self.seed as u32, (self.seed >> 32) as u32]);
        (u64::from(words[0]) << 32 | u64::from(words[1])) % end
    }

    fn one_of<V: Copy>(&mut self, choices: &[V]) -> V {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// From -1 to 1.
    fn number(&mut self) -> f32 {
        (self.below(1 << 24) as f32) / (1 << 23) as f32 - 1.0
    }

    fn numbers<T: Element>(&mut self, count: usize) -> Vec<T> {
        (0..count).map(|_| T::of(self.number())).collect()
    }
}

/// A GPU and a lane.
struct Bench {
    device: Arc<Device>,
    lane: Lane,
}

impl Bench {
    fn new() -> Result<Self, Failed> {
        let device = Device::open(0)?;
        Ok(Self { lane: Lane::new(&device)?, device })
    }

    fn buffer<T: Element>(&self, elements: &[T]) -> Result<Buffer<T>, Failed> {
        Ok(Buffer::of(&self.device, elements)?)
    }

    /// What no test may find: a number that is none.
    fn poison<T: Element>(&self, count: usize) -> Result<Buffer<T>, Failed> {
        Ok(Buffer::filled(&self.device, count, 0xff)?)
    }
}

fn close(what: &str, place: usize, found: f64, expected: f64, tolerance: f64) -> Outcome {
    if (found - expected).abs() <= tolerance {
        return Ok(());
    }
    Err(format!("{what} {place}: {found}, and {expected} is expected, within {tolerance:e}").into())
}

fn rounding<T: Element>() -> f64 {
    if T::BF16 { BF16_ROUNDING } else { F32_ROUNDING }
}

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

fn dense_columns_are_filled_up(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, columns) = (1 + words.below(999) as usize, 1 + words.below(20) as usize);
    let stride = columns.next_multiple_of(8);
    let dense = words.numbers::<f32>(samples * columns);
    let (input, output) = (bench.buffer(&dense)?, bench.poison::<bf16>(samples * stride)?);
    let convert = DenseInput {
        dense: input.pointer(),
        output: output.pointer(),
        samples: samples as u32,
        columns: columns as u32,
        stride: stride as u32,
        reserved: 0,
    };
    // SAFETY: the buffers have these lengths.
    unsafe { bench.lane.launch(&convert, (7, 1)) }?;
    for (i, value) in output.read(&bench.lane)?.into_iter().enumerate() {
        let (sample, column) = (i / stride, i % stride);
        let expected = if column < columns { dense[sample * columns + column] } else { 0.0 };
        if value != bf16::from_f32(expected) {
            return Err(format!("column {column} of sample {sample} is {value}, not {expected}").into());
        }
    }
    Ok(())
}

fn dots_are_the_sums<T: Element>(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, count, dim) =
        (1 + words.below(70) as usize, 2 + words.below(33) as usize, words.one_of(&[16, 48, 128]));
    let passed = words.one_of(&[0, dim]);
    let relu = passed > 0 && words.below(2) == 0;
    let pairs = count * (count - 1) / 2;
    let stride = (passed + pairs).next_multiple_of(8);
    let vectors = words.numbers::<T>(samples * count * dim);
    let by_products = words.numbers::<T>(samples * stride);
    let [vectors_at, back_at] = [bench.buffer(&vectors)?, bench.buffer(&by_products)?];
    let (products, gradients) = (bench.poison::<T>(samples * stride)?, bench.poison::<T>(vectors.len())?);
    let dot = Dot {
        vectors: vectors_at.pointer(),
        products: products.pointer(),
        gradients: gradients.pointer(),
        samples: samples as u32,
        count: count as u32,
        dim: dim as u32,
        passed: passed as u32,
        stride: stride as u32,
        relu: u32::from(relu),
    };
    let back = Dot { products: back_at.pointer(), ..dot };
    // Few blocks, so that they loop.
    let grid = (dot.grid(1).0.min(5), 1);
    // SAFETY: the buffers have these lengths.
    unsafe {
        bench.lane.launch(&DotForward(dot), grid)?;
        bench.lane.launch(&DotBackward(back), grid)?;
    }
    let (products, gradients) = (products.read(&bench.lane)?, gradients.read(&bench.lane)?);
    let value = |elements: &[T], i: usize| f64::from(elements[i].value());
    for sample in 0..samples {
        let at = |vector: usize, d: usize| value(&vectors, (sample * count + vector) * dim + d);
        let mut expected = vec![0.0; stride];
        let mut back = vec![0.0; count * dim];
        for d in 0..passed {
            expected[d] = at(0, d);
            back[d] = value(&by_products, sample * stride + d);
        }
        let mut place = passed;
        for high in 0..count {
            for low in 0..high {
                let gradient = value(&by_products, sample * stride + place);
                expected[place] = (0..dim).map(|d| at(high, d) * at(low, d)).sum();
                for d in 0..dim {
                    back[high * dim + d] += gradient * at(low, d);
                    back[low * dim + d] += gradient * at(high, d);
                }
                place += 1;
            }
        }
        for (d, gradient) in back[..passed].iter_mut().enumerate() {
            if relu && at(0, d) <= 0.0 {
                *gradient = 0.0;
            }
        }
        let tolerance = |terms: usize, value: f64| {
            let sums = (terms * terms) as f64 * F32_ROUNDING;
            sums + rounding::<T>() * (value.abs() + sums)
        };
        for (i, &expected) in expected.iter().enumerate() {
            let found = value(&products, sample * stride + i);
            close("product", i, found, expected, tolerance(dim + 1, expected))?;
        }
        for (i, &expected) in back.iter().enumerate() {
            let found = value(&gradients, sample * count * dim + i);
            close("gradient", i, found, expected, tolerance(count + 1, expected))?;
        }
    }
    Ok(())
}

fn columns_are_summed(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, columns) = (1 + words.below(3000) as usize, 4 * (1 + words.below(60)) as usize);
    let stride = columns + words.one_of(&[0, 8]);
    let (gradients, outputs) =
        (words.numbers::<bf16>(samples * stride), words.numbers::<bf16>(samples * columns));
    let through_relu = words.below(2) == 0;
    let (at, outputs_at) = (bench.buffer(&gradients)?, bench.buffer(&outputs)?);
    let pieces = Columns::<bf16>::pieces(samples as u32);
    let (parts, sums) = (bench.poison::<f32>(pieces as usize * columns)?, bench.poison::<f32>(columns)?);
    let of_pieces = Columns {
        gradients: at.pointer(),
        outputs: if through_relu { outputs_at.pointer() } else { Pointer::NULL },
        parts: parts.pointer(),
        samples: samples as u32,
        columns: columns as u32,
        stride: stride as u32,
        outputs_stride: columns as u32,
    };
    let total = Total { parts: parts.pointer(), sums: sums.pointer(), pieces, columns: columns as u32 };
    // SAFETY: the buffers have these lengths.
    unsafe {
        bench.lane.launch(&of_pieces, of_pieces.grid())?;
        bench.lane.launch(&total, total.grid())?;
    }
    let (sums, masked) = (sums.read(&bench.lane)?, at.read(&bench.lane)?);
    for (column, &sum) in sums.iter().enumerate() {
        let (mut expected, mut size) = (0.0, 0.0);
        for sample in 0..samples {
            let kept = !through_relu || outputs[sample * columns + column].to_f32() > 0.0;
            let gradient = if kept { gradients[sample * stride + column] } else { bf16::ZERO };
            if masked[sample * stride + column] != gradient {
                return Err(
                    format!("column {column} of sample {sample} is not taken through the ReLU").into()
                );
            }
            expected += gradient.to_f64();
            size += gradient.to_f64().abs();
        }
        close("sum", column, f64::from(sum), expected, size * samples as f64 * F32_ROUNDING)?;
    }
    Ok(())
}

fn the_head_is_the_formula(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, width) = (1 + words.below(700) as usize, 8 * (1 + words.below(50)) as usize);
    let (input, weights) = (words.numbers::<f32>(samples * width), words.numbers::<f32>(width + 1));
    let labels: Vec<_> = (0..samples).map(|_| words.one_of(&[0.0, 1.0, f32::NAN])).collect();
    let sample_weights: Vec<_> = (0..samples).map(|_| words.number() + 1.0).collect();
    let there = labels.iter().zip(&sample_weights).filter(|(label, _)| !label.is_nan());
    let total_weight: f64 = there.map(|(_, &weight)| f64::from(weight)).sum();
    let step = Step { head_weight: 1.5, total_weight, dense_rate: 0.25, loss_place: 1 };
    let relu = words.below(2) == 0;
    let (input_at, weights_at) = (bench.buffer(&input)?, bench.buffer(&weights)?);
    let (labels_at, sample_weights_at) = (bench.buffer(&labels)?, bench.buffer(&sample_weights)?);
    let (step_at, stop) = (Buffer::of(&bench.device, &[step])?, Buffer::filled(&bench.device, 1, 0)?);
    let pieces = Head::<f32>::pieces(samples as u32);
    let (logits, gradients) = (bench.poison::<f32>(samples)?, bench.poison::<f32>(samples * width)?);
    let (parts, sums) =
        (bench.poison::<f32>(pieces as usize * (width + 1))?, bench.poison::<f32>(width + 1)?);
    let losses = Buffer::<f64>::filled(&bench.device, pieces as usize, 0xff)?;
    let loss_sums = Buffer::<f64>::filled(&bench.device, 2, 0xff)?;
    let head = Head {
        input: input_at.pointer(),
        weights: weights_at.pointer(),
        labels: labels_at.pointer(),
        sample_weights: sample_weights_at.pointer(),
        step: step_at.pointer(),
        logits: logits.pointer(),
        gradients: gradients.pointer(),
        parts: parts.pointer(),
        losses: losses.pointer(),
        samples: samples as u32,
        width: width as u32,
        relu: u32::from(relu),
        reserved: 0,
    };
    let total = Total { parts: parts.pointer(), sums: sums.pointer(), pieces, columns: width as u32 + 1 };
    let loss = Loss {
        losses: losses.pointer(),
        step: step_at.pointer(),
        sums: loss_sums.pointer(),
        stop: stop.pointer(),
        pieces,
        reserved: 0,
    };
    let sgd = DenseSgd {
        parameters: weights_at.pointer(),
        gradients: sums.pointer(),
        copies: Pointer::NULL,
        step: step_at.pointer(),
        stop: stop.pointer(),
        count: width as u32 + 1,
        reserved: 0,
    };
    // SAFETY: the buffers have these lengths.
    unsafe {
        bench.lane.launch(&head, (pieces, 1))?;
        bench.lane.launch(&loss, (1, 1))?;
        bench.lane.launch(&total, total.grid())?;
        bench.lane.launch(&sgd, (3, 1))?;
    }
    let (logits, gradients) = (logits.read(&bench.lane)?, gradients.read(&bench.lane)?);
    let (mut loss, mut by_weights, mut sizes) = (0.0, vec![0.0; width + 1], vec![0.0; width + 1]);
    for sample in 0..samples {
        let x = |column: usize| f64::from(input[sample * width + column]);
        let weight = |column: usize| f64::from(weights[column]);
        let logit: f64 = (0..width).map(|column| x(column) * weight(column)).sum::<f64>() + weight(width);
        let tolerance = ((width + 1) * (width + 1)) as f64 * F32_ROUNDING;
        close("logit", sample, f64::from(logits[sample]), logit, tolerance)?;
        let mut gradient = 0.0;
        if !labels[sample].is_nan() {
            let (label, weight) = (f64::from(labels[sample]), f64::from(sample_weights[sample]));
            loss += weight * ((1.0 + logit.exp()).ln() - label * logit);
            gradient = 1.5 * weight * (1.0 / (1.0 + (-logit).exp()) - label) / total_weight;
        }
        for column in 0..=width {
            let x = if column < width { x(column) } else { 1.0 };
            by_weights[column] += gradient * x;
            sizes[column] += (gradient * x).abs() + tolerance * 2.0 / total_weight.max(1e-9);
            if column < width {
                let expected = if relu && x <= 0.0 { 0.0 } else { gradient * weight(column) };
                let found = f64::from(gradients[sample * width + column]);
                let tolerance = (tolerance + 4.0 * F32_ROUNDING) * 3.0 / total_weight.max(1e-9);
                close("gradient", sample * width + column, found, expected, tolerance)?;
            }
        }
    }
    let tolerance = samples as f64 * ((width + 1) * (width + 1)) as f64 * 2.0 * F32_ROUNDING;
    close("loss", 0, loss_sums.read(&bench.lane)?[1], loss, tolerance)?;
    let updated = weights_at.read(&bench.lane)?;
    for (column, &sum) in sums.read(&bench.lane)?.iter().enumerate() {
        let tolerance = sizes[column] * (samples + 4) as f64 * F32_ROUNDING + sizes[column] * 1e-6;
        close("sum", column, f64::from(sum), by_weights[column], tolerance + 1e-6)?;
        if updated[column] != weights[column] - 0.25 * sum {
            return Err(format!(
                "weight {column} is {}, not {} - 0.25 x {sum}",
                updated[column], weights[column]
            )
            .into());
        }
    }
    Ok(())
}

/// A model with features of several tables, and batches of learnable samples.
struct Training {
    spec: ModelSpec,
    rules: TrainingRules,
    batch_size: usize,
    seed: u64,
    batches: Vec<Samples>,
}

impl Training {
    fn random(words: &mut Words, steps: usize) -> Self {
        let (dim, dense_columns) = (words.one_of(&[16, 32]), words.one_of(&[0, 5, 13]));
        let tables: Vec<_> = [3, 50, 2_000, 70_000]
            .into_iter()
            .enumerate()
            .map(|(number, rows)| TableSpec { name: format!("t{number}"), rows, dim })
            .collect();
        let feature = |number: usize| FeatureSpec {
            column: format!("c{number}"),
            table: number % tables.len(),
            pooling: Pooling::Sum,
        };
        let spec = ModelSpec {
            dense_columns,
            bottom_mlp: if dense_columns > 0 { vec![40, dim] } else { Vec::new() },
            interaction: Interaction::Dot,
            wide: false,
            top_mlp: words.one_of(&[&[][..], &[64, 30], &[33]]).to_vec(),
            heads: vec![HeadSpec { label: "label".into(), label_number: 0, weight: 0.7 }],
            features: (0..6).map(feature).collect(),
            tables,
        };
        let mut rules = TrainingRules::sgd(&spec, 0.2);
        rules.tables[1] = Optimizer::sgd(1.0);
        let batch_size = words.one_of(&[64, 300, 513]);
        let weighted = words.below(2) == 0;
        let batches = (0..steps)
            .map(|step| {
                let len =
                    if step % 7 == 6 { 1 + words.below(batch_size as u64) as usize } else { batch_size };
                let categorical: Vec<_> = (spec.features.iter())
                    .map(|feature| {
                        let rows = spec.tables[feature.table].rows as f64;
                        let id = |words: &mut Words| {
                            let unit = words.below(1 << 30) as f64 / f64::from(1 << 30);
                            (unit.powi(3) * rows) as u64
                        };
                        let ids = (0..len).map(|_| id(words)).collect();
                        Bags { offsets: (0..=len as u32).collect(), ids }
                    })
                    .collect();
                let mut label = |sample: usize| {
                    if words.below(20) == 0 {
                        return f32::NAN;
                    }
                    let parity = categorical.iter().map(|bags| bags.ids[sample]).sum::<u64>() % 3;
                    if words.below(10) < 3 + 3 * parity { 1.0 } else { 0.0 }
                };
                let labels = vec![(0..len).map(&mut label).collect()];
                let weights =
                    if weighted { (0..len).map(|_| words.number() + 1.5).collect() } else { Vec::new() };
                let dense = words.numbers::<f32>(len * dense_columns);
                Samples { len, labels, weights, dense, dense_columns, categorical }
            })
            .collect();
        Self { spec, rules, batch_size, seed: words.below(u64::MAX), batches }
    }

    fn on_gpu(&self, bench: &Bench, precision: Precision) -> Result<CudaModel, Failed> {
        let sizes = (self.batch_size, 100);
        let Self { spec, rules, seed, .. } = self;
        Ok(CudaModel::initialized(&bench.device, spec.clone(), rules, precision, *seed, sizes)?)
    }

    fn losses_on_gpu(&self, model: &mut CudaModel) -> Result<Vec<f64>, Failed> {
        let mut losses = Vec::new();
        for (step, batch) in self.batches.iter().enumerate() {
            model.train_step(batch, factor(step))?;
            model.take_losses(step % 50 == 49, |loss| losses.push(loss))?;
        }
        model.take_losses(true, |loss| losses.push(loss))?;
        Ok(losses)
    }

    fn on_cpu(&self) -> (CpuModel, Vec<f64>) {
        let mut model = CpuModel::initialized(self.spec.clone(), &self.rules, self.seed);
        let batches = self.batches.iter().enumerate();
        let losses = batches.map(|(step, batch)| model.train_step(batch, factor(step))).collect();
        (model, losses)
    }
}

/// A schedule's.
fn factor(step: usize) -> f64 {
    1.0 / (1.0 + step as f64 / 300.0)
}

fn weights(model: &CpuModel) -> Vec<f32> {
    let mut weights = model.parameters().to_vec();
    let told: Result<(), ()> = model.try_for_each_row(|_, row| {
        weights.extend(row);
        Ok(())
    });
    told.expect("nothing is refused");
    weights
}

fn training_is_the_cpus(bench: &Bench, words: &mut Words) -> Outcome {
    let training = Training::random(words, 200);
    let (mut on_cpu, expected) = training.on_cpu();
    for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16] {
        let mut model = training.on_gpu(bench, precision)?;
        let losses = training.losses_on_gpu(&mut model)?;
        let trained = weights(&model.to_host()?);
        if precision == Precision::Fp32 {
            for (step, (&loss, &expected)) in losses.iter().zip(&expected).enumerate() {
                close("the loss of step", step + 1, loss, expected, 1e-4 * expected)?;
            }
            let (mut logits, mut of_cpu) = (Vec::new(), Vec::new());
            model.logits(&training.batches[0], &mut logits)?;
            on_cpu.logits(&training.batches[0], &mut of_cpu);
            if logits.len() != of_cpu.len() {
                return Err(format!("{} logits of {} samples", logits.len(), of_cpu.len()).into());
            }
            for (sample, (&logit, &expected)) in logits.iter().zip(&of_cpu).enumerate() {
                close("logit", sample, f64::from(logit), f64::from(expected), 1e-3)?;
            }
            for (number, (&weight, &expected)) in trained.iter().zip(&weights(&on_cpu)).enumerate() {
                close("weight", number, f64::from(weight), f64::from(expected), 1e-3)?;
            }
        }
        let mut again = training.on_gpu(bench, precision)?;
        if training.losses_on_gpu(&mut again)? != losses || weights(&again.to_host()?) != trained {
            return Err(format!("two trainings in {} are not the same", precision.name()).into());
        }
    }
    Ok(())
}

fn bf16_learns_as_the_cpu_does(bench: &Bench, words: &mut Words) -> Outcome {
    let training = Training::random(words, 200);
    let (_, expected) = training.on_cpu();
    let losses = training.losses_on_gpu(&mut training.on_gpu(bench, Precision::Bf16)?)?;
    let mean = |losses: &[f64]| losses[150..].iter().sum::<f64>() / 50.0;
    close("the mean of the last 50 losses", 0, mean(&losses), mean(&expected), 0.01 * mean(&expected))
}

fn a_loss_that_is_no_number_changes_nothing(bench: &Bench, words: &mut Words) -> Outcome {
    let mut training = Training::random(words, 3);
    training.spec.heads[0].weight = 1.0;
    let mut model = training.on_gpu(bench, Precision::Bf16)?;
    training.losses_on_gpu(&mut model)?;
    let before = weights(&model.to_host()?);
    let mut weights_of_none = training.batches[0].clone();
    weights_of_none.weights = vec![f32::NAN; weights_of_none.len];
    training.batches.insert(0, weights_of_none);
    let losses = training.losses_on_gpu(&mut model)?;
    if losses.len() != 4 || !losses[0].is_nan() || weights(&model.to_host()?) != before {
        return Err(format!("weights changed after the losses {losses:?}").into());
    }
    Ok(())
}
