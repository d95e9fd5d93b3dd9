//! Trainings over several ranks, against a single GPU. If there are fewer GPUs than ranks, the ranks share them.

use std::collections::HashSet;
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::Failed;
use rankine::job::Precision;
use rankine_backend::Backend;
use rankine_cuda::Device;
use rankine_embedding::{
    EmbeddingPlan, Exchange, FrequentRows, LinkTraffic, Optimizer, Placement, RankTraffic, TablePlan,
    TableSpec, Traffic, UpdateRule,
};
use rankine_engine_gpu::{CudaModel, EvaluationShape, Execution};
use rankine_model::evaluation::{Evaluation, HeadMetrics, JudgedHead};
use rankine_model::{Interaction, ModelSpec, TrainingRules};
use rankine_reader::Samples;
use rankine_topology::{Rank, Topology};

use super::auc::AucWeights;
use super::input::{Columns, is_the_same_however_it_is_fed};
use super::scoring::scores_have_the_same_bits;
use super::training::{Comparison, Draw, Run, Training, overlaps_change_no_bit, stays_near, weights};
use super::{Bench, Body, Outcome, Words, close};

pub(crate) const BODIES: &[Body] = &[
    ("ranks_train_with_dot_products_as_one", 3, |bench, words| trains_as_one(bench, words, Interaction::Dot)),
    ("ranks_train_with_cross_layers_as_one", 1, |bench, words| {
        trains_as_one(bench, words, Interaction::Cross { layers: 2, rank: Some(12) })
    }),
    ("ranks_train_with_machines_as_one", 1, |bench, words| {
        trains_as_one(bench, words, Interaction::FactorizationMachine)
    }),
    ("ranks_train_with_concatenations_as_one", 1, |bench, words| {
        trains_as_one(bench, words, Interaction::Concat)
    }),
    ("ranks_train_with_bf16_as_one", 1, |bench, words| learns_as_one(bench, words, Precision::Bf16)),
    ("ranks_train_with_fp16_as_one", 1, |bench, words| learns_as_one(bench, words, Precision::Fp16)),
    ("ranks_train_with_fp8_as_one", 2, |bench, words| match bench.device.multiplies_fp8() {
        true => learns_as_one(bench, words, Precision::Fp8),
        false => Ok(()),
    }),
    (SKIP_SAME, 1, skip_the_same_steps),
    ("ranks_that_share_a_gpu_load_kernels_before_they_wait", 1, load_kernels_before_they_wait),
    ("ranks_evaluate_as_the_cpu_does", 2, evaluate_as_the_cpu_does),
    ("ranks_score_the_same_bits_in_batches_of_any_size", 4, |_, words| {
        scores_have_the_same_bits(&some_devices(words)?, words, Training::random, None)
    }),
    ("ranks_score_weighted_bags_with_the_same_bits", 3, |_, words| {
        scores_have_the_same_bits(&some_devices(words)?, words, Training::weighted, None)
    }),
    ("ranks_score_placed_tables_with_the_same_bits", 6, |_, words| {
        let devices = some_devices(words)?;
        let planned = |words: &mut Words, training: &Training| {
            random_plan(words, training, devices.len(), &Placement::ALL)
        };
        let draw = words.one_of(&[Training::random as Draw, Training::weighted, Training::attended]);
        scores_have_the_same_bits(&devices, words, draw, Some(&planned))
    }),
    ("ranks_train_weighted_bags_as_one", 2, |bench, words| {
        draws_train_as_one(bench, words, (Interaction::Dot, Training::weighted))
    }),
    ("ranks_score_by_attention_with_the_same_bits", 2, |_, words| {
        scores_have_the_same_bits(&some_devices(words)?, words, Training::attended, None)
    }),
    ("ranks_train_with_attention_as_one", 2, |bench, words| {
        let interaction = words.one_of(&[Interaction::Dot, Interaction::Concat]);
        draws_train_as_one(bench, words, (interaction, Training::attended))
    }),
    ("ranks_are_fed_with_weights_of_ids_in_any_way", 2, |_, words| {
        is_the_same_however_it_is_fed(&some_devices(words)?, 1, words, Columns::Weighted)
    }),
    ("ranks_train_dynamic_tables_as_one", 2, |bench, words| {
        draws_train_as_one(bench, words, (Interaction::Dot, Training::dynamic))
    }),
    ("ranks_are_fed_with_ids_of_dynamic_tables_in_any_way", 2, |_, words| {
        is_the_same_however_it_is_fed(&some_devices(words)?, 1, words, Columns::Open)
    }),
    ("ranks_train_the_same_however_they_are_fed", 3, train_the_same_however_they_are_fed),
    ("ranks_update_slices_as_all", 3, |_, words| {
        let devices = some_devices(words)?;
        update_slices_as_all(words, &devices, &|words, training| {
            random_plan(words, training, devices.len(), &Placement::ALL)
        })
    }),
    ("ranks_count_what_they_send", 3, count_what_they_send),
    ("what_overlaps_changes_no_bit_over_ranks", 1, |_, words| {
        let devices = some_devices(words)?;
        overlaps_change_no_bit(&devices, &Training::random(words, Interaction::Dot, 30))
    }),
];

