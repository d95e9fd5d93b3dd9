//! The kernels of attention on random shapes, against the formula.

use half::{bf16, f16};
use libtest_mimic::Failed;
use rankine_cuda::kernels::{
    Attention, AttentionKind, AttentionSizes, AttentionTiling, Element, ElementKind, Guard, KeyPlace, Total,
    UnitLayer,
};
use rankine_cuda::{Buffer, Pointer};

use super::formula::{DinLayer, Near, Sample, Unit};
use crate::{Bench, Body, CASES, Outcome, Words, close, rounding};

pub(super) const BODIES: &[Body] = &[
    ("attention_is_the_formula_in_f32", CASES, |bench, words| is_the_formula::<f32>(bench, words)),
    ("attention_is_the_formula_in_bf16", 2 * CASES, |bench, words| is_the_formula::<bf16>(bench, words)),
    ("attention_is_the_formula_in_f16", CASES, |bench, words| is_the_formula::<f16>(bench, words)),
    ("gradients_of_attention_that_are_not_finite_are_reported", 2, are_reported),
];

/// Attention over a batch, in host memory.
pub(super) struct Case<T> {
    pub(super) kind: AttentionKind,
    /// The layers as the kernels have them: hidden ones have multiples of eight outputs, the last has eight, of which
    /// the first counts.
    layers: Vec<UnitLayer>,
    parameters: Vec<T>,
    /// Where query and sum have the parts of a key, and their elements.
    parts: Vec<([usize; 2], usize)>,
    pub(super) width: usize,
    stride: usize,
    /// Samples of the buffers, and of the batch.
    room: usize,
    samples: usize,
    length_max: usize,
    offsets: Vec<u32>,
    vectors: Vec<T>,
    keys: Vec<T>,
    gradients: Vec<T>,
    /// Whether the kernels for any size are used in any case.
    any_size: bool,
    /// Whether their blocks have memory of their own in any case.
    in_memory: bool,
}

/// The sizes of a case.
pub(super) struct Shape<'a> {
    pub(super) kind: AttentionKind,
    pub(super) dims: &'a [usize],
    pub(super) hidden: &'a [usize],
    pub(super) room: usize,
    pub(super) samples: usize,
    pub(super) length_max: usize,
}

/// What the kernels write.
#[derive(PartialEq)]
struct Results {
    vectors: Vec<u8>,
    gradients: Vec<u8>,
    key_gradients: Vec<u8>,
    sums: Vec<u32>,
    found: u32,
}

impl<T: Element> Case<T> {
    fn random(words: &mut Words) -> Self {
        let kind =
            words.one_of(&[AttentionKind::Din, AttentionKind::Din, AttentionKind::Dot, AttentionKind::Mean]);
        let dims: &[&[usize]] =
            &[&[4], &[64], &[16], &[32, 32], &[8, 20, 4], &[12], &[36], &[16, 16, 16], &[128]];
        let hidden: &[&[usize]] =
            &[&[], &[8], &[40], &[48], &[64], &[96], &[16, 8], &[24, 16, 8], &[40, 16], &[80, 40]];
        let room = 1 + words.below(60) as usize;
        let shape = Shape {
            kind,
            dims: words.one_of(dims),
            hidden: words.one_of(hidden),
            room,
            samples: words.below(room as u64 + 1) as usize,
            // Long sequences, for several chunks of a block, take the formula long.
            length_max: if room <= 8 { 150 } else { words.one_of(&[1, 7, 33, 50, 70]) },
        };
        let lengths = |words: &mut Words, max: u64| match words.below(4) {
            0 => 0,
            1 => max,
            _ => words.below(max + 1),
        };
        let mut case = Self::new(words, shape, lengths);
        case.any_size = words.below(3) == 0;
        case.in_memory = words.below(4) == 0;
        case
    }

