//! Kernels of heads, cross layers and factorization machines, and of the verdict on a step.

use half::{bf16, f16};
use rankine_cuda::kernels::{
    CROSS_LAYERS, Cross, CrossFirst, CrossGradient, Element, FiniteCheck, Guard, Head, Machine,
    MachineBackward, MachineForward, Outcome as StepOutcome, Squares, Step, Total, Verdict,
};
use rankine_cuda::{Buffer, Pointer};

use super::{Bench, Body, CASES, F32_ROUNDING, Outcome, Words, close, rounding};

pub(crate) const BODIES: &[Body] = &[
    ("heads_are_the_formula", CASES, heads_are_the_formula),
    ("cross_layers_are_the_formula_in_f32", CASES, cross_layers_are_the_formula::<f32>),
    ("cross_layers_are_the_formula_in_bf16", CASES, cross_layers_are_the_formula::<bf16>),
    ("cross_layers_are_the_formula_in_f16", CASES, cross_layers_are_the_formula::<f16>),
    ("gradients_by_x0_are_those_of_all_layers_in_f32", CASES, gradients_by_x0_are_those_of_all_layers::<f32>),
    (
        "gradients_by_x0_are_those_of_all_layers_in_bf16",
        CASES,
        gradients_by_x0_are_those_of_all_layers::<bf16>,
    ),
    ("gradients_by_x0_are_those_of_all_layers_in_f16", CASES, gradients_by_x0_are_those_of_all_layers::<f16>),
    ("machines_are_sums_of_products_in_f32", CASES, machines_are_sums_of_products::<f32>),
    ("machines_are_sums_of_products_in_bf16", CASES, machines_are_sums_of_products::<bf16>),
    ("machines_are_sums_of_products_in_f16", CASES, machines_are_sums_of_products::<f16>),
    ("a_verdict_sets_the_scale_of_gradients", CASES, a_verdict_sets_the_scale_of_gradients),
    ("non_finite_values_stop_the_step", CASES, non_finite_values_stop_the_step),
    ("scales_follow_the_steps", 1, scales_follow_the_steps),
];

/// Returns an element of a matrix in f64.
fn at<T: Element>(elements: &[T], index: usize) -> f64 {
    f64::from(elements[index].value())
}

