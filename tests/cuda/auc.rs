//! Metrics computed on the GPU are those of the host: the AUC and the histogram of scores have the same bits, with and
//! without weights.

use std::time::Instant;

use rankine_cuda::Buffer;
use rankine_engine_gpu::{CudaEvaluation, ScoredBatch};
use rankine_model::HeadSpec;
use rankine_model::evaluation::{Evaluation, HeadMetrics, JudgedHead, ScoreHistogram};
use rankine_reader::schema::{DenseDtype, Label};
use rankine_reader::{Samples, Schema};

use super::{Bench, Body, CASES, Outcome, Words, close};

pub(crate) const BODIES: &[Body] = &[
    ("metrics_are_the_hosts", 4 * CASES, metrics_are_the_hosts),
    (
        "scores_at_and_beyond_the_ends_of_bins_are_in_the_hosts",
        CASES,
        scores_at_and_beyond_the_ends_of_bins_are_in_the_hosts,
    ),
    ("an_unusable_weight_leaves_no_auc", 1, an_unusable_weight_leaves_no_auc),
    ("the_auc_of_89_million_scores_takes_no_50_ms", 1, |bench, words| {
        the_auc_of_89_million_scores_takes_no_50_ms(bench, words, false)
    }),
    ("the_weighted_auc_of_89_million_scores_takes_no_50_ms", 1, |bench, words| {
        the_auc_of_89_million_scores_takes_no_50_ms(bench, words, true)
    }),
];

/// Sample weights of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AucWeights {
    /// The dataset has none.
    None,
    Ones,
    /// 0, 1, 2 or 3.
    Counts,
    /// From 0.5 to 2.5.
    Usual,
    /// Any finite number that is not negative, subnormal ones included.
    All,
}

impl AucWeights {
    pub(super) const GIVEN: [Self; 4] = [Self::Ones, Self::Counts, Self::Usual, Self::All];

    pub(super) fn of(self, words: &mut Words, samples: usize) -> Vec<f32> {
        let mut weight = || match self {
            Self::None | Self::Ones => 1.0,
            Self::Counts => words.below(4) as f32,
            Self::Usual => words.number() + 1.5,
            Self::All => f32::from_bits(words.below(u64::from(f32::MAX.to_bits()) + 1) as u32),
        };
        let samples = if self == Self::None { 0 } else { samples };
        (0..samples).map(|_| weight()).collect()
    }
}

fn heads(count: usize) -> Vec<HeadSpec> {
    let head = |label_number| HeadSpec { label: format!("L{label_number}"), label_number, weight: 1.0 };
    (0..count).map(head).collect()
}

/// The heads with shares of negatives that are often below 1, in the training data and in the evaluated data.
fn judged(heads: &[HeadSpec], words: &mut Words) -> Vec<JudgedHead> {
    let [trained_on, evaluated_on] = [(); 2].map(|()| Schema {
        labels: heads
            .iter()
            .map(|head| Label {
                name: head.label.clone(),
                negatives_kept: words.one_of(&[None, Some(0.1), Some(0.7)]),
            })
            .collect(),
        weight: None,
        dense: Vec::new(),
        dense_dtype: DenseDtype::F32,
        sequences: Vec::new(),
        categorical: Vec::new(),
    });
    JudgedHead::of_heads(heads, &trained_on, &evaluated_on)
}