    /// `lengths` draws the number of positions of a sample, given the most.
    pub(super) fn new(words: &mut Words, shape: Shape<'_>, lengths: fn(&mut Words, u64) -> u64) -> Self {
        let Shape { kind, dims, hidden, room, samples, length_max } = shape;
        let width: usize = dims.iter().sum();
        let (mut parts, mut end) = (Vec::<([usize; 2], usize)>::new(), 8);
        for &dim in dims {
            // Parts of the query may be the same vector.
            let again = parts.iter().find(|&&(_, other)| other == dim).map(|&([query, _], _)| query);
            let query = match again {
                Some(query) if words.below(2) == 0 => query,
                _ => {
                    end += dim + 4;
                    end - dim
                }
            };
            parts.push(([query, end], dim));
            end += dim;
        }
        let stride = (end + words.one_of(&[0, 8])).next_multiple_of(8);
        let (mut layers, mut parameters, mut inputs) = (Vec::new(), Vec::new(), 4 * width);
        if kind == AttentionKind::Din {
            for (number, &outputs) in hidden.iter().chain([&8]).enumerate() {
                let last = number == hidden.len();
                let weights = parameters.len() as u32;
                // Of a size that keeps outputs near 1.
                let share = (3.0 / inputs as f32).sqrt();
                for at in 0..outputs * (inputs + 1) {
                    let row = if at < outputs * inputs { at / inputs } else { at - outputs * inputs };
                    let padding = last && row > 0;
                    parameters.push(T::of(if padding { 0.0 } else { share * words.number() }));
                }
                let outputs_used = if last { 1 } else { outputs as u32 };
                let bias = weights + (outputs * inputs) as u32;
                layers.push(UnitLayer { inputs: inputs as u32, outputs: outputs_used, weights, bias });
                inputs = outputs;
            }
        }
        let mut offsets = vec![0];
        for _ in 0..samples {
            let length = lengths(words, length_max as u64) as u32;
            offsets.push(offsets[offsets.len() - 1] + length);
        }
        // Samples after the batch have offsets that no kernel may read.
        offsets.resize(room + 1, u32::MAX);
        let positions = offsets[samples] as usize;
        // Many numbers are repeated: to draw them takes long.
        let mut many = |count: usize| -> Vec<T> {
            let drawn: Vec<T> = words.numbers(count.min(1 << 16));
            drawn.into_iter().cycle().take(count).collect()
        };
        let [vectors, keys, gradients] = [room * stride, positions * width, room * stride].map(&mut many);
        Self {
            kind,
            layers,
            parameters,
            parts,
            width,
            stride,
            room,
            samples,
            length_max,
            offsets,
            vectors,
            keys,
            gradients,
            any_size: false,
            in_memory: false,
        }
    }

    pub(super) fn positions(&self) -> usize {
        self.offsets[self.samples] as usize
    }

    fn sizes(&self) -> AttentionSizes<'_> {
        AttentionSizes {
            kind: self.kind,
            width: self.width,
            length_max: self.length_max,
            layers: &self.layers,
            parameters: self.parameters.len(),
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    /// The tiling, if tensor cores multiply.
    fn tiling(&self) -> Option<AttentionTiling> {
        AttentionTiling::of::<T>(&self.sizes()).filter(|_| !self.any_size)
    }

    /// What is rounded within the unit: the kernels for any size keep f32.
    fn rounding(&self) -> f64 {
        self.tiling().map_or(0.0, |_| rounding::<T>())
    }

    fn unit(&self) -> Unit {
        match self.kind {
            AttentionKind::Dot => Unit::Dot { scale: 1.0 / (self.width as f64).sqrt() },
            AttentionKind::Mean => Unit::Mean,
            AttentionKind::Din => {
                let numbers = |begin: u32, count: usize| -> Vec<f64> {
                    let part = &self.parameters[begin as usize..][..count];
                    part.iter().map(|value| f64::from(value.value())).collect()
                };
                let layer = |layer: &UnitLayer| {
                    let (inputs, outputs) = (layer.inputs as usize, layer.outputs as usize);
                    let (weights, bias) =
                        (numbers(layer.weights, outputs * inputs), numbers(layer.bias, outputs));
                    DinLayer { inputs, outputs, weights, bias }
                };
                Unit::Din(self.layers.iter().map(layer).collect())
            }
        }
    }

    /// Where a sample's vectors have the elements of the query, and of the sum.
    fn places(&self) -> [Vec<usize>; 2] {
        [0, 1].map(|which| self.parts.iter().flat_map(|&(at, dim)| at[which]..at[which] + dim).collect())
    }

    fn sample(&self, sample: usize) -> Sample {
        let near = |value: &T| Near::exact(value.value().into());
        let [query, sum] = self.places();
        let row = |values: &[T], places: &[usize]| -> Vec<Near> {
            places.iter().map(|place| near(&values[sample * self.stride + place])).collect()
        };
        let positions = self.offsets[sample] as usize..self.offsets[sample + 1] as usize;
        Sample {
            query: row(&self.vectors, &query),
            keys: positions
                .map(|position| self.keys[position * self.width..][..self.width].iter().map(near).collect())
                .collect(),
            gradient: row(&self.gradients, &sum),
        }
    }

    /// The buffers of the case on a GPU.
    pub(super) fn on_gpu<'a>(&'a self, bench: &'a Bench) -> Result<OnGpu<'a, T>, Failed> {
        let [outputs_max, outputs_sum] = self.sizes().outputs();
        let places = KeyPlace::all(self.parts.iter().copied());
        let blocks = Attention::<T>::blocks(self.tiling());
        let floats = [false, true].map(|backward| self.sizes().memory_floats(backward));
        let fits = |floats: usize| Attention::<T>::fits_shared(floats) && !self.in_memory;
        let in_memory = |floats: usize| self.tiling().is_none() && !fits(floats);
        let memory = floats.map(|floats| in_memory(floats).then(|| bench.poison::<f32>(blocks * floats)));
        let [forward, backward] = memory;
        // Padding is not written.
        let parts = Buffer::<f32>::filled(&bench.device, blocks * self.parameters.len(), 0)?;
        Ok(OnGpu {
            case: self,
            bench,
            vectors: bench.buffer(&self.vectors)?,
            keys: bench.buffer(&self.keys)?,
            gradients: bench.buffer(&self.gradients)?,
            // One more position, which is not in the batch.
            key_gradients: bench.poison((self.positions() + 1) * self.width)?,
            offsets: bench.buffer(&self.offsets)?,
            samples: bench.buffer(&[self.samples as u32])?,
            places: bench.buffer(&places)?,
            layers: bench.buffer(&self.layers)?,
            parameters: bench.buffer(&self.parameters)?,
            parts,
            sums: bench.poison(self.parameters.len())?,
            memory: [forward.transpose()?, backward.transpose()?],
            floats,
            outputs: [outputs_max as u32, outputs_sum as u32],
            guard: Buffer::of(&bench.device, &[Guard::new(1.0)])?,
        })
    }
}

/// The buffers of a case.
pub(super) struct OnGpu<'a, T> {
    case: &'a Case<T>,
    bench: &'a Bench,
    vectors: Buffer<T>,
    keys: Buffer<T>,
    gradients: Buffer<T>,
    key_gradients: Buffer<T>,
    offsets: Buffer<u32>,
    samples: Buffer<u32>,
    places: Buffer<KeyPlace>,
    layers: Buffer<UnitLayer>,
    parameters: Buffer<T>,
    parts: Buffer<f32>,
    sums: Buffer<f32>,
    memory: [Option<Buffer<f32>>; 2],
    floats: [usize; 2],
    outputs: [u32; 2],
    guard: Buffer<Guard>,
}