fn heads_are_the_formula(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, width) = (1 + words.below(700) as usize, 8 * (1 + words.below(50)) as usize);
    let (heads, columns, features) =
        (1 + words.below(5) as usize, words.one_of(&[0, 7]), words.one_of(&[0, 40]));
    let stride = width + words.one_of(&[0, 16]);
    let (step, wide_stride) = (heads.next_multiple_of(4), features * heads.next_multiple_of(4) + 8);
    let parameters = heads * (width + 1 + columns);
    let input = words.numbers::<f32>(samples * stride);
    let weights = words.numbers::<f32>(parameters);
    let (dense, wide) =
        (words.numbers::<f32>(samples * columns), words.numbers::<f32>(samples * wide_stride));
    let terms = if words.below(2) == 0 { words.numbers::<f32>(samples) } else { Vec::new() };
    let labels: Vec<_> = (0..heads * samples).map(|_| words.one_of(&[0.0, 1.0, f32::NAN])).collect();
    let sample_weights: Vec<_> = (0..samples).map(|_| words.number() + 1.0).collect();
    let total = |labels: &[f32]| -> f64 {
        let there = labels.iter().zip(&sample_weights).filter(|(label, _)| !label.is_nan());
        there.map(|(_, &weight)| f64::from(weight)).sum()
    };
    let totals: Vec<_> = labels.chunks_exact(samples).map(total).collect();
    let head_weights: Vec<_> = (0..heads).map(|_| f64::from(words.number()) + 1.5).collect();
    let scale = words.one_of(&[1.0, 1024.0]);
    let relu = words.below(2) == 0;
    let [input_at, weights_at, dense_at, wide_at, terms_at, labels_at, sample_weights_at] =
        [&input, &weights, &dense, &wide, &terms, &labels, &sample_weights].map(|e| bench.buffer(e));
    let (input_at, weights_at, terms_at) = (input_at?, weights_at?, terms_at?);
    let (dense_at, wide_at, labels_at, sample_weights_at) =
        (dense_at?, wide_at?, labels_at?, sample_weights_at?);
    let totals_at = Buffer::of(&bench.device, &totals)?;
    let head_weights_at = Buffer::of(&bench.device, &head_weights)?;
    let guard = Buffer::of(&bench.device, &[Guard::new(scale)])?;
    let pieces = Head::<f32>::pieces(samples as u32);
    let [logits, gradients, d_wide, d_terms, parts, sums] =
        [samples * heads, input.len(), wide.len(), samples, pieces as usize * parameters, parameters]
            .map(|count| bench.poison::<f32>(count));
    let (logits, gradients, d_wide) = (logits?, gradients?, d_wide?);
    let (d_terms, parts, sums) = (d_terms?, parts?, sums?);
    let losses = Buffer::<f64>::filled(&bench.device, pieces as usize * heads, 0xff)?;
    let head = Head {
        input: input_at.pointer(),
        weights: weights_at.pointer(),
        labels: labels_at.pointer(),
        sample_weights: sample_weights_at.pointer(),
        totals: totals_at.pointer(),
        head_weights: head_weights_at.pointer(),
        guard: guard.pointer(),
        dense: dense_at.pointer(),
        wide: wide_at.pointer(),
        wide_gradients: d_wide.pointer(),
        terms: if terms.is_empty() { Pointer::NULL } else { terms_at.pointer() },
        term_gradients: d_terms.pointer(),
        logits: logits.pointer(),
        gradients: gradients.pointer(),
        parts: parts.pointer(),
        losses: losses.pointer(),
        samples: samples as u32,
        heads: heads as u32,
        width: width as u32,
        stride: stride as u32,
        dense_columns: columns as u32,
        wide_features: features as u32,
        wide_step: step as u32,
        wide_stride: wide_stride as u32,
        relu: u32::from(relu),
        reserved: 0,
    };
    let total = Total { parts: parts.pointer(), sums: sums.pointer(), pieces, columns: parameters as u32 };
    // SAFETY: the buffers have these lengths.
    unsafe {
        bench.lane.launch(&head, (pieces, 1))?;
        bench.lane.launch(&total, total.grid())?;
    }
    let (logits, gradients, sums) =
        (logits.read(&bench.lane)?, gradients.read(&bench.lane)?, sums.read(&bench.lane)?);
    let (d_wide, d_terms) = (d_wide.read(&bench.lane)?, d_terms.read(&bench.lane)?);
    let losses = losses.read(&bench.lane)?;
    // Products of a logit, each at most 1, and sums below their number.
    let terms_count = (width + columns + features + 2) as f64;
    let tolerance = terms_count * terms_count * F32_ROUNDING;
    let (mut d_weights, mut sizes) = (vec![0.0; parameters], vec![0.0; parameters]);
    let mut by_logits = vec![0.0; heads * samples];
    for head in 0..heads {
        let mut loss = 0.0;
        let row = head * width;
        let (bias, linear) = (heads * width + head, heads * (width + 1) + head * columns);
        // The derivative of a logit's gradient is at most a quarter of this.
        let most = f64::from(scale) * head_weights[head] * 2.0 / totals[head].max(1e-9);
        for sample in 0..samples {
            let mut logit = at(&weights, bias);
            logit += (0..width).map(|i| at(&input, sample * stride + i) * at(&weights, row + i)).sum::<f64>();
            let of_dense = |i: usize| at(&dense, sample * columns + i) * at(&weights, linear + i);
            logit += (0..columns).map(of_dense).sum::<f64>();
            logit += (0..features).map(|i| at(&wide, sample * wide_stride + i * step + head)).sum::<f64>();
            logit += terms.get(sample).map_or(0.0, |&term| f64::from(term));
            close("logit", sample, at(&logits, sample * heads + head), logit, tolerance)?;
            let label = at(&labels, head * samples + sample);
            let mut gradient = 0.0;
            if !label.is_nan() {
                let weight = at(&sample_weights, sample);
                loss += weight * ((1.0 + logit.exp()).ln() - label * logit);
                gradient =
                    head_weights[head] * weight * (1.0 / (1.0 + (-logit).exp()) - label) / totals[head];
                gradient *= f64::from(scale);
            }
            by_logits[head * samples + sample] = gradient;
            let x = |index: usize| match index {
                _ if index < width => (row + index, at(&input, sample * stride + index)),
                _ if index == width => (bias, 1.0),
                _ => (linear + index - width - 1, at(&dense, sample * columns + index - width - 1)),
            };
            for (index, x) in (0..=width + columns).map(x) {
                d_weights[index] += gradient * x;
                sizes[index] += (gradient * x).abs() * samples as f64 * F32_ROUNDING + most * tolerance;
            }
            for i in 0..features {
                let found = at(&d_wide, sample * wide_stride + i * step + head);
                close("gradient of a term", i, found, gradient, most * tolerance)?;
            }
        }
        let found = losses.iter().skip(head).step_by(heads).sum::<f64>();
        close("loss", head, found, loss, samples as f64 * 2.0 * tolerance)?;
    }
    for (index, &sum) in sums.iter().enumerate() {
        close("sum", index, f64::from(sum), d_weights[index], sizes[index])?;
    }
    for sample in 0..samples {
        let of_head = |head: usize| by_logits[head * samples + sample];
        let most: f64 = (0..heads).map(|head| 2.0 * head_weights[head] / totals[head].max(1e-9)).sum();
        let tolerance = f64::from(scale) * most * (tolerance + heads as f64 * F32_ROUNDING);
        if !terms.is_empty() {
            let expected = (0..heads).map(of_head).sum();
            close("gradient of a sample's term", sample, at(&d_terms, sample), expected, tolerance)?;
        }
        for column in 0..width {
            let kept = !relu || at(&input, sample * stride + column) > 0.0;
            let expected: f64 =
                (0..heads).map(|head| of_head(head) * at(&weights, head * width + column)).sum();
            let expected = if kept { expected } else { 0.0 };
            let found = at(&gradients, sample * stride + column);
            close("gradient", sample * width + column, found, expected, tolerance)?;
        }
        for index in 0..features * step {
            if index % step >= heads && at(&d_wide, sample * wide_stride + index) != 0.0 {
                return Err(
                    format!("the zero {index} after the terms of sample {sample} has a gradient").into()
                );
            }
        }
    }
    Ok(())
}