fn metrics_are_the_hosts(bench: &Bench, words: &mut Words) -> Outcome {
    let heads = heads(1 + words.below(3) as usize);
    let batch_size = words.one_of(&[1, 700, 5000, 100_000]);
    let batches = 1 + words.below(5) as usize;
    let [none, ones, counts, usual, all] =
        [AucWeights::None, AucWeights::Ones, AucWeights::Counts, AucWeights::Usual, AucWeights::All];
    let kind = words.one_of(&[none, none, ones, counts, usual, all]);
    // Many ties, few, and scores that are close to each other.
    let (steps, scale) = words.one_of(&[(3, 1.0), (50, 0.1), (1 << 24, 1e-40), (1 << 24, 20.0)]);
    let missing = words.one_of(&[0, 4]);
    let on_gpu = CudaEvaluation::new(&bench.device, &heads, batch_size * batches, kind != AucWeights::None)?;
    // An earlier evaluation leaves no trace.
    for _ in 0..2 {
        let judged = judged(&heads, words);
        let mut on_cpu = Evaluation::new(&judged);
        on_gpu.begin(&bench.lane)?;
        for batch in 0..batches {
            let len =
                if batch + 1 < batches { batch_size } else { 1 + words.below(batch_size as u64) as usize };
            let mut logit = || {
                let step = words.below(steps) as f64 / steps as f64 * 2.0 - 1.0;
                if words.below(30) == 0 { -0.0 } else { (step * scale) as f32 }
            };
            let logits: Vec<f32> = (0..len * heads.len()).map(|_| logit()).collect();
            let mut label = || {
                if missing > 0 && words.below(missing) == 0 { f32::NAN } else { (words.below(3) / 2) as f32 }
            };
            let labels: Vec<Vec<f32>> = heads.iter().map(|_| (0..len).map(|_| label()).collect()).collect();
            let weights = kind.of(words, len);
            let mut padded = vec![1.0; heads.len() * batch_size];
            for (to, from) in padded.chunks_exact_mut(batch_size).zip(&labels) {
                to[..len].copy_from_slice(from);
            }
            let all_one = vec![1.0; len];
            let [at_logits, at_labels] = [bench.buffer(&logits)?, bench.buffer(&padded)?];
            let at_weights = bench.buffer(if weights.is_empty() { &all_one } else { &weights })?;
            let at_samples = Buffer::of(&bench.device, &[len as u32])?;
            let scored = ScoredBatch {
                logits: at_logits.pointer(),
                labels: at_labels.pointer(),
                labels_stride: batch_size,
                weights: at_weights.pointer(),
                samples: at_samples.pointer(),
            };
            // SAFETY: the buffers have these lengths, and live until the lane has been waited for.
            unsafe { on_gpu.add(&bench.lane, scored) }?;
            bench.lane.synchronize()?;
            on_cpu.add(&Samples { len, labels, weights, ..Samples::default() }, &logits);
        }
        let result = on_gpu.finish_judged(&bench.lane, &judged)?;
        for (found, expected) in result.heads.iter().zip(on_cpu.metrics()) {
            if found.scores != expected.scores {
                return Err(different_scores(found, &expected).into());
            }
            let (Some(found), Some(expected)) = (found.metrics, expected.metrics) else {
                if found.metrics == expected.metrics {
                    continue;
                }
                return Err(format!("{:?} and {:?}", found.metrics, expected.metrics).into());
            };
            if (found.samples, found.auc) != (expected.samples, expected.auc) {
                return Err(format!("{found:?} instead of {expected:?}, weights {kind:?}").into());
            }
            // Ratios of sums in another order. If one weight dominates the sum, the rate may be so close to 1 that its
            // entropy has few digits.
            let entropies = match kind {
                AucWeights::All => (0.0, 0.0),
                _ => (found.normalized_entropy.unwrap_or(0.0), expected.normalized_entropy.unwrap_or(0.0)),
            };
            let all = [
                (found.log_loss, expected.log_loss),
                (found.label_rate, expected.label_rate),
                entropies,
                (found.calibration.unwrap_or(0.0), expected.calibration.unwrap_or(0.0)),
                (
                    found.calibration_uncorrected.unwrap_or(0.0),
                    expected.calibration_uncorrected.unwrap_or(0.0),
                ),
            ];
            let rounding = 1e-11f64.max(4.0 * f64::EPSILON * found.samples as f64);
            for (number, (found, expected)) in all.into_iter().enumerate() {
                close("metric", number, found, expected, rounding * expected.abs())?;
            }
        }
        if result.nan_logits != 0 || result.heads.len() != heads.len() {
            return Err(format!("{result:?}").into());
        }
    }
    nan_logits_are_counted(bench)
}

