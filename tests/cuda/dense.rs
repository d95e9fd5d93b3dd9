//! Kernels of the dense parts.

use half::bf16;
use rankine_cuda::kernels::{
    Columns, DenseInput, Dot, DotBackward, DotForward, Element, Head, Loss, Step, Total,
};
use rankine_cuda::{Buffer, Pointer};

use super::{Bench, Body, CASES, F32_ROUNDING, Outcome, Words, close, rounding};

pub(crate) const BODIES: &[Body] = &[
    ("dense_columns_are_filled_up", CASES, dense_columns_are_filled_up),
    ("dots_and_their_gradients_are_the_sums_in_f32", CASES, dots_are_the_sums::<f32>),
    ("dots_and_their_gradients_are_the_sums_in_bf16", CASES, dots_are_the_sums::<bf16>),
    ("columns_are_summed", CASES, columns_are_summed),
    ("the_head_is_the_formula", CASES, the_head_is_the_formula),
];

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
    let step = Step { number: 1, samples: samples as u32, loss_place: 1, ..Step::default() };
    let total_at = Buffer::of(&bench.device, &[total_weight])?;
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
        total: total_at.pointer(),
        head_weight: 1.5,
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
        total: total_at.pointer(),
        head_weight: 1.5,
        sums: loss_sums.pointer(),
        stop: stop.pointer(),
        pieces,
        reserved: 0,
    };
    // SAFETY: the buffers have these lengths.
    unsafe {
        bench.lane.launch(&head, (pieces, 1))?;
        bench.lane.launch(&loss, (1, 1))?;
        bench.lane.launch(&total, total.grid())?;
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
    let (tolerance, expected) = match total_weight {
        0.0 => (0.0, 0.0),
        total => (1.5 * tolerance / total, 1.5 * loss / total),
    };
    close("loss", 0, loss_sums.read(&bench.lane)?[1], expected, tolerance)?;
    for (column, &sum) in sums.read(&bench.lane)?.iter().enumerate() {
        let tolerance = sizes[column] * (samples + 4) as f64 * F32_ROUNDING + sizes[column] * 1e-6;
        close("sum", column, f64::from(sum), by_weights[column], tolerance + 1e-6)?;
    }
    Ok(())
}