impl<T: Element> OnGpu<'_, T> {
    fn parameters(&self, backward: bool) -> Attention<T> {
        let case = self.case;
        Attention {
            vectors: self.vectors.pointer(),
            keys: self.keys.pointer(),
            gradients: self.gradients.pointer(),
            key_gradients: self.key_gradients.pointer(),
            offsets: self.offsets.pointer(),
            samples_count: self.samples.pointer(),
            places: self.places.pointer(),
            layers: self.layers.pointer(),
            weights: self.parameters.pointer(),
            parts: self.parts.pointer(),
            memory: self.memory[usize::from(backward)].as_ref().map_or(Pointer::NULL, Buffer::pointer),
            guard: self.guard.pointer(),
            samples: case.room as u32,
            stride: case.stride as u32,
            width: case.width as u32,
            kind: case.kind as u32,
            layers_count: case.layers.len() as u32,
            outputs_max: self.outputs[0],
            outputs_sum: self.outputs[1],
            parameters: case.parameters.len() as u32,
            memory_floats: self.floats[usize::from(backward)] as u32,
            length_max: case.length_max as u32,
            score_scale: case.scale(),
            reserved: 0,
        }
    }

    pub(super) fn forward(&self) -> Result<(), rankine_cuda::Error> {
        let tiling = self.case.tiling();
        // Memory has room for the blocks of the backward pass; otherwise a grid may be any.
        let multiprocessors = self.bench.device.multiprocessors();
        let blocks = match &self.memory[0] {
            Some(_) => Attention::<T>::blocks(tiling) as u32,
            None => Attention::<T>::forward_blocks(tiling, multiprocessors),
        };
        // SAFETY: the buffers have these lengths.
        unsafe { self.parameters(false).enqueue_forward(&self.bench.lane, tiling, (blocks, 1)) }
    }

    pub(super) fn backward(&self) -> Result<(), rankine_cuda::Error> {
        let tiling = self.case.tiling();
        let total = Total {
            parts: self.parts.pointer(),
            sums: self.sums.pointer(),
            pieces: Attention::<T>::blocks(tiling) as u32,
            columns: self.case.parameters.len() as u32,
        };
        // SAFETY: the buffers have these lengths.
        unsafe {
            self.parameters(true).enqueue_backward(&self.bench.lane, tiling)?;
            self.bench.lane.launch(&total, total.grid())
        }
    }

    fn results(&self) -> Result<Results, Failed> {
        self.forward()?;
        self.backward()?;
        let lane = &self.bench.lane;
        let bytes = |values: Vec<T>| bytemuck::cast_slice(&values).to_vec();
        Ok(Results {
            vectors: bytes(self.vectors.read(lane)?),
            gradients: bytes(self.gradients.read(lane)?),
            key_gradients: bytes(self.key_gradients.read(lane)?),
            sums: self.sums.read(lane)?.into_iter().map(f32::to_bits).collect(),
            found: self.guard.read(lane)?[0].found,
        })
    }
}