/// Names the first sum that differs.
fn different_scores(found: &HeadMetrics, expected: &HeadMetrics) -> String {
    let (Some(found), Some(expected)) = (&found.scores, &expected.scores) else {
        return format!(
            "a histogram of {}: {} instead of {}",
            found.label,
            found.scores.is_some(),
            expected.scores.is_some()
        );
    };
    let sums = |of: fn(&ScoreHistogram) -> &Vec<f64>| of(found).iter().zip(of(expected)).enumerate();
    let differs = |(_, (found, expected)): &(usize, (&f64, &f64))| found != expected;
    let negatives = sums(|scores| &scores.negatives).find(differs);
    let positives = sums(|scores| &scores.positives).find(differs);
    format!("(bin, (found, expected)): negatives {negatives:?}, positives {positives:?}")
}

/// Scores on every edge of a bin, the floats next to it, and beyond both ends.
fn scores_at_and_beyond_the_ends_of_bins_are_in_the_hosts(bench: &Bench, words: &mut Words) -> Outcome {
    let heads = heads(2);
    let edges = (-300..=300).flat_map(|edge| {
        let edge = edge as f32 / 16.0;
        [edge, edge.next_up(), edge.next_down(), edge + 1e-6, edge - 1e-6]
    });
    let ends = [-0.0, 0.0, 1e-45, -1e-45, -1e30, 1e30, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY];
    let mut logits: Vec<f32> = edges.chain(ends).collect();
    // For the second head, the same in another order.
    let len = logits.len();
    logits =
        (0..2 * len).map(|at| if at % 2 == 0 { logits[at / 2] } else { logits[len - 1 - at / 2] }).collect();
    let labels: Vec<Vec<f32>> = (0..2).map(|_| (0..len).map(|_| words.below(2) as f32).collect()).collect();
    for kind in [AucWeights::None, AucWeights::Counts, AucWeights::Usual, AucWeights::All] {
        let weights = kind.of(words, len);
        let on_gpu = CudaEvaluation::new(&bench.device, &heads, len, kind != AucWeights::None)?;
        let [at_logits, at_labels] = [bench.buffer(&logits)?, bench.buffer(&labels.concat())?];
        let at_weights =
            if weights.is_empty() { bench.buffer(&vec![1.0; len])? } else { bench.buffer(&weights)? };
        let samples = Buffer::of(&bench.device, &[len as u32])?;
        let scored = ScoredBatch {
            logits: at_logits.pointer(),
            labels: at_labels.pointer(),
            labels_stride: len,
            weights: at_weights.pointer(),
            samples: samples.pointer(),
        };
        on_gpu.begin(&bench.lane)?;
        // SAFETY: the buffers have these lengths.
        unsafe { on_gpu.add(&bench.lane, scored) }?;
        let found = on_gpu.finish(&bench.lane)?.heads;
        let mut on_cpu = Evaluation::new(&JudgedHead::of_heads_uncorrected(&heads));
        on_cpu.add(&Samples { len, labels: labels.clone(), weights, ..Samples::default() }, &logits);
        for (found, expected) in found.iter().zip(on_cpu.metrics()) {
            if found.scores != expected.scores || found.scores.is_none() {
                return Err(format!("{kind:?}: {}", different_scores(found, &expected)).into());
            }
        }
    }
    Ok(())
}

fn nan_logits_are_counted(bench: &Bench) -> Outcome {
    let logits = bench.buffer(&[0.0, f32::NAN, 1.0])?;
    let ones = bench.buffer(&[1.0; 3])?;
    let samples = Buffer::of(&bench.device, &[3])?;
    let evaluation = CudaEvaluation::new(&bench.device, &heads(1), 3, false)?;
    let scored = ScoredBatch {
        logits: logits.pointer(),
        labels: ones.pointer(),
        labels_stride: 3,
        weights: ones.pointer(),
        samples: samples.pointer(),
    };
    // SAFETY: the buffers have these lengths.
    unsafe { evaluation.add(&bench.lane, scored) }?;
    let nan_logits = evaluation.finish(&bench.lane)?.nan_logits;
    if nan_logits == 1 { Ok(()) } else { Err(format!("{nan_logits} logits are NaN, not 1").into()) }
}

