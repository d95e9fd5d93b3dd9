//! Steps whose loss or gradients are not finite are skipped on all ranks, reported as on the CPU, and change nothing.

use libtest_mimic::Failed;
use rankine::job::Precision;
use rankine_backend::Backend;
use rankine_embedding::{Placement, Pooling};
use rankine_engine_gpu::CudaModel;
use rankine_model::guard::{FoundOn, SkipReason, StepOutcome};
use rankine_model::{FeatureSpec, Interaction, TrainingRules};
use rankine_topology::Topology;

use super::ranks::{random_plan, some_devices};
use super::training::{Training, factor, weights};
use super::{Bench, Body, Outcome, Words, close};

pub(crate) const BODIES: &[Body] = &[
    ("wrong_steps_are_skipped_as_on_the_cpu", 3, |bench, words| {
        let interaction = any_interaction(words);
        let training = with_wrong_batches(words, interaction);
        let mut model = training.on_gpu(bench, Precision::Fp32)?;
        are_skipped_as_on_the_cpu(&training, &mut model, 1)
    }),
    ("ranks_skip_wrong_steps_as_the_cpu_does", 3, |_, words| {
        let interaction = any_interaction(words);
        let training = with_wrong_batches(words, interaction);
        let devices = some_devices(words)?;
        let plan = random_plan(words, &training, devices.len(), &Placement::ALL)?;
        let mut model = training.over_ranks(&devices, Precision::Fp32, Some(&plan))?;
        are_skipped_as_on_the_cpu(&training, &mut model, devices.len())?;
        match model.diverged_ranks()? {
            diverged if diverged.is_empty() => Ok(()),
            diverged => Err(format!("ranks {diverged:?} have replicas that differ from rank 0's").into()),
        }
    }),
    ("wrong_steps_change_no_bit_in_any_precision", 1, |bench, words| {
        for precision in [Precision::Tf32, Precision::Bf16, Precision::Fp16, Precision::Fp8] {
            if precision == Precision::Fp8 && !bench.device.multiplies_fp8() {
                continue;
            }
            let mut training = with_wrong_batches(words, Interaction::Dot);
            training.model.spec.top_mlp = words.one_of(&[&[160, 48][..], &[32], &[64, 272, 16]]).to_vec();
            change_no_bit(&training, || training.on_gpu(bench, precision))?;
        }
        Ok(())
    }),
    ("wrong_steps_of_ranks_change_no_bit", 1, |_, words| {
        for precision in [Precision::Bf16, Precision::Fp16] {
            let training = with_wrong_batches(words, Interaction::Dot);
            let devices = some_devices(words)?;
            let plan = random_plan(words, &training, devices.len(), &Placement::ALL)?;
            change_no_bit(&training, || training.over_ranks(&devices, precision, Some(&plan)))?;
        }
        Ok(())
    }),
    ("weights_that_make_gradients_too_large_are_found_as_on_the_cpu", 3, |bench, words| {
        let training = with_large_weights(words);
        large_weights_are_found(&training, &mut training.on_gpu(bench, Precision::Fp32)?)
    }),
    ("ranks_find_weights_that_make_gradients_too_large", 3, |_, words| {
        let (training, devices) = (with_large_weights(words), some_devices(words)?);
        let plan = random_plan(words, &training, devices.len(), &Placement::ALL)?;
        large_weights_are_found(&training, &mut training.over_ranks(&devices, Precision::Fp32, Some(&plan))?)
    }),
    ("gradients_that_are_too_large_are_reported_as_such", 1, too_large_gradients_are_reported),
];

/// The steps whose batch has a NaN weight.
const WRONG: [usize; 4] = [2, 3, 7, 13];

fn any_interaction(words: &mut Words) -> Interaction {
    words.one_of(&[Interaction::Dot, Interaction::Cross { layers: 2, rank: None }, Interaction::Concat])
}

fn with_wrong_batches(words: &mut Words, interaction: Interaction) -> Training {
    let mut training = Training::random(words, interaction, 16);
    for step in WRONG {
        let batch = &mut training.batches[step];
        batch.weights.resize(batch.len, 1.0);
        let sample = words.below(batch.len as u64) as usize;
        batch.weights[sample] = f32::NAN;
        batch.labels.iter_mut().for_each(|labels| labels[sample] = 1.0);
    }
    training
}

fn are_skipped_as_on_the_cpu(training: &Training, model: &mut CudaModel, ranks: usize) -> Outcome {
    let (on_cpu, expected) = training.outcomes_on_cpu();
    let found = training.outcomes_on_gpu(model)?;
    if found.len() != expected.len() {
        return Err(format!("{} outcomes for {} steps", found.len(), expected.len()).into());
    }
    for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
        match (found.non_finite(), expected.non_finite()) {
            (None, None) => close("the loss of step", step, found.loss, expected.loss, 1e-4 * expected.loss)?,
            (Some(of_gpu), Some(of_cpu)) => {
                let same = (of_gpu.loss, of_gpu.dense_gradients, of_gpu.vector_gradients)
                    == (of_cpu.loss, of_cpu.dense_gradients, of_cpu.vector_gradients);
                // The loss is wrong on the sample's rank; gradients may be wrong on all, which divide by the same sum.
                let batch = &training.batches[step];
                let sample =
                    batch.weights.iter().position(|weight| weight.is_nan()).ok_or("no batch is wrong")?;
                let all = Topology::new(ranks, 1)?;
                let sample_rank = all.all_ranks().find(|rank| all.share(batch.len, *rank).contains(&sample));
                let rank_is_right = sample_rank.map(FoundOn::Rank) == Some(of_gpu.found_on)
                    || matches!(of_gpu.found_on, FoundOn::Several(several) if several <= ranks);
                if !same || !rank_is_right || !WRONG.contains(&step) {
                    return Err(format!("step {step}: {of_gpu:?}, but the CPU finds {of_cpu:?}").into());
                }
            }
            other => return Err(format!("step {step} has outcomes {other:?}").into()),
        }
    }
    let weights_on_cpu = weights(&on_cpu)?;
    for (number, (&weight, &expected)) in weights(model)?.iter().zip(&weights_on_cpu).enumerate() {
        close("weight", number, f64::from(weight), f64::from(expected), 2e-3)?;
    }
    Ok(())
}