const SKIP_SAME: &str = "ranks_skip_the_same_steps";

/// One GPU per rank, each opened separately.
fn devices(ranks: usize) -> Result<Vec<Arc<Device>>, Failed> {
    let count = Device::count()?;
    Ok((0..ranks).map(|rank| Device::open(rank % count)).collect::<Result<_, _>>()?)
}

/// Some ranks: one per GPU, or up to four that share one.
pub(super) fn some_devices(words: &mut Words) -> Result<Vec<Arc<Device>>, Failed> {
    let most = Device::count()?.clamp(4, 8) as u64;
    devices(2 + words.below(most - 1) as usize)
}

/// Draws what ranks exchange for a table. Rows that attention reads, and rows of dynamic tables, are not pooled.
pub(super) fn random_exchange(words: &mut Words, training: &Training, table: usize) -> Exchange {
    let spec = &training.model.spec;
    let mut attended = spec.attention.iter().flat_map(|attention| &attention.features);
    let attended = attended.any(|&feature| spec.features[feature].table == table);
    match attended || training.is_dynamic(table) {
        true => Exchange::Rows,
        false => words.one_of(&Exchange::ALL),
    }
}

/// Places each table in one of the given ways. Rows that attention reads are not pooled.
pub(super) fn random_plan(
    words: &mut Words,
    training: &Training,
    ranks: usize,
    placements: &[Placement],
) -> Result<EmbeddingPlan, Failed> {
    let all: Vec<_> = Rank::first(ranks).collect();
    let exchange = |words: &mut Words, table: usize| random_exchange(words, training, table);
    let plan = |(number, (table, optimizer)): (usize, (TableSpec, Optimizer))| match words.one_of(placements)
    {
        Placement::Replicated => TablePlan::replicated(&table),
        Placement::RowWise => TablePlan::row_wise(&table, exchange(words, number)),
        Placement::TableWise => {
            let exchange = exchange(words, number);
            TablePlan::table_wise(&table, exchange, Rank(words.below(ranks as u64) as usize))
        }
        Placement::ColumnWise => {
            let rowwise = matches!(optimizer.rule, UpdateRule::RowwiseAdagrad { .. });
            let exchange = if rowwise { Exchange::Rows } else { exchange(words, number) };
            TablePlan::column_wise(&table, exchange, &all)
        }
        Placement::Hybrid if training.is_dynamic(number) => TablePlan::row_wise(&table, Exchange::Rows),
        Placement::Hybrid => {
            let some = 1 + words.below(table.rows);
            let frequent = FrequentRows::listed((0..some).map(|_| words.below(table.rows)).collect());
            TablePlan::hybrid(&table, Exchange::Rows, frequent)
        }
    };
    let tables = training.model.all_tables().into_iter().enumerate().map(plan).collect();
    Ok(EmbeddingPlan { topology: Topology::new(ranks, 1)?, tables })
}

pub(super) fn of_all_ranks(
    training: &Training,
    devices: &[Arc<Device>],
    precision: Precision,
    plan: Option<&EmbeddingPlan>,
) -> Result<Run, Failed> {
    run(training, devices, Execution::new(precision), plan)
}