fn cross_layers_are_the_formula<T: Element>(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, columns) = (1 + words.below(900) as usize, 8 * (1 + words.below(40)) as usize);
    let (stride, input_stride) = (columns + words.one_of(&[0, 8]), columns + words.one_of(&[0, 8]));
    let x0 = words.numbers::<T>(samples * stride);
    let x = words.numbers::<T>(samples * input_stride);
    let [u, g, more] = [(); 3].map(|()| words.numbers::<T>(samples * columns));
    let bias = words.numbers::<f32>(columns);
    let added = words.below(2) == 0;
    let (x0_at, x_at, u_at) = (bench.buffer(&x0)?, bench.buffer(&x)?, bench.buffer(&u)?);
    let (d_result, more_at, bias_at) = (bench.buffer(&g)?, bench.buffer(&more)?, bench.buffer(&bias)?);
    let [output, d_u] = [bench.poison::<T>(samples * columns)?, bench.poison::<T>(samples * columns)?];
    let pieces = CrossGradient::<T>::pieces(samples as u32);
    let (parts, sums) = (bench.poison::<f32>(pieces as usize * columns)?, bench.poison::<f32>(columns)?);
    let cross = Cross {
        first: x0_at.pointer(),
        input: x_at.pointer(),
        product: u_at.pointer(),
        bias: bias_at.pointer(),
        output: output.pointer(),
        samples: samples as u32,
        columns: columns as u32,
        first_stride: stride as u32,
        input_stride: input_stride as u32,
    };
    let back = CrossGradient {
        first: cross.first,
        added: if added { more_at.pointer() } else { Pointer::NULL },
        gradients: d_result.pointer(),
        product_gradients: d_u.pointer(),
        parts: parts.pointer(),
        samples: cross.samples,
        columns: cross.columns,
        first_stride: cross.first_stride,
        reserved: 0,
    };
    let total = Total { parts: parts.pointer(), sums: sums.pointer(), pieces, columns: columns as u32 };
    // SAFETY: the buffers have these lengths.
    unsafe {
        bench.lane.launch(&cross, cross.grid())?;
        bench.lane.launch(&back, back.grid())?;
        bench.lane.launch(&total, total.grid())?;
    }
    let (output, d_result, d_u) =
        (output.read(&bench.lane)?, d_result.read(&bench.lane)?, d_u.read(&bench.lane)?);
    let sums = sums.read(&bench.lane)?;
    // Values up to four, a few operations each.
    let tolerance = 16.0 * F32_ROUNDING + 4.0 * rounding::<T>();
    for column in 0..columns {
        let (b, mut d_bias) = (f64::from(bias[column]), 0.0);
        for sample in 0..samples {
            let (index, first) = (sample * columns + column, sample * stride + column);
            let (x0, u) = (at(&x0, first), at(&u, index));
            let expected = x0 * (u + b) + at(&x, sample * input_stride + column);
            close("result", index, at(&output, index), expected, tolerance)?;
            let g = at(&g, index) + if added { at(&more, index) } else { 0.0 };
            close("result gradient", index, at(&d_result, index), g, tolerance)?;
            close("product gradient", index, at(&d_u, index), x0 * g, tolerance)?;
            d_bias += x0 * g;
        }
        let tolerance = 2.0 * (samples * samples) as f64 * F32_ROUNDING;
        close("bias gradient", column, f64::from(sums[column]), d_bias, tolerance)?;
    }
    Ok(())
}

