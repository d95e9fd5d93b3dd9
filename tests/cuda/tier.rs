//! Tables of which GPUs store some rows, and host memory the others: all bits are the same as if GPUs stored all rows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use libtest_mimic::Failed;
use rankine::job::Precision;
use rankine_backend::Backend;
use rankine_embedding::{Exchange, HotRows, Placement, TableTier, TierPlan, TierTraffic};
use rankine_engine_gpu::CudaModel;
use rankine_model::Interaction;

use super::ranks::{random_plan, some_devices};
use super::training::{Draw, Training, factor, weights};
use super::{Bench, Body, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[
    ("rows_in_host_memory_learn_to_the_bit_in_fp32", 6, |bench, words| {
        learn_to_the_bit(bench, words, Precision::Fp32)
    }),
    ("rows_in_host_memory_learn_to_the_bit_in_bf16", 6, |bench, words| {
        learn_to_the_bit(bench, words, Precision::Bf16)
    }),
    ("rows_in_host_memory_learn_to_the_bit_in_fp16", 2, |bench, words| {
        learn_to_the_bit(bench, words, Precision::Fp16)
    }),
    ("rows_in_host_memory_learn_to_the_bit_in_fp8", 4, |bench, words| {
        learn_to_the_bit(bench, words, Precision::Fp8)
    }),
    ("ranks_with_rows_in_host_memory_learn_to_the_bit", 6, ranks_learn_to_the_bit),
    ("a_batch_with_too_many_cold_rows_is_an_error", 2, too_many_cold_rows_are_an_error),
];

/// Steps of a training.
const STEPS: usize = 40;

/// Draws which rows the GPU stores, and how often they are chosen again. A landing region has room for all look-ups of
/// a batch, or for `landing_rows`.
fn plan(words: &mut Words, training: &Training, landing_rows: Option<u64>) -> TierPlan {
    let tables = training.model.all_tables();
    let of_table = |number: usize, rows: u64, words: &mut Words| {
        let features = training.model.spec.features.iter().zip(&training.hotness).enumerate();
        let own = features.filter(|(column, (feature, _))| {
            feature.table == number || training.model.spec.tables.len() + column == number
        });
        let ids = own.map(|(_, (_, hotness))| u64::from(hotness.max())).sum::<u64>();
        let hot: Vec<u64> = match words.below(5) {
            0 => return None,
            1 => Vec::new(),
            2 => (0..rows / 10).collect(),
            _ => {
                let share = 2 + words.below(20);
                (0..rows).filter(|_| words.below(share) == 0).collect()
            }
        };
        let hot = HotRows::of(rows, hot);
        let landing_rows = landing_rows.unwrap_or(u64::MAX).min(rows - hot.len());
        let landing_rows = landing_rows.min(training.batch_size as u64 * ids);
        (landing_rows > 0).then_some(TableTier { hot, landing_rows })
    };
    let each = tables.iter().enumerate().map(|(number, (spec, _))| of_table(number, spec.rows, words));
    let tables = each.collect();
    TierPlan { tables, refresh_steps: words.one_of(&[None, Some(1), Some(4), Some(13)]) }
}

/// A model after its training: all that can be seen of it, and what was copied.
#[derive(Debug, Default)]
struct Trained {
    losses: Vec<u64>,
    logits: Vec<u32>,
    weights: Vec<u32>,
    /// Weights and state of all rows.
    rows: Vec<Vec<u64>>,
    traffic: Option<TierTraffic>,
}

/// Trains, scores in between, skips a step, and continues from the rows read and written back.
fn train(training: &Training, model: &mut CudaModel) -> Result<Trained, Failed> {
    let (mut trained, mut logits) = (Trained::default(), Vec::new());
    for (step, batch) in training.batches.iter().enumerate() {
        if step % 11 == 5 {
            // The same samples are scored twice in a row.
            for _ in 0..2 {
                model.logits(&training.batches[step - 1], &mut logits)?;
                trained.logits.extend(logits.iter().map(|logit| logit.to_bits()));
            }
        }
        let mut batch = batch.clone();
        if step % 9 == 4 {
            batch.labels[0].iter_mut().for_each(|label| *label = f32::INFINITY);
        }
        model.train_on(&batch, factor(step))?;
        let all = step % 17 == 16;
        model.take_outcomes(all, &mut |outcome| trained.losses.push(outcome.loss.to_bits()))?;
    }
    model.take_outcomes(true, &mut |outcome| trained.losses.push(outcome.loss.to_bits()))?;
    trained.weights = weights(model)?.iter().map(|weight| weight.to_bits()).collect();
    let rows = Arc::new(Mutex::new(BTreeMap::<usize, Vec<Vec<u64>>>::new()));
    let all = Arc::clone(&rows);
    model.visit_ranks(Arc::new(move |rank, state| {
        let mut into = Vec::new();
        for (number, part) in state.rows.parts().iter().enumerate() {
            let mut words = vec![0.0; part.rows.len() as usize * part.layout.words];
            state.rows.copy(number, 0..part.rows.len(), &mut words).expect("rows can be read");
            into.push(words.iter().map(|word: &f32| word.to_bits().into()).collect());
            // Backwards, and every third one.
            let some: Vec<u64> = (0..part.rows.len()).rev().step_by(3).collect();
            let mut words = vec![0.0; some.len() * part.layout.words];
            state.rows.copy_listed(number, &some, &mut words).expect("rows can be read");
            into.push(words.iter().map(|word: &f32| word.to_bits().into()).collect());
            let touched = state.rows.touched(number).expect("rows can be read");
            let touched = touched.map(|touched| touched.among(0..part.rows.len()));
            into.push(touched.unwrap_or_default());
        }
        all.lock().expect("no rank fails").insert(rank.0, into);
        Ok(())
    }))?;
    let rows = std::mem::take(&mut *rows.lock().expect("no rank fails"));
    trained.rows = rows.into_values().flatten().collect();
    trained.traffic = model.tier_traffic()?;
    Ok(trained)
}

fn learn_to_the_bit(bench: &Bench, words: &mut Words, precision: Precision) -> Outcome {
    let interactions = match precision {
        Precision::Fp8 => &[Interaction::Dot, Interaction::Cross { layers: 2, rank: Some(16) }][..],
        _ => &[
            Interaction::Dot,
            Interaction::Cross { layers: 2, rank: None },
            Interaction::Concat,
            Interaction::FactorizationMachine,
        ],
    };
    let interaction = words.one_of(interactions);
    let draw: Draw = match words.below(3) {
        0 if precision != Precision::Fp8 => Training::attended,
        1 => Training::weighted,
        _ => Training::random,
    };
    let mut training = draw(words, interaction, STEPS);
    if precision == Precision::Fp8 {
        training.widen_for_fp8();
    }
    let tier = plan(words, &training, None);
    let own = std::slice::from_ref(&bench.device);
    // Both track which rows are updated.
    let whole = TierPlan { tables: vec![None; tier.tables.len()], refresh_steps: None };
    let expected = train(&training, &mut training.tiered(own, precision, None, whole)?)?;
    let plain = train(&training, &mut training.on_gpu(bench, precision)?)?;
    let found = train(&training, &mut training.tiered(own, precision, None, tier.clone())?)?;
    let context = format!("{:?}, {tier:?}", training.model.spec);
    if expected.weights != plain.weights {
        return Err(format!("other weights of a GPU that stores all rows: {context}").into());
    }
    found.is_same(&plain, &expected.rows, &tier, &context)
}

fn ranks_learn_to_the_bit(_: &Bench, words: &mut Words) -> Outcome {
    let interaction = words.one_of(&[Interaction::Dot, Interaction::Concat]);
    let draw: Draw = words.one_of(&[Training::random, Training::weighted, Training::attended]);
    let (training, devices) = (draw(words, interaction, STEPS), some_devices(words)?);
    let placements = [Placement::RowWise, Placement::RowWise, Placement::TableWise, Placement::Hybrid];
    let mut placed = random_plan(words, &training, devices.len(), &placements)?;
    placed.tables.iter_mut().for_each(|table| table.exchange = Exchange::Rows);
    let tier = plan(words, &training, None);
    let whole = TierPlan { tables: vec![None; tier.tables.len()], refresh_steps: None };
    let precision = words.one_of(&[Precision::Fp32, Precision::Bf16]);
    let expected = train(&training, &mut training.tiered(&devices, precision, Some(&placed), whole)?)?;
    let found = train(&training, &mut training.tiered(&devices, precision, Some(&placed), tier.clone())?)?;
    found.is_same(&expected, &expected.rows, &tier, &format!("{precision:?}, {placed:?}, {tier:?}"))
}

impl Trained {
    /// Compares it with another training, and the rows with the rows of GPUs that store all of them.
    fn is_same(&self, expected: &Self, rows: &[Vec<u64>], tier: &TierPlan, context: &str) -> Outcome {
        for (what, is_same) in [
            ("losses", self.losses == expected.losses),
            ("logits", self.logits == expected.logits),
            ("weights", self.weights == expected.weights),
            ("rows", self.rows == rows),
        ] {
            if !is_same {
                return Err(format!("other {what}: {context}").into());
            }
        }
        let (traffic, cold) =
            (self.traffic.ok_or("the traffic is counted")?, tier.tables.iter().flatten().count());
        let TierTraffic { batches, cold_rows, forwarded_rows, bytes_to_device, bytes_to_host, .. } = traffic;
        let refreshes = tier.refresh_steps.map_or(0, |steps| (STEPS as u64 - 1) / steps);
        let is_plausible = batches >= STEPS as u64
            && traffic.refreshes == refreshes
            && (traffic.moved_rows == 0 || refreshes > 0)
            && (cold == 0) == (cold_rows == 0)
            && forwarded_rows <= cold_rows
            && (cold_rows == 0) == (bytes_to_host == 0)
            && (bytes_to_device > 0 || cold_rows == forwarded_rows);
        if is_plausible { Ok(()) } else { Err(format!("{traffic:?}: {context}").into()) }
    }
}

fn too_many_cold_rows_are_an_error(bench: &Bench, words: &mut Words) -> Outcome {
    let training = Training::random(words, Interaction::Concat, 3);
    let rows = training.model.spec.tables[3].rows;
    let mut tables = vec![None; training.model.all_tables().len()];
    tables[3] = Some(TableTier { hot: HotRows::of(rows, 0..10), landing_rows: 7 });
    let plan = TierPlan { tables, refresh_steps: None };
    let mut model = training.tiered(std::slice::from_ref(&bench.device), Precision::Fp32, None, plan)?;
    // The step may begin only when the next batch comes.
    let begun = model.train_on(&training.batches[0], 1.0).map_err(|error| error.to_string());
    let done = begun.and_then(|()| model.take_outcomes(true, &mut drop).map_err(|error| error.to_string()));
    match done {
        Err(error) if error.contains("rows of table t3 that are in host memory") => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