fn run(
    training: &Training,
    devices: &[Arc<Device>],
    execution: Execution,
    plan: Option<&EmbeddingPlan>,
) -> Result<Run, Failed> {
    let mut model = training.executed(devices, execution, plan)?;
    let found = Run::of(training, &mut model)?;
    let diverged = model.diverged_ranks()?;
    if !diverged.is_empty() {
        return Err(format!("ranks {diverged:?} have replicas that differ from rank 0's").into());
    }
    Ok(found)
}

fn trains_as_one(bench: &Bench, words: &mut Words, interaction: Interaction) -> Outcome {
    draws_train_as_one(bench, words, (interaction, Training::random))
}

fn draws_train_as_one(bench: &Bench, words: &mut Words, (interaction, draw): (Interaction, Draw)) -> Outcome {
    let as_one = |words: &mut Words, placements: Option<&[Placement]>| {
        stays_near(words, |words| {
            let training = Training::over_empty_shares(words, interaction, draw);
            let devices = some_devices(words)?;
            let plan = placements.map(|placements| random_plan(words, &training, devices.len(), placements));
            is_as_one(bench, &training, &devices, plan.transpose()?.as_ref())
        })
        .map_err(|failed| format!("{placements:?}: {}", failed.message().unwrap_or_default()).into())
    };
    as_one(words, None)?;
    as_one(words, Some(&Placement::ALL))?;
    Placement::ALL.into_iter().try_for_each(|placement| as_one(words, Some(&[placement])))
}

/// Trains over ranks, with tables placed by a plan, twice, and compares the result with one GPU's.
///
/// # Errors
/// If the result differs between the two trainings, or between ranks.
pub(super) fn is_as_one(
    bench: &Bench,
    training: &Training,
    devices: &[Arc<Device>],
    plan: Option<&EmbeddingPlan>,
) -> Result<Comparison, Failed> {
    let found = of_all_ranks(training, devices, Precision::Fp32, plan)?;
    if of_all_ranks(training, devices, Precision::Fp32, plan)? != found {
        return Err(format!("two trainings over {} ranks differ", devices.len()).into());
    }
    found.nearness(&Run::of(training, &mut training.on_gpu(bench, Precision::Fp32)?)?)
}

fn learns_as_one(bench: &Bench, words: &mut Words, precision: Precision) -> Outcome {
    let mut training = Training::random(words, Interaction::Dot, 200);
    if precision == Precision::Fp8 {
        training.model.spec.top_mlp = words.one_of(&[&[160, 48][..], &[32], &[64, 272, 16]]).to_vec();
    }
    let expected = training.losses_on_gpu(&mut training.on_gpu(bench, precision)?)?;
    let devices = some_devices(words)?;
    let plan = random_plan(words, &training, devices.len(), &Placement::ALL)?;
    let found = of_all_ranks(&training, &devices, precision, Some(&plan))?;
    let mean = |losses: &[f64]| losses[150..].iter().sum::<f64>() / 50.0;
    let (of_ranks, of_one) = (mean(&found.losses), mean(&expected));
    close("the mean of the last 50 losses", 0, of_ranks, of_one, 0.01 * of_one)?;
    let same = of_all_ranks(&training, &devices, precision, Some(&plan))? == found;
    if same { Ok(()) } else { Err(format!("two trainings over {} ranks differ", devices.len()).into()) }
}

fn skip_the_same_steps(_: &Bench, words: &mut Words) -> Outcome {
    let mut training = Training::random(words, Interaction::Dot, 1);
    // Gradients of a loss of this size are within the range; times the first loss scale they are not.
    training.model.spec.heads.iter_mut().for_each(|head| head.weight = 2e5);
    training.model.rules = TrainingRules::sgd(&training.model.spec, 1e-8);
    let mut model = training.over_ranks(&some_devices(words)?, Precision::Fp16, None)?;
    let mut before = weights(&model)?;
    let mut skipped = vec![0];
    for step in 0..24 {
        if !training.losses_on_gpu(&mut model)?[0].is_finite() {
            return Err("a loss within the range is not reported".into());
        }
        let (now, after) = (model.overflow_steps()?.unwrap_or(0), weights(&model)?);
        if (now > skipped[step]) != (after == before) || !model.diverged_ranks()?.is_empty() {
            return Err(format!("skipped steps: {skipped:?}, then {now}").into());
        }
        skipped.push(now);
        before = after;
    }
    if skipped[1] != 1 || skipped[24] == 24 {
        return Err(format!("skipped steps: {skipped:?}").into());
    }
    Ok(())
}