fn is_the_formula<T: Element>(bench: &Bench, words: &mut Words) -> Outcome {
    let case = Case::<T>::random(words);
    let results = case.on_gpu(bench)?.results()?;
    if case.on_gpu(bench)?.results()? != results {
        return Err("two runs differ".into());
    }
    if results.found != 0 {
        return Err("finite gradients are reported".into());
    }
    let values = |bytes: &[u8]| -> Vec<T> { bytemuck::pod_collect_to_vec(bytes) };
    let (vectors, gradients) = (values(&results.vectors), values(&results.gradients));
    let key_gradients = values(&results.key_gradients);
    let (unit, stored) = (case.unit(), rounding::<T>());
    // f16 below its normal range has steps of 2^-24.
    let least = if T::KIND == ElementKind::F16 { 2f64.powi(-25) } else { 0.0 };
    let near = |what: &str, index: usize, found: T, expected: Near| {
        let expected = expected.rounded(stored);
        close(what, index, found.value().into(), expected.value, expected.error + least)
    };
    let [query, sum] = case.places();
    let count = case.positions() + case.samples + Attention::<T>::blocks(case.tiling()) + 8;
    let mut d_parameters = vec![Near::default(); case.parameters.len()];
    for sample in 0..case.room {
        let there = sample < case.samples;
        let attended = there.then(|| case.sample(sample)).filter(|sample| !sample.keys.is_empty());
        let attended = attended.map(|sample| sample.attend(&unit, case.rounding(), count));
        for place in 0..case.stride {
            let at = sample * case.stride + place;
            match (sum.iter().position(|&other| other == place), &attended) {
                (Some(d), Some(attended)) => near("sum", at, vectors[at], attended.sum[d])?,
                (Some(_), None) => close("sum", at, vectors[at].value().into(), 0.0, 0.0)?,
                (None, _) => same("vector", at, vectors[at], case.vectors[at])?,
            }
            let elements = query.iter().enumerate().filter(|&(_, &other)| other == place);
            let added: Vec<_> = elements.filter_map(|(d, _)| Some(attended.as_ref()?.d_query[d])).collect();
            if added.is_empty() || case.kind == AttentionKind::Mean {
                same("gradient", at, gradients[at], case.gradients[at])?;
            } else {
                let before = Near::exact(case.gradients[at].value().into());
                near("gradient", at, gradients[at], Near::sum(added.into_iter().chain([before])))?;
            }
        }
        let Some(attended) = attended else { continue };
        for (position, d_key) in attended.d_keys.iter().enumerate() {
            for (d, &expected) in d_key.iter().enumerate() {
                let at = (case.offsets[sample] as usize + position) * case.width + d;
                near("key gradient", at, key_gradients[at], expected)?;
            }
        }
        for ((weights, bias), layer) in attended.d_layers.into_iter().zip(&case.layers) {
            for (begin, own) in [(layer.weights, weights), (layer.bias, bias)] {
                for (i, gradient) in own.into_iter().enumerate() {
                    let to = &mut d_parameters[begin as usize + i];
                    to.value += gradient.value;
                    to.error += gradient.error;
                }
            }
        }
    }
    for (at, (&found, expected)) in results.sums.iter().zip(d_parameters).enumerate() {
        close("parameter gradient", at, f32::from_bits(found).into(), expected.value, expected.error)?;
    }
    let behind = &results.key_gradients[case.positions() * case.width * size_of::<T>()..];
    if behind.iter().any(|&byte| byte != 0xff) {
        return Err("a gradient is written after the last position".into());
    }
    Ok(())
}

fn same<T: Element>(what: &str, index: usize, found: T, expected: T) -> Outcome {
    if bytemuck::bytes_of(&found) == bytemuck::bytes_of(&expected) {
        return Ok(());
    }
    Err(format!("{what} {index} is {found:?}, not {expected:?} as before").into())
}

/// Gradients that are not finite, of keys or of the query, stop the step.
fn are_reported(bench: &Bench, words: &mut Words) -> Outcome {
    for kind in [AttentionKind::Din, AttentionKind::Dot, AttentionKind::Mean] {
        let shape = Shape { kind, dims: &[16], hidden: &[16], room: 5, samples: 5, length_max: 9 };
        let mut case = Case::<f16>::new(words, shape, |_, max| max);
        let [_, sum] = case.places();
        let sample = words.below(5) as usize;
        case.gradients[sample * case.stride + sum[3]] = f16::INFINITY;
        let found = case.on_gpu(bench)?.results()?.found;
        if found & rankine_cuda::kernels::Outcome::VECTORS == 0 {
            return Err(format!("{kind:?}: an infinite gradient is not reported").into());
        }
    }
    Ok(())
}