fn gradients_by_x0_are_those_of_all_layers<T: Element>(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, columns) = (1 + words.below(900) as usize, 8 * (1 + words.below(40)) as usize);
    let stride = columns + words.one_of(&[0, 8]);
    let layers = 1 + words.below(CROSS_LAYERS as u64) as usize;
    let before = words.numbers::<T>(samples * stride);
    let (mut products, mut gradients, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..layers {
        products.push(words.numbers::<T>(samples * columns));
        gradients.push(words.numbers::<T>(samples * columns));
        biases.push(words.numbers::<f32>(columns));
    }
    // A gradient that is not finite must be reported.
    let wrong = words.below(2) == 0;
    if wrong {
        let index = words.below((samples * columns) as u64) as usize;
        gradients[layers - 1][index] = T::of(f32::INFINITY);
    }
    let through = words.below(2) == 0;
    let (d_x0, guard) = (bench.buffer(&before)?, Buffer::of(&bench.device, &[Guard::new(1.0)])?);
    let mut first = CrossFirst {
        products: [Pointer::NULL; CROSS_LAYERS],
        gradients: [Pointer::NULL; CROSS_LAYERS],
        biases: [Pointer::NULL; CROSS_LAYERS],
        first_gradients: d_x0.pointer(),
        guard: guard.pointer(),
        layers: layers as u32,
        samples: samples as u32,
        columns: columns as u32,
        first_stride: stride as u32,
        through: u32::from(through),
        reserved: 0,
    };
    let (mut buffers, mut bias_buffers) = (Vec::new(), Vec::new());
    for layer in 0..layers {
        let (u, g) = (bench.buffer(&products[layer])?, bench.buffer(&gradients[layer])?);
        let b = bench.buffer(&biases[layer])?;
        (first.products[layer], first.gradients[layer]) = (u.pointer(), g.pointer());
        first.biases[layer] = b.pointer();
        buffers.extend([u, g]);
        bias_buffers.push(b);
    }
    // SAFETY: the buffers have these lengths.
    unsafe { bench.lane.launch(&first, first.grid()) }?;
    let (d_x0, guard) = (d_x0.read(&bench.lane)?, guard.read(&bench.lane)?[0]);
    if (guard.found != 0) != wrong {
        return Err(format!("the guard has {}, expected a finding: {wrong}", guard.found).into());
    }
    // Values up to four of each layer, a few operations each.
    let tolerance = (layers + 1) as f64 * (16.0 * F32_ROUNDING + 4.0 * rounding::<T>());
    for index in 0..samples * columns {
        let (sample, column) = (index / columns, index % columns);
        let mut expected = at(&before, sample * stride + column);
        expected += if through { at(&gradients[0], index) } else { 0.0 };
        for ((u, g), b) in products.iter().zip(&gradients).zip(&biases) {
            expected += (at(u, index) + f64::from(b[column])) * at(g, index);
        }
        if expected.is_finite() {
            let found = at(&d_x0, sample * stride + column);
            close("x0 gradient", index, found, expected, tolerance)?;
        }
    }
    Ok(())
}