/// A process loads each of cuBLASLt's kernels once. If ranks share a GPU, a load while one rank waits for another is a
/// deadlock. So each seed has its own process: the first two need scoring kernels that training does not use.
fn load_kernels_before_they_wait(_: &Bench, words: &mut Words) -> Outcome {
    for seed in [7, 1_795_387_533_554_188_415, words.below(u64::MAX)] {
        let mut test = Command::new(std::env::current_exe()?);
        test.args(["--exact", SKIP_SAME]).env("RANKINE_TEST_SEED", seed.to_string());
        let ended = test.output()?;
        let text = String::from_utf8_lossy(&ended.stdout);
        if !ended.status.success() || !text.contains("1 passed") {
            return Err(format!("with seed {seed}: {}\n{text}", ended.status).into());
        }
    }
    Ok(())
}

fn evaluate_as_the_cpu_does(_: &Bench, words: &mut Words) -> Outcome {
    let devices = some_devices(words)?;
    evaluates_as_the_cpu_does(words, &devices, None)
}

/// The placement of a training's rows.
pub(super) type PlanOf<'a> = &'a dyn Fn(&Training) -> Result<EmbeddingPlan, Failed>;

pub(super) fn evaluates_as_the_cpu_does(
    words: &mut Words,
    devices: &[Arc<Device>],
    plan: Option<PlanOf<'_>>,
) -> Outcome {
    let mut training = Training::random(words, Interaction::Dot, 20);
    let plan = plan.map(|plan| plan(&training)).transpose()?;
    let mut model = training.over_ranks(devices, Precision::Bf16, plan.as_ref())?;
    training.losses_on_gpu(&mut model)?;
    for weights in [AucWeights::None, words.one_of(&AucWeights::GIVEN)] {
        for batch in &mut training.batches {
            batch.weights = weights.of(words, batch.len);
        }
        evaluates_these_as_the_cpu_does(&training, &mut model)
            .map_err(|failed| format!("weights {weights:?}: {}", failed.message().unwrap_or_default()))?;
    }
    Ok(())
}

fn evaluates_these_as_the_cpu_does(training: &Training, model: &mut CudaModel) -> Outcome {
    let size = model.score_size();
    let batches: Vec<Samples> = (training.batches.iter())
        .flat_map(|batch| (0..batch.len).step_by(size).map(|at| batch.slice(at..batch.len.min(at + size))))
        .collect();
    let samples: usize = batches.iter().map(|batch| batch.len).sum();
    // Batches have several lengths here, as if each were a whole one.
    let room = batches.len() * size;
    for _ in 0..2 {
        let mut on_host = Evaluation::new(&JudgedHead::of_heads_uncorrected(&training.model.spec.heads));
        let weighted = !batches[0].weights.is_empty();
        model.begin_evaluation(EvaluationShape { samples: room, batch_size: size, weighted })?;
        for batch in &batches {
            model.evaluate(batch)?;
        }
        let found = model.finish_evaluation()?.heads;
        for batch in &batches {
            let mut logits = Vec::new();
            model.logits(batch, &mut logits)?;
            on_host.add(batch, &logits);
        }
        let aucs = |heads: &[HeadMetrics]| -> Vec<_> {
            heads.iter().map(|head| head.metrics.map(|metrics| (metrics.auc, metrics.samples))).collect()
        };
        let (found, expected) = (aucs(&found), aucs(&on_host.metrics()));
        if found != expected {
            return Err(format!("{found:?} instead of {expected:?} for {samples} samples").into());
        }
    }
    Ok(())
}

