//! Kernels of the dense parts.

use half::{bf16, f16};
use rankine_cuda::kernels::{Columns, DenseInput, Dot, Element, Guard, Total};
use rankine_cuda::{Buffer, Pointer};

use super::{Bench, Body, CASES, F32_ROUNDING, Outcome, Words, close, rounding};

pub(crate) const BODIES: &[Body] = &[
    ("dense_columns_are_padded", CASES, dense_columns_are_padded),
    ("dots_and_their_gradients_are_the_sums_in_f32", CASES, dots_are_the_sums::<f32>),
    ("dots_and_their_gradients_are_the_sums_in_bf16", CASES, dots_are_the_sums::<bf16>),
    ("dots_and_their_gradients_are_the_sums_in_f16", CASES, dots_are_the_sums::<f16>),
    ("columns_are_summed", CASES, columns_are_summed),
];

fn dense_columns_are_padded(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, columns) = (1 + words.below(999) as usize, 1 + words.below(20) as usize);
    let filled = columns.next_multiple_of(8);
    let stride = filled + words.one_of(&[0, 24]);
    let dense = words.numbers::<f32>(samples * columns);
    let (input, output) = (bench.buffer(&dense)?, bench.poison::<bf16>(samples * stride)?);
    let convert = DenseInput {
        dense: input.pointer(),
        output: output.pointer(),
        samples: samples as u32,
        columns: columns as u32,
        filled: filled as u32,
        stride: stride as u32,
    };
    // SAFETY: the buffers have these lengths.
    unsafe { bench.lane.launch(&convert, (7, 1)) }?;
    for (i, value) in output.read(&bench.lane)?.into_iter().enumerate() {
        let (sample, column) = (i / stride, i % stride);
        let expected = match column {
            _ if column >= filled => bf16::from_bits(0xffff),
            _ if column >= columns => bf16::ZERO,
            _ => bf16::from_f32(dense[sample * columns + column]),
        };
        if value.to_bits() != expected.to_bits() {
            return Err(format!("column {column} of sample {sample} is {value}, not {expected}").into());
        }
    }
    Ok(())
}

fn dots_are_the_sums<T: Element>(bench: &Bench, words: &mut Words) -> Outcome {
    let (count, dim) = (2 + words.below(60) as usize, words.one_of(&[16, 48, 128]));
    // With few vectors, more samples than warps.
    let samples = 1 + words.below(if count < 12 { 20_000 } else { 70 }) as usize;
    let passed = words.one_of(&[0, dim]);
    let relu = passed > 0 && words.below(2) == 0;
    let pairs = count * (count - 1) / 2;
    let stride = (passed + pairs).next_multiple_of(8);
    let vectors_stride = count * dim + words.one_of(&[0, 8]);
    let vectors = words.numbers::<T>(samples * vectors_stride);
    let product_gradients = words.numbers::<T>(samples * stride);
    let [vectors_at, back_at] = [bench.buffer(&vectors)?, bench.buffer(&product_gradients)?];
    let (products, gradients) = (bench.poison::<T>(samples * stride)?, bench.poison::<T>(vectors.len())?);
    let guard = Buffer::of(&bench.device, &[Guard::new(1.0)])?;
    let dot = Dot {
        vectors: vectors_at.pointer(),
        products: products.pointer(),
        gradients: gradients.pointer(),
        guard: guard.pointer(),
        samples: samples as u32,
        count: count as u32,
        dim: dim as u32,
        vectors_stride: vectors_stride as u32,
        passed: passed as u32,
        stride: stride as u32,
        relu: u32::from(relu),
        learns: 1,
    };
    let back = Dot { products: back_at.pointer(), ..dot };
    // SAFETY: the buffers have these lengths.
    unsafe {
        dot.enqueue_forward(&bench.lane, None)?;
        back.enqueue_backward(&bench.lane)?;
    }
    let (products, gradients) = (products.read(&bench.lane)?, gradients.read(&bench.lane)?);
    if guard.read(&bench.lane)?[0].found != 0 {
        return Err("the guard stops finite gradients".into());
    }
    let value = |elements: &[T], i: usize| f64::from(elements[i].value());
    for sample in 0..samples {
        let at = |vector: usize, d: usize| value(&vectors, sample * vectors_stride + vector * dim + d);
        let mut expected = vec![0.0; stride];
        let mut back = vec![0.0; count * dim];
        for d in 0..passed {
            expected[d] = at(0, d);
            back[d] = value(&product_gradients, sample * stride + d);
        }
        let mut pair = passed;
        for high in 0..count {
            for low in 0..high {
                let gradient = value(&product_gradients, sample * stride + pair);
                expected[pair] = (0..dim).map(|d| at(high, d) * at(low, d)).sum();
                for d in 0..dim {
                    back[high * dim + d] += gradient * at(low, d);
                    back[low * dim + d] += gradient * at(high, d);
                }
                pair += 1;
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
            let found = value(&gradients, sample * vectors_stride + i);
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
                return Err(format!("column {column} of sample {sample} did not pass the ReLU").into());
            }
            expected += gradient.to_f64();
            size += gradient.to_f64().abs();
        }
        close("sum", column, f64::from(sum), expected, size * samples as f64 * F32_ROUNDING)?;
    }
    Ok(())
}