fn machines_are_sums_of_products<T: Element>(bench: &Bench, words: &mut Words) -> Outcome {
    let (samples, count) = (1 + words.below(300) as usize, 1 + words.below(30) as usize);
    let dim = words.one_of(&[8, 24, 128]);
    let stride = count * dim + words.one_of(&[0, 16]);
    let relu = words.below(2) == 0;
    let (vectors, before) = (words.numbers::<T>(samples * stride), words.numbers::<T>(samples * stride));
    let d_terms = words.numbers::<f32>(samples);
    let (vectors_at, gradients) = (bench.buffer(&vectors)?, bench.buffer(&before)?);
    let (terms, by_terms_at) = (bench.poison::<f32>(samples)?, bench.buffer(&d_terms)?);
    let guard = Buffer::of(&bench.device, &[Guard::new(1.0)])?;
    let machine = Machine {
        vectors: vectors_at.pointer(),
        gradients: gradients.pointer(),
        terms: terms.pointer(),
        guard: guard.pointer(),
        samples: samples as u32,
        count: count as u32,
        dim: dim as u32,
        stride: stride as u32,
        relu: u32::from(relu),
        reserved: 0,
    };
    let back = Machine { terms: by_terms_at.pointer(), ..machine };
    // SAFETY: the buffers have these lengths.
    unsafe {
        bench.lane.launch(&MachineForward(machine), (5, 1))?;
        bench.lane.launch(&MachineBackward(back), (5, 1))?;
    }
    let (terms, gradients) = (terms.read(&bench.lane)?, gradients.read(&bench.lane)?);
    for sample in 0..samples {
        let value = |vector: usize, d: usize| at(&vectors, sample * stride + vector * dim + d);
        let mut term = 0.0;
        for d in 0..dim {
            let sum: f64 = (0..count).map(|vector| value(vector, d)).sum();
            for vector in 0..count {
                term += value(vector, d) * (sum - value(vector, d)) / 2.0;
                let index = sample * stride + vector * dim + d;
                let mut expected = at(&before, index) + f64::from(d_terms[sample]) * (sum - value(vector, d));
                if vector == 0 && relu && value(vector, d) <= 0.0 {
                    expected = 0.0;
                }
                let tolerance = (count * count + 4) as f64 * 2.0 * F32_ROUNDING;
                let tolerance = tolerance + rounding::<T>() * (expected.abs() + tolerance);
                close("gradient", index, at(&gradients, index), expected, tolerance)?;
            }
        }
        // As many products, none above the number of vectors.
        let tolerance = (dim * count) as f64 * (dim * count * count) as f64 * F32_ROUNDING;
        close("term", sample, f64::from(terms[sample]), term, tolerance)?;
    }
    if guard.read(&bench.lane)?[0] != Guard::new(1.0) {
        return Err("the guard stops finite gradients".into());
    }
    Ok(())
}

/// The inputs and results of a verdict on a step.
fn verdict_of(
    bench: &Bench,
    (losses, totals, weights): (&[f64], &[f64], &[f64]),
    gradients: &[f32],
    (guard, norm_max, scale_interval): (Guard, f32, u32),
) -> Result<(Guard, StepOutcome), libtest_mimic::Failed> {
    let heads = totals.len();
    let [losses_at, totals_at, weights_at] =
        [losses, totals, weights].map(|values| Buffer::of(&bench.device, values));
    let (losses_at, totals_at, weights_at) = (losses_at?, totals_at?, weights_at?);
    let step = Buffer::of(&bench.device, &[Step { loss_index: 1, ..Step::default() }])?;
    let others = StepOutcome { loss: 5.0, ..StepOutcome::default() };
    let (outcomes, parts) =
        (Buffer::of(&bench.device, &[others; 3])?, Buffer::<f64>::filled(&bench.device, 36, 0xff)?);
    let (guard, gradients_at) = (Buffer::of(&bench.device, &[guard])?, bench.buffer(gradients)?);
    // In three ranges, and one that another rank sums.
    let (len, middle) = (gradients.len() as u32, (gradients.len() / 8 * 4) as u32);
    let ranges = Buffer::of(&bench.device, &[[0, middle], [middle, middle], [middle, len], [0, len]])?;
    let squares = Squares {
        gradients: gradients_at.pointer(),
        ranges: ranges.pointer(),
        parts: parts.pointer(),
        first: 0,
        behind: 3,
    };
    let verdict = Verdict {
        losses: losses_at.pointer(),
        totals: totals_at.pointer(),
        head_weights: weights_at.pointer(),
        parts: parts.pointer(),
        step: step.pointer(),
        outcomes: outcomes.pointer(),
        guard: guard.pointer(),
        pieces: (losses.len() / heads) as u32,
        heads: heads as u32,
        parts_count: parts.len() as u32,
        norm_max,
        scale_interval,
        together: 0,
    };
    // SAFETY: the buffers have these lengths.
    unsafe {
        bench.lane.launch(&squares, (9, 4))?;
        bench.lane.launch(&verdict, (1, 1))?;
    }
    let outcomes = outcomes.read(&bench.lane)?;
    if (outcomes[0], outcomes[2]) != (others, others) {
        return Err("an outcome was written to another step's position".into());
    }
    Ok((guard.read(&bench.lane)?[0], outcomes[1]))
}

