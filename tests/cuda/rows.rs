//! Dot interactions that look up rows of tables themselves.

use bytemuck::NoUninit;
use half::{bf16, f16};
use libtest_mimic::Failed;
use rankine_cuda::kernels::{BagPooling, Dot, DotFp8, Element, FP8_MULTIPLE, Feature, Guard, TableRows};
use rankine_cuda::{Buffer, Pointer};

use super::fp8::Tensor;
use super::{Bench, Body, CASES, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[
    ("dots_of_rows_are_those_of_vectors_in_bf16", 2 * CASES, dots_of_rows_are_those_of_vectors::<bf16>),
    ("dots_of_rows_are_those_of_vectors_in_f16", 2 * CASES, dots_of_rows_are_those_of_vectors::<f16>),
    ("fp8_dots_of_rows_are_those_of_vectors", 2 * CASES, fp8_dots_of_rows_are_those_of_vectors),
];

/// Tables, and a batch with one id per sample and table.
struct Batch {
    tables: Buffer<f32>,
    features: Buffer<Feature>,
    ids: Buffer<u32>,
    count: Buffer<u32>,
    /// Per sample and table: the position of the row; `None` after the end of the batch.
    rows: Vec<Option<usize>>,
    weights: Vec<f32>,
}

impl Batch {
    /// Some ids are out of range, which is the last row. What is between rows is NaN.
    fn random(
        bench: &Bench,
        words: &mut Words,
        (samples, tables): (usize, usize),
        dim: usize,
    ) -> Result<Self, Failed> {
        let there = samples - words.below(1 + samples as u64 / 3) as usize;
        let (mut weights, mut features, mut all_ids) = (Vec::new(), Vec::new(), Vec::new());
        let mut rows = vec![None; samples * tables];
        for table in 0..tables {
            let table_rows = words.one_of(&[1u64, 3, 500]);
            let row_words = dim + words.one_of(&[0, 4, dim]);
            let begin = weights.len();
            let feature = Feature {
                words: begin as u64,
                ids: all_ids.len() as u32,
                offsets: Feature::FIXED,
                hotness: 1,
                pooling: BagPooling::Sum as u32,
                base: 0,
                rows: table_rows as u32,
                row_words: row_words as u32,
                dim: dim as u32,
                vector_offset: ((1 + table) * dim) as u32,
                shard: table as u32,
                dtype: 0,
                slots: 0,
                owner: Feature::TURNS,
                frequent: Feature::UNLISTED,
                factors: 0,
                key_stride: 0,
            };
            features.push(feature);
            for _ in 0..table_rows {
                weights.extend((0..dim).map(|_| words.number()));
                weights.resize(weights.len() + row_words - dim, f32::NAN);
            }
            for sample in 0..samples {
                let id = words.below(table_rows + table_rows.div_ceil(20));
                all_ids.push(id as u32);
                let row = id.min(table_rows - 1) as usize;
                rows[sample * tables + table] = (sample < there).then_some(begin + row * row_words);
            }
        }
        Ok(Self {
            tables: bench.buffer(&weights)?,
            features: bench.buffer(&features)?,
            ids: bench.buffer(&all_ids)?,
            count: bench.buffer(&[there as u32])?,
            rows,
            weights,
        })
    }

    fn on_gpu(&self) -> TableRows {
        TableRows {
            tables: self.tables.pointer(),
            features: self.features.pointer(),
            ids: self.ids.pointer(),
            samples_count: self.count.pointer(),
        }
    }
}

/// A batch and its vectors.
struct Case<T> {
    batch: Batch,
    samples: usize,
    count: usize,
    dim: usize,
    passed: usize,
    stride: usize,
    vectors_stride: usize,
    vectors: Vec<T>,
    /// Whether a backward pass follows.
    learns: bool,
    guard: Buffer<Guard>,
}

impl<T: Element> Case<T> {
    fn random(bench: &Bench, words: &mut Words) -> Result<Self, Failed> {
        let (tables, dim) = (1 + words.below(32) as usize, words.one_of(&[16, 48, 128, 256]));
        let samples = 1 + words.below(if tables < 12 { 20_000 } else { 300 }) as usize;
        let (count, passed) = (1 + tables, words.one_of(&[0, dim]));
        let vectors_stride = count * dim + words.one_of(&[0, 8]);
        let batch = Batch::random(bench, words, (samples, tables), dim)?;
        let mut vectors = Vec::new();
        for (sample, rows) in batch.rows.chunks(tables).enumerate() {
            vectors.extend(words.numbers::<T>(dim));
            for row in rows {
                vectors.extend((0..dim).map(|d| T::of(row.map_or(0.0, |row| batch.weights[row + d]))));
            }
            vectors.resize((sample + 1) * vectors_stride, T::of(f32::NAN));
        }
        Ok(Self {
            batch,
            samples,
            count,
            dim,
            passed,
            stride: (passed + count * tables / 2).next_multiple_of(FP8_MULTIPLE),
            vectors_stride,
            vectors,
            learns: words.below(4) > 0,
            guard: Buffer::of(&bench.device, &[Guard::new(1.0)])?,
        })
    }

    /// The vectors, and the same with only the first of each sample.
    fn buffers(&self, bench: &Bench) -> Result<[Buffer<T>; 2], Failed> {
        Ok([bench.buffer(&self.vectors)?, bench.buffer(&self.first_vectors())?])
    }

    fn first_vectors(&self) -> Vec<T> {
        let mut firsts = self.vectors.clone();
        firsts.chunks_mut(self.vectors_stride).for_each(|sample| sample[self.dim..].fill(T::of(f32::NAN)));
        firsts
    }

    /// Compares vectors after a forward pass that looked up all but the first: only a backward pass needs them.
    fn check_vectors(&self, found: &[T]) -> Outcome {
        match self.learns {
            true => same("vectors", &self.vectors, found),
            false => same("vectors that scoring does not write", &self.first_vectors(), found),
        }
    }

    fn dot(&self, vectors: &Buffer<T>, products: Pointer<T>) -> Dot<T> {
        Dot {
            vectors: vectors.pointer(),
            products,
            gradients: Pointer::NULL,
            guard: self.guard.pointer(),
            samples: self.samples as u32,
            count: self.count as u32,
            dim: self.dim as u32,
            vectors_stride: self.vectors_stride as u32,
            passed: self.passed as u32,
            stride: self.stride as u32,
            relu: 0,
            learns: self.learns.into(),
        }
    }
}

/// Whether a kernel looks up rows itself; if not, the case is reported as skipped.
fn or_skipped(looks_up: bool) -> bool {
    if !looks_up {
        eprintln!("skipped: the rows do not fit into shared memory, or the GPU is older than Hopper");
    }
    looks_up
}

/// Products and vectors have the same bits as if the rows had been looked up first.
fn dots_of_rows_are_those_of_vectors<T: Element>(bench: &Bench, words: &mut Words) -> Outcome {
    let case = Case::<T>::random(bench, words)?;
    let Case { samples, count, dim, stride, .. } = case;
    if !or_skipped(Dot::<T>::looks_up(&bench.device, count as u32, dim as u32, stride as u32)) {
        return Ok(());
    }
    let [vectors, firsts] = case.buffers(bench)?;
    let (expected, found) = (bench.poison::<T>(samples * stride)?, bench.poison::<T>(samples * stride)?);
    // SAFETY: the buffers have these lengths.
    unsafe {
        case.dot(&vectors, expected.pointer()).enqueue_forward(&bench.lane, None)?;
        case.dot(&firsts, found.pointer()).enqueue_forward(&bench.lane, Some(case.batch.on_gpu()))?;
    }
    case.check_vectors(&firsts.read(&bench.lane)?)?;
    same("products", &expected.read(&bench.lane)?, &found.read(&bench.lane)?)
}

/// The same for products in fp8.
fn fp8_dots_of_rows_are_those_of_vectors(bench: &Bench, words: &mut Words) -> Outcome {
    let case = Case::<bf16>::random(bench, words)?;
    let Case { samples, count, dim, stride, .. } = case;
    if !or_skipped(DotFp8::looks_up(&bench.device, count as u32, dim as u32, stride as u32)) {
        return Ok(());
    }
    let [vectors, firsts] = case.buffers(bench)?;
    let size = words.one_of(&[0.3, 100.0]);
    let poison = || Tensor::poison(bench, (samples, stride), size);
    let (expected, found) = (poison()?, poison()?);
    let dot = |vectors: &Buffer<bf16>, tensor: &Tensor| {
        let tensor = tensor.on_gpu();
        DotFp8 {
            dot: case.dot(vectors, Pointer::NULL),
            rows: tensor.rows.pointer,
            turned: tensor.turned.pointer,
            scaling: tensor.scaling,
            turned_stride: tensor.turned.stride as u32,
            reserved: 0,
        }
    };
    // SAFETY: the buffers have these lengths.
    unsafe {
        dot(&vectors, &expected).enqueue(&bench.lane, None)?;
        dot(&firsts, &found).enqueue(&bench.lane, Some(case.batch.on_gpu()))?;
    }
    case.check_vectors(&firsts.read(&bench.lane)?)?;
    let of = |tensor: &Tensor| -> Result<_, Failed> {
        let (straight, turned, scaling) = &tensor.buffers;
        Ok((straight.read(&bench.lane)?, turned.read(&bench.lane)?, scaling.read(&bench.lane)?))
    };
    let (expected, found) = (of(&expected)?, of(&found)?);
    same("products", &expected.0, &found.0)?;
    same("transposed products", &expected.1, &found.1)?;
    same("scalings", &expected.2, &found.2)
}

fn same<V: NoUninit>(what: &str, expected: &[V], found: &[V]) -> Outcome {
    let (expected, found): (&[u8], &[u8]) = (bytemuck::cast_slice(expected), bytemuck::cast_slice(found));
    match expected.iter().zip(found).position(|(one, other)| one != other) {
        None => Ok(()),
        Some(byte) => Err(format!("{what} differ at byte {byte} of {}", expected.len()).into()),
    }
}