fn an_unusable_weight_leaves_no_auc(bench: &Bench, _: &mut Words) -> Outcome {
    let logits = bench.buffer(&[0.0, 1.0, 2.0])?;
    let labels = bench.buffer(&[0.0, 1.0, 1.0])?;
    let samples = Buffer::of(&bench.device, &[3])?;
    let evaluation = CudaEvaluation::new(&bench.device, &heads(1), 3, true)?;
    let cases =
        [(1e-45, Some(1.0)), (-0.0, Some(1.0)), (-1e-45, None), (f32::INFINITY, None), (f32::NAN, None)];
    for (weight, expected) in cases {
        let weights = bench.buffer(&[1.0, 1.0, weight])?;
        let scored = ScoredBatch {
            logits: logits.pointer(),
            labels: labels.pointer(),
            labels_stride: 3,
            weights: weights.pointer(),
            samples: samples.pointer(),
        };
        evaluation.begin(&bench.lane)?;
        // SAFETY: the buffers have these lengths.
        unsafe { evaluation.add(&bench.lane, scored) }?;
        let metrics = evaluation.finish(&bench.lane)?.heads[0].metrics;
        let found = metrics.and_then(|metrics| metrics.auc);
        if found != expected {
            return Err(format!("weight {weight}: the AUC is {found:?}, not {expected:?}").into());
        }
    }
    Ok(())
}

fn the_auc_of_89_million_scores_takes_no_50_ms(bench: &Bench, words: &mut Words, weighted: bool) -> Outcome {
    /// The size of the benchmark's evaluation part.
    const SAMPLES: usize = 89_137_319;
    /// Distinct scores; some of them are tied.
    const SCORES: usize = 1 << 22;
    let mut state = words.below(u64::MAX) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let [mut logits, mut labels, mut weights] = [(); 3].map(|()| Vec::with_capacity(SAMPLES));
    // [score][label]
    let mut counts = vec![[0u64; 2]; SCORES];
    for _ in 0..SAMPLES {
        let word = next();
        // For scores, the mean of two uniform numbers: most are in the middle.
        let score = ((word & (SCORES as u64 - 1)) + (word >> 24 & (SCORES as u64 - 1))) as usize / 2;
        let label = usize::from((word >> 48) as usize % SCORES < 16384 + score / 128);
        let weight = if weighted { (word >> 22 & 3) + (word >> 46 & 3) } else { 1 };
        counts[score][label] += weight;
        logits.push((score as f32 - SCORES as f32 / 2.0) / 1e5);
        labels.push(label as f32);
        weights.push(weight as f32);
    }
    let (mut negatives, mut positives, mut ordered_twice) = (0u128, 0u128, 0u128);
    for [negative, positive] in counts.into_iter().map(|counts| counts.map(u128::from)) {
        ordered_twice += positive * (2 * negatives + negative);
        negatives += negative;
        positives += positive;
    }
    let expected = ordered_twice as f64 / (2 * negatives * positives) as f64;

    let evaluation = CudaEvaluation::new(&bench.device, &heads(1), SAMPLES, weighted)?;
    let [at_logits, at_labels] = [bench.buffer(&logits)?, bench.buffer(&labels)?];
    let weights = bench.buffer(&weights)?;
    let samples = Buffer::of(&bench.device, &[SAMPLES as u32])?;
    let scored = ScoredBatch {
        logits: at_logits.pointer(),
        labels: at_labels.pointer(),
        labels_stride: SAMPLES,
        weights: weights.pointer(),
        samples: samples.pointer(),
    };
    let mut times = Vec::new();
    for _ in 0..5 {
        evaluation.begin(&bench.lane)?;
        let began = Instant::now();
        // SAFETY: the buffers have these lengths.
        unsafe { evaluation.add(&bench.lane, scored) }?;
        bench.lane.synchronize()?;
        let added = began.elapsed();
        let result = evaluation.finish(&bench.lane)?;
        times.push([began.elapsed() - added, added]);
        let found = result.heads[0].metrics.and_then(|metrics| metrics.auc);
        if found != Some(expected) {
            return Err(format!("the AUC is {found:?}, not {expected}").into());
        }
    }
    times.sort();
    let ms = times[2].map(|time| time.as_secs_f64() * 1e3);
    let scores = if weighted { "scores with weights" } else { "scores" };
    eprintln!("89 million {scores}: {:.2} ms to gather, {:.2} ms to the AUC", ms[1], ms[0]);
    if ms[0] > 50.0 {
        return Err(format!("it took {:.1} ms", ms[0]).into());
    }
    Ok(())
}