fn a_verdict_sets_the_scale_of_gradients(bench: &Bench, words: &mut Words) -> Outcome {
    let (heads, pieces) = (1 + words.below(4) as usize, 1 + words.below(900) as usize);
    let mut numbers =
        |count: usize| -> Vec<f64> { (0..count).map(|_| f64::from(words.number()) + 1.0).collect() };
    let (losses, mut totals, weights) = (numbers(heads * pieces), numbers(heads), numbers(heads));
    totals[heads - 1] = words.one_of(&[0.0, 3.0]);
    let count = 1 + words.below(50_000) as usize;
    let gradients = words.numbers::<f32>(count);
    let (loss_scale, norm_max) = (words.one_of(&[1.0, 256.0]), words.one_of(&[f32::INFINITY, 0.3, 20.0]));
    let mut expected = 0.0;
    for head in 0..heads {
        let sum: f64 = losses.iter().skip(head).step_by(heads).sum();
        expected += if totals[head] == 0.0 { 0.0 } else { weights[head] * sum / totals[head] };
    }
    let guard = Guard::new(loss_scale);
    let (found, outcome) = verdict_of(bench, (&losses, &totals, &weights), &gradients, (guard, norm_max, 0))?;
    close("loss", 0, outcome.loss, expected, expected * (heads * pieces) as f64 * f64::EPSILON)?;
    let norm = gradients.iter().map(|&gradient| f64::from(gradient).powi(2)).sum::<f64>().sqrt();
    let clip = f64::from(norm_max) / (norm / f64::from(loss_scale) + 1e-6);
    let scale = clip.min(1.0) / f64::from(loss_scale);
    close("scale", 0, f64::from(found.dense_scale), scale, scale * 2.0 * F32_ROUNDING)?;
    if (Guard { dense_scale: guard.dense_scale, ..found }) != guard || outcome.wrong != 0 {
        return Err(format!("the guard became {found:?}, with {outcome:?}").into());
    }
    Ok(())
}

