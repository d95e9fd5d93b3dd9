//! How many samples are scored at a time changes no bit.

use std::sync::Arc;

use rankine::job::Precision;
use rankine_cuda::Device;
use rankine_engine_gpu::{CudaModel, EvaluationShape, Execution, ScoreSize};
use rankine_model::Interaction;
use rankine_model::evaluation::{HeadMetrics, Metrics};
use rankine_reader::Samples;

use super::ranks::RandomPlanOf;
use super::training::{Draw, Training};
use super::{Bench, Body, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[
    ("scores_have_the_same_bits_in_batches_of_any_size", 12, |bench, words| {
        scores_have_the_same_bits(std::slice::from_ref(&bench.device), words, Training::random, None)
    }),
    ("scores_of_weighted_bags_have_the_same_bits", 4, |bench, words| {
        scores_have_the_same_bits(std::slice::from_ref(&bench.device), words, Training::weighted, None)
    }),
    ("more_samples_are_scored_than_trained_if_memory_allows", 1, more_samples_are_scored_than_trained),
];

const INTERACTIONS: [Interaction; 5] = [
    Interaction::Dot,
    Interaction::Cross { layers: 2, rank: None },
    Interaction::Cross { layers: 3, rank: Some(16) },
    Interaction::FactorizationMachine,
    Interaction::Concat,
];

const NO_METRICS: Metrics = Metrics {
    samples: 0,
    auc: None,
    log_loss: 0.0,
    normalized_entropy: None,
    calibration: None,
    calibration_uncorrected: None,
    label_rate: 0.0,
};

/// Losses of some steps, the logits of all their samples, and the metrics of these.
type Scores = (Vec<u64>, Vec<u32>, Vec<HeadMetrics>);

/// With some of the tables placed by a plan if there is one.
pub(super) fn scores_have_the_same_bits(
    devices: &[Arc<Device>],
    words: &mut Words,
    draw: Draw,
    plan: Option<RandomPlanOf<'_>>,
) -> Outcome {
    let (interaction, precision) = (
        words.one_of(&INTERACTIONS),
        words.one_of(&[Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16, Precision::Fp8]),
    );
    let mut training = draw(words, interaction, 9);
    let execution = match precision {
        Precision::Fp8 if !devices[0].multiplies_fp8() => Execution::new(Precision::Bf16),
        Precision::Fp8 => {
            training.widen_for_fp8();
            Execution::new(precision)
        }
        _ => Execution::new(precision),
    };
    let plan = plan.map(|plan| plan(words, &training)).transpose()?;
    let (batch_size, mut all) = (training.batch_size, training.batches[0].clone());
    training.batches[1..].iter().for_each(|batch| all.append(batch, 0..batch.len));
    let mut expected = None;
    for size in [1, batch_size + 1, 3 * batch_size, 8 * batch_size] {
        let score_size = ScoreSize::Fixed(size);
        let mut model = training.scoring(devices, execution.clone(), plan.as_ref(), score_size)?;
        let batches = size.div_ceil(batch_size);
        if model.score_size() != batches * batch_size {
            return Err(format!(
                "{} samples are scored at a time, not {batches} batches",
                model.score_size()
            )
            .into());
        }
        let mut found = scores(&training, &mut model, &all)?;
        if devices.len() > 1 {
            // Batches that the CPU has unpacked are not scored together: a rank has other samples of larger ones, and
            // sums them in another order.
            let metrics = found.2.iter_mut().flat_map(|head| &mut head.metrics);
            metrics.for_each(|metrics| {
                *metrics = Metrics { samples: metrics.samples, auc: metrics.auc, ..NO_METRICS }
            });
        }
        let expected = expected.get_or_insert_with(|| found.clone());
        for (what, differs) in [
            ("losses", found.0 != expected.0),
            ("logits", found.1 != expected.1),
            ("metrics", found.2 != expected.2),
        ] {
            if differs {
                let how =
                    format!("{interaction:?}, {execution:?}, {plan:?}, {batch_size} a step, {size} scored");
                return Err(format!("{how}: other {what}: {:?}, not {:?}", found.2, expected.2).into());
            }
        }
    }
    Ok(())
}

/// Trains, and scores between the steps, too: neither disturbs the other.
fn scores(
    training: &Training,
    model: &mut CudaModel,
    all: &Samples,
) -> Result<Scores, libtest_mimic::Failed> {
    let mut logits = Vec::new();
    let (first, others) = training.batches.split_at(4);
    let mut losses = training.losses_of(model, first)?;
    model.logits(all, &mut logits)?;
    losses.extend(training.losses_of(model, others)?);
    model.logits(all, &mut logits)?;
    let size = model.score_size();
    let weighted = !all.weights.is_empty();
    model.begin_evaluation(EvaluationShape { samples: all.len, batch_size: size, weighted })?;
    for first in (0..all.len).step_by(size) {
        model.evaluate(&all.slice(first..all.len.min(first + size)))?;
    }
    let heads = model.finish_evaluation()?.heads;
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    Ok((losses.into_iter().map(f64::to_bits).collect(), bits(logits), heads))
}

/// These models are so small that every GPU has the memory.
fn more_samples_are_scored_than_trained(bench: &Bench, words: &mut Words) -> Outcome {
    let training = Training::random(words, Interaction::Dot, 1);
    for samples_max in [0, 5000, 1 << 16] {
        let score_size = ScoreSize::Auto { samples_max };
        let batches = (samples_max / training.batch_size).max(1);
        let expected = training.batch_size << batches.ilog2();
        let found = training.measured(&bench.device, score_size)?.score_size();
        if found != expected {
            return Err(format!("{found} of at most {samples_max} samples are scored, not {expected}").into());
        }
    }
    let refused = training.measured(&bench.device, ScoreSize::Fixed(1 << 40)).map(drop);
    let Err(refused) = refused else { return Err("a trillion samples are scored at a time".into()) };
    let why = refused.message().unwrap_or_default().to_owned();
    let names = why.contains("eval.batch_size = 1099511627776") && why.contains("or \"auto\"");
    if names { Ok(()) } else { Err(why.into()) }
}
