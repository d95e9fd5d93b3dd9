//! The kernels of learned vectors of positions on random shapes, against the formula.

use half::{bf16, f16};
use libtest_mimic::Failed;
use rankine_cuda::Buffer;
use rankine_cuda::kernels::{Element, Positions, Total};

use crate::{Bench, Body, CASES, F32_ROUNDING, Outcome, Words, close, rounding};

pub(super) const BODIES: &[Body] = &[
    ("positions_have_their_vectors_in_f32", CASES, |bench, words| are_added_and_learned::<f32>(bench, words)),
    ("positions_have_their_vectors_in_bf16", CASES, |bench, words| {
        are_added_and_learned::<bf16>(bench, words)
    }),
    ("positions_have_their_vectors_in_f16", CASES, |bench, words| are_added_and_learned::<f16>(bench, words)),
];

/// Behind the keys.
const BEHIND: f32 = 7.0;

/// Samples with keys, and the vectors of positions.
pub(super) struct Case<T> {
    width: usize,
    length_max: usize,
    from_last: bool,
    /// Samples of the buffers, and of the batch.
    room: usize,
    samples: usize,
    offsets: Vec<u32>,
    keys: Vec<T>,
    gradients: Vec<T>,
    /// With padding.
    vectors: Vec<T>,
}

/// The buffers of a case.
pub(super) struct OnGpu<'a, T> {
    bench: &'a Bench,
    case: &'a Case<T>,
    keys: Buffer<T>,
    gradients: Buffer<T>,
    vectors: Buffer<T>,
    offsets: Buffer<u32>,
    count: Buffer<u32>,
    parts: Buffer<f32>,
    sums: Buffer<f32>,
}

impl<T: Element> Case<T> {
    fn random(words: &mut Words) -> Self {
        let (width, length_max) = (words.one_of(&[4, 20, 64, 128]), words.one_of(&[1, 7, 50, 90]));
        let room = 1 + words.below(600) as usize;
        let samples = words.below(room as u64 + 1) as usize;
        Self::new(words, [width, length_max], [room, samples], |words, most| match words.below(4) {
            0 => 0,
            1 => most,
            _ => words.below(most + 1),
        })
    }

    /// `lengths` draws the number of positions of a sample, given the most.
    pub(super) fn new(
        words: &mut Words,
        [width, length_max]: [usize; 2],
        [room, samples]: [usize; 2],
        lengths: fn(&mut Words, u64) -> u64,
    ) -> Self {
        let mut offsets = vec![0];
        for _ in 0..samples {
            offsets.push(offsets[offsets.len() - 1] + lengths(words, length_max as u64) as u32);
        }
        let positions = offsets[samples] as usize;
        // Samples after the batch have offsets that no kernel may read.
        offsets.resize(room + 1, u32::MAX);
        let from_last = words.below(2) == 1;
        // Many numbers are repeated: to draw them takes long.
        let mut many = |count: usize| -> Vec<T> {
            let drawn: Vec<T> = words.numbers(count.min(1 << 16));
            drawn.into_iter().cycle().take(count).collect()
        };
        Self {
            width,
            length_max,
            from_last,
            room,
            samples,
            offsets,
            keys: many(positions * width),
            gradients: many(positions * width),
            vectors: many(length_max.next_multiple_of(8) * width),
        }
    }

    pub(super) fn on_gpu<'a>(&'a self, bench: &'a Bench) -> Result<OnGpu<'a, T>, Failed> {
        let columns = self.vectors.len();
        Ok(OnGpu {
            bench,
            case: self,
            // One more element, which is not in the batch.
            keys: bench.buffer(&[self.keys.as_slice(), &[T::of(BEHIND)]].concat())?,
            gradients: bench.buffer(&self.gradients)?,
            vectors: bench.buffer(&self.vectors)?,
            offsets: bench.buffer(&self.offsets)?,
            count: bench.buffer(&[self.samples as u32])?,
            parts: bench.poison(Positions::<T>::slices(columns) * columns)?,
            sums: bench.poison(columns)?,
        })
    }
}