fn non_finite_values_stop_the_step(bench: &Bench, words: &mut Words) -> Outcome {
    let count = 1 + words.below(50_000) as usize;
    let mut gradients = words.numbers::<f32>(count);
    let wrong = words.one_of(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    let guard = Guard::new(1.0);
    let verdict_of = |losses: &[f64], gradients: &[f32], guard, interval| {
        verdict_of(bench, (losses, &[1.0], &[1.0]), gradients, (guard, f32::INFINITY, interval))
    };
    let (found, outcome) = verdict_of(&[f64::from(wrong)], &gradients, guard, 0)?;
    let expected = StepOutcome { loss: outcome.loss, loss_marks: 1.0, wrong: 2, ..StepOutcome::default() };
    if found.stop != 2 || outcome.loss.is_finite() || outcome != expected && !outcome.loss.is_nan() {
        return Err(format!("a loss of {wrong} leaves {found:?} and {outcome:?}").into());
    }
    // The next step is independent of it.
    let (again, later) = verdict_of(&[1.0], &gradients, found, 0)?;
    if again.stop != 0 || later != (StepOutcome { loss: 1.0, ..StepOutcome::default() }) {
        return Err(format!("a step after a loss of {wrong} leaves {again:?} and {later:?}").into());
    }
    // Findings of kernels, and whether updates are blocked altogether.
    let finding = Guard { found: StepOutcome::VECTORS, ..guard };
    let (found, outcome) = verdict_of(&[1.0], &gradients, finding, 0)?;
    if (found.stop, found.found, outcome.wrong, outcome.vector_marks) != (1, 0, 1, 1.0) {
        return Err(format!("wrong vector gradients leave {found:?} and {outcome:?}").into());
    }
    let (found, outcome) = verdict_of(&[1.0], &gradients, Guard { held: 1, ..guard }, 0)?;
    if found.stop == 0 || outcome.wrong != 0 {
        return Err(format!("a guard that is held leaves {found:?} and {outcome:?}").into());
    }
    let index = words.below(count as u64) as usize;
    // Its square exceeds the range of f32.
    for wrong in [wrong, 3e19] {
        gradients[index] = wrong;
        for (interval, by_scale) in [(0, 0), (5, 1)] {
            let guard = Guard::new(if interval == 0 { 1.0 } else { 2.0 });
            let (found, outcome) = verdict_of(&[1.0], &gradients, guard, interval)?;
            if (found.stop, outcome.wrong, outcome.by_scale, outcome.loss) != (4, 4, by_scale, 1.0) {
                return Err(format!("a gradient of {wrong} leaves {found:?}, and {outcome:?}").into());
            }
        }
    }
    // The same in a matrix; values after its columns do not matter.
    let (samples, columns) = (1 + words.below(300) as usize, 4 * (1 + words.below(60)) as usize);
    let mut values = words.numbers::<bf16>(samples * (columns + 8));
    let (sample, column) = (words.below(samples as u64) as usize, words.below(columns as u64 + 8) as usize);
    values[sample * (columns + 8) + column] = bf16::from_f32(wrong);
    let (values, guard) = (bench.buffer(&values)?, Buffer::of(&bench.device, &[guard])?);
    let finite = FiniteCheck {
        values: values.pointer(),
        guard: guard.pointer(),
        samples: samples as u32,
        columns: columns as u32,
        stride: columns as u32 + 8,
        reserved: 0,
    };
    // SAFETY: the buffers have these lengths.
    unsafe { bench.lane.launch(&finite, (3, 1)) }?;
    let found = guard.read(&bench.lane)?[0].found;
    if found != u32::from(column < columns) {
        return Err(format!("{wrong} in column {column} of {columns} leaves {found}").into());
    }
    Ok(())
}

fn scales_follow_the_steps(bench: &Bench, _: &mut Words) -> Outcome {
    let mut guard = Guard::new(4.0);
    let mut step = |losses: &[f64], found| {
        let state = (Guard { found, ..guard }, f32::INFINITY, 3);
        let (after, outcome) = verdict_of(bench, (losses, &[1.0], &[1.0]), &[0.5], state)?;
        if after.table_scale != 1.0 / guard.loss_scale {
            return Err("gradients have another scale than the loss had".into());
        }
        guard = after;
        Ok::<_, libtest_mimic::Failed>((after, outcome))
    };
    // Whether a step's gradients are wrong, and the scale after it, down to 1.
    let steps = [(0, 4.0), (0, 4.0), (0, 8.0), (0, 8.0), (1, 4.0), (0, 4.0), (0, 4.0), (0, 8.0)];
    let mut skipped = 0;
    for (number, (wrong, scale)) in steps.into_iter().chain([(1, 4.0), (1, 2.0), (1, 1.0)]).enumerate() {
        let (found, outcome) = step(&[1.0], wrong)?;
        skipped += u64::from(wrong);
        if (outcome.by_scale, found.stop) != (wrong, wrong) {
            return Err(format!("step {number} leaves {found:?} and {outcome:?}").into());
        }
        if (found.loss_scale, found.skipped) != (scale, skipped) {
            return Err(format!("step {number} leaves {found:?}, expected a scale of {scale}").into());
        }
    }
    // A scale of 1 is never the reason, and no scale is for a NaN loss.
    for (loss, found) in [(1.0, 1), (f64::NAN, 0), (f64::NAN, 1)] {
        let (found, outcome) = step(&[loss], found)?;
        if (outcome.by_scale, found.loss_scale, found.skipped) != (0, 1.0, skipped) || found.stop == 0 {
            return Err(format!("a loss of {loss} leaves {found:?} and {outcome:?}").into());
        }
    }
    Ok(())
}