/// Trains step by step, and checks that weights do not change in a wrong step; then with several steps in flight,
/// which must give the same result.
fn change_no_bit(training: &Training, model: impl Fn() -> Result<CudaModel, Failed>) -> Outcome {
    let mut one_by_one = model()?;
    let (mut losses, mut before) = (Vec::new(), weights(&one_by_one)?);
    for (step, batch) in training.batches.iter().enumerate() {
        one_by_one.train_on(batch, factor(step))?;
        let mut outcome = None;
        one_by_one.take_outcomes(true, &mut |taken| outcome = Some(taken))?;
        let outcome = outcome.ok_or("a step has no outcome")?;
        let after = weights(&one_by_one)?;
        let is_wrong = matches!(outcome.skipped, Some(SkipReason::NonFinite(_)));
        if is_wrong != WRONG.contains(&step) || outcome.skipped.is_some() != (after == before) {
            let changed = after != before;
            return Err(format!("step {step} has outcome {outcome:?}; weights changed: {changed}").into());
        }
        losses.push(outcome.loss.to_bits());
        before = after;
    }
    let mut at_once = model()?;
    let outcomes = training.outcomes_on_gpu(&mut at_once)?;
    let same = outcomes.iter().map(|outcome| outcome.loss.to_bits()).eq(losses);
    if !same || weights(&at_once)? != before {
        return Err(format!("several steps in flight have other outcomes: {outcomes:?}").into());
    }
    Ok(())
}

/// The steps of which some ids have large weights.
const LARGE: [usize; 3] = [2, 3, 6];

/// Some steps have weights with which vectors are finite, and also gradients with respect to these, but not within the
/// bounds once they are multiplied by the weights.
fn with_large_weights(words: &mut Words) -> Training {
    let mut training = Training::weighted(words, Interaction::Concat, 9).with_exact_rows();
    let spec = &mut training.model.spec;
    // Some gradients of first-order terms are never 0.
    (spec.wide, spec.top_mlp) = (true, Vec::new());
    training.model.rules = TrainingRules::sgd(&training.model.spec, 0.01);
    let features = &training.model.spec.features;
    let summed = |(_, feature): &(usize, &FeatureSpec)| feature.weighted && feature.pooling == Pooling::Sum;
    let summed: Vec<_> = features.iter().enumerate().filter(summed).map(|(column, _)| column).collect();
    for step in LARGE {
        for &column in &summed {
            let weights = &mut training.batches[step].categorical[column].weights;
            weights.iter_mut().for_each(|weight| *weight *= 1e16);
        }
    }
    training
}

fn large_weights_are_found(training: &Training, model: &mut CudaModel) -> Outcome {
    let (on_cpu, expected) = training.outcomes_on_cpu();
    let found = training.outcomes_on_gpu(model)?;
    for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let flags = |outcome: &StepOutcome| {
            outcome.non_finite().map(|found| (found.loss, found.dense_gradients, found.vector_gradients))
        };
        let is_large = LARGE.contains(&step);
        if flags(found) != flags(expected) || flags(expected).is_some_and(|(.., vectors)| vectors) != is_large
        {
            return Err(format!("step {step}: {found:?}, but the CPU finds {expected:?}").into());
        }
        close("the loss of step", step, found.loss, expected.loss, 1e-4 * expected.loss)?;
    }
    let weights_on_cpu = weights(&on_cpu)?;
    for (number, (&weight, &expected)) in weights(model)?.iter().zip(&weights_on_cpu).enumerate() {
        close("weight", number, f64::from(weight), f64::from(expected), 2e-3)?;
    }
    Ok(())
}

/// A finite loss with gradients that are not finite: in fp16 they are attributed to the loss scale until it is 1.
fn too_large_gradients_are_reported(bench: &Bench, words: &mut Words) -> Outcome {
    let mut training = Training::random(words, Interaction::Dot, 20);
    training.model.spec.heads.iter_mut().for_each(|head| head.weight = 1e60);
    training.model.rules = TrainingRules::sgd(&training.model.spec, 1e-3);
    let (_, on_cpu) = training.outcomes_on_cpu();
    let non_finite = |outcome: &StepOutcome| {
        let found = outcome.non_finite();
        found.is_some_and(|found| !found.loss && found.vector_gradients) && outcome.loss.is_finite()
    };
    if !on_cpu.iter().all(non_finite) {
        return Err(format!("the CPU reports {on_cpu:?}").into());
    }
    for (precision, by_scale) in [(Precision::Fp32, 0), (Precision::Bf16, 0), (Precision::Fp16, 16)] {
        let mut model = training.on_gpu(bench, precision)?;
        let before = weights(&model)?;
        let outcomes = training.outcomes_on_gpu(&mut model)?;
        let scaled =
            outcomes.iter().take_while(|outcome| outcome.skipped == Some(SkipReason::LossScale)).count();
        if scaled != by_scale || !outcomes[by_scale..].iter().all(non_finite) || weights(&model)? != before {
            return Err(format!("in {}: {outcomes:?}", precision.name()).into());
        }
    }
    Ok(())
}