impl<T: Element> OnGpu<'_, T> {
    fn parameters(&self) -> Positions<T> {
        let case = self.case;
        Positions {
            keys: self.keys.pointer(),
            key_gradients: self.gradients.pointer(),
            offsets: self.offsets.pointer(),
            samples_count: self.count.pointer(),
            vectors: self.vectors.pointer(),
            parts: self.parts.pointer(),
            samples: case.room as u32,
            width: case.width as u32,
            length_max: case.length_max as u32,
            columns: case.vectors.len() as u32,
            from_last: u32::from(case.from_last),
            reserved: 0,
        }
    }

    /// Adds the vectors to the keys.
    pub(super) fn add(&self, blocks: u32) -> Result<(), rankine_cuda::Error> {
        // SAFETY: the buffers have these lengths.
        unsafe { self.parameters().enqueue_add(&self.bench.lane, (blocks, 1)) }
    }

    /// Sums the gradients with respect to the vectors.
    pub(super) fn sum_gradients(&self) -> Result<(), rankine_cuda::Error> {
        let columns = self.case.vectors.len();
        let total = Total {
            parts: self.parts.pointer(),
            sums: self.sums.pointer(),
            pieces: Positions::<T>::slices(columns) as u32,
            columns: columns as u32,
        };
        // SAFETY: the buffers have these lengths.
        unsafe {
            self.parameters().enqueue_gradient(&self.bench.lane)?;
            self.bench.lane.launch(&total, total.grid())
        }
    }

    /// Returns the keys with their vectors, and the gradients with respect to the vectors.
    fn results(&self) -> Result<[Vec<f64>; 2], Failed> {
        self.add(7)?;
        self.sum_gradients()?;
        Ok([read(self.bench, &self.keys)?, read(self.bench, &self.sums)?])
    }
}

fn are_added_and_learned<T: Element>(bench: &Bench, words: &mut Words) -> Outcome {
    let case = Case::<T>::random(words);
    let [keys, sums] = case.on_gpu(bench)?.results()?;
    if case.on_gpu(bench)?.results()? != [keys.clone(), sums.clone()] {
        return Err("two runs differ".into());
    }
    let width = case.width;
    let mut expected = vec![(0.0, 0.0); sums.len()];
    for pair in case.offsets[..=case.samples].windows(2) {
        let (begin, length) = (pair[0] as usize, (pair[1] - pair[0]) as usize);
        for position in 0..length {
            let vector = if case.from_last { length - position - 1 } else { position };
            for d in 0..width {
                let (at, of_vector) = ((begin + position) * width + d, vector * width + d);
                let sum = f64::from(case.keys[at].value()) + f64::from(case.vectors[of_vector].value());
                // Rounded in f32, and then as it is stored.
                let tolerance = sum.abs() * (rounding::<T>() + 2.0 * F32_ROUNDING);
                close("key", at, keys[at], sum, tolerance.max(smallest::<T>()))?;
                let gradient = f64::from(case.gradients[at].value());
                let (sum, magnitudes) = &mut expected[of_vector];
                *sum += gradient;
                *magnitudes += gradient.abs();
            }
        }
    }
    let behind = case.keys.len();
    close("the element after the last key", behind, keys[behind], BEHIND.into(), 0.0)?;
    for (at, (&found, (sum, magnitudes))) in sums.iter().zip(expected).enumerate() {
        close("gradient", at, found, sum, case.samples as f64 * F32_ROUNDING * magnitudes)?;
    }
    Ok(())
}

/// Half of a step of the type near 0: f16 has steps of 2^-24 below its normal range.
fn smallest<T: Element>() -> f64 {
    if size_of::<T>() == 2 { 2f64.powi(-25) } else { 0.0 }
}

fn read<T: Element>(bench: &Bench, buffer: &Buffer<T>) -> Result<Vec<f64>, Failed> {
    Ok(buffer.read(&bench.lane)?.into_iter().map(|value| value.value().into()).collect())
}