/// What ranks send is counted in training, and nowhere else.
fn count_what_they_send(_: &Bench, words: &mut Words) -> Outcome {
    let training = Training::random(words, Interaction::Dot, 4);
    let (devices, tables) = (some_devices(words)?, training.model.all_tables());
    let topology = Topology::new(devices.len(), 1)?;
    let row_wise = |(table, _): &(TableSpec, Optimizer)| TablePlan::row_wise(table, Exchange::Rows);
    let plan = EmbeddingPlan { topology, tables: tables.iter().map(row_wise).collect() };
    let (precision, element, sum) =
        words.one_of(&[(Precision::Fp32, 4, 4), (Precision::Bf16, 2, 2), (Precision::Fp16, 2, 4)]);
    let shard_dense_update = words.below(2) == 0;
    let execution = Execution { shard_dense_update, ..Execution::new(precision) };
    let mut model = training.executed(&devices, execution, Some(&plan))?;
    let mut found = vec![model.traffic()?];
    for _ in 0..2 {
        training.losses_on_gpu(&mut model)?;
        found.push(model.traffic()?);
        model.logits(&training.batches[0], &mut Vec::new())?;
        if model.traffic()? != found[found.len() - 1] {
            return Err("scoring counts as training".into());
        }
    }
    let mut expected = LinkTraffic::default();
    for batch in &training.batches {
        for rank in topology.all_ranks() {
            let share = batch.slice(topology.share(batch.len, rank));
            for (rows, (table, _)) in rows_by_table(&training.model.spec, &share).iter().zip(&tables) {
                let of_others = rows.iter().filter(|&&row| row % devices.len() as u64 != rank.0 as u64);
                let (sent, elements) = (of_others.count() as u64, table.dim.next_multiple_of(4) as u64);
                expected.rows += sent;
                expected.bytes += sent * (4 + elements * (element + sum));
            }
        }
    }
    // Each dense gradient reaches every other rank, by itself or within a sum.
    let dense = training.model.spec.dense_parameters() as u64;
    let least = 2 * (devices.len() as u64 - 1) * 4 * dense * training.batches.len() as u64;
    let reduced = found[1].reduction;
    let within = |within_nodes| Traffic { within_nodes, ..Traffic::default() };
    let once = RankTraffic { exchange: within(expected), reduction: within(reduced.within_nodes) };
    let (mut twice, is_enough) = (once, reduced.within_nodes.bytes >= least);
    twice += once;
    if found == [RankTraffic::default(), once, twice] && is_enough {
        return Ok(());
    }
    let what = format!("{} ranks, {precision:?}, sharded {shard_dense_update}", devices.len());
    Err(format!("{what}: {found:?}, not {expected:?} and at least {least} reduced bytes").into())
}

/// The distinct rows of each table, those of first-order terms last.
fn rows_by_table(spec: &ModelSpec, samples: &Samples) -> Vec<HashSet<u64>> {
    let of_table = |table: usize| {
        let features = spec.features.iter().zip(&samples.categorical);
        let own = features.filter(|(feature, _)| feature.table == table);
        own.flat_map(|(_, bags)| &bags.ids).copied().collect()
    };
    let terms = samples.categorical.iter().filter(|_| spec.wide);
    let terms = terms.map(|bags| bags.ids.iter().copied().collect());
    (0..spec.tables.len()).map(of_table).chain(terms).collect()
}

fn train_the_same_however_they_are_fed(_: &Bench, words: &mut Words) -> Outcome {
    let devices = some_devices(words)?;
    is_the_same_however_it_is_fed(&devices, 1, words, Columns::Plain)
}

/// A random placement of a training's tables.
pub(super) type RandomPlanOf<'a> = &'a dyn Fn(&mut Words, &Training) -> Result<EmbeddingPlan, Failed>;

/// Whether each rank updates a share of the dense parameters, or all ranks update all: the bits are the same.
pub(super) fn update_slices_as_all(
    words: &mut Words,
    devices: &[Arc<Device>],
    plan: RandomPlanOf<'_>,
) -> Outcome {
    let interaction = words.one_of(&[Interaction::Dot, Interaction::Cross { layers: 2, rank: None }]);
    let training = Training::random(words, interaction, 60);
    let precision = words.one_of(&[Precision::Fp32, Precision::Bf16]);
    let plan = plan(words, &training)?;
    let sharded = |shard_dense_update| {
        let execution = Execution { shard_dense_update, ..Execution::new(precision) };
        run(&training, devices, execution, Some(&plan))
    };
    let same = sharded(true)? == sharded(false)?;
    let (ranks, norm) = (devices.len(), training.model.rules.dense_clip_norm);
    if same {
        Ok(())
    } else {
        Err(format!("{ranks} ranks differ in {precision:?}, clipped to {norm:?}").into())
    }
}
