//! Trainings over the GPUs of several nodes, simulated by GPUs of this machine, against a single GPU. NCCL between
//! nodes needs one GPU per rank: if ranks of a node share a GPU, one's kernels sometimes keep another's from running
//! for as long as they wait for it.

use std::fs;
use std::sync::Arc;

use libtest_mimic::Failed;
use rankine::job::Precision;
use rankine_cuda::Device;
use rankine_embedding::{
    EmbeddingPlan, Exchange, FrequentRows, Optimizer, RoundCapacity, TablePlan, TableSpec, UpdateRule,
};
use rankine_engine::training::{TrainBenchOptions, bench_train};
use rankine_launch::ProcessGroup;
use rankine_model::Interaction;
use rankine_topology::{Rank, Topology};

use super::bench::job;
use super::input::{Columns, is_the_same_however_it_is_fed};
use super::ranks::{
    evaluates_as_the_cpu_does, is_as_one, of_all_ranks, random_exchange, update_slices_as_all,
};
use super::scoring::scores_have_the_same_bits;
use super::training::{Draw, Training, stays_near};
use super::{Bench, Body, Outcome, Words, close};

/// Nodes, and GPUs of each.
type Nodes = (usize, usize);

/// Each with the number of GPUs that it needs.
pub(crate) const BODIES: &[(Body, usize)] = &[
    (
        ("two_nodes_of_one_train_with_dot_products_as_one", 1, |bench, words| {
            train_as_one(bench, words, (2, 1), Interaction::Dot)
        }),
        2,
    ),
    (
        ("two_nodes_of_one_train_with_cross_layers_as_one", 1, |bench, words| {
            train_as_one(bench, words, (2, 1), Interaction::Cross { layers: 2, rank: Some(12) })
        }),
        2,
    ),
    (
        ("two_nodes_of_one_train_weighted_bags_as_one", 2, |bench, words| {
            train_weighted_bags_as_one(bench, words, (2, 1))
        }),
        2,
    ),
    (
        ("two_nodes_of_one_train_with_attention_as_one", 1, |bench, words| {
            draws_train_as_one(bench, words, (2, 1), (Interaction::Concat, Training::attended))
        }),
        2,
    ),
    (
        ("two_nodes_of_two_train_weighted_bags_as_one", 2, |bench, words| {
            train_weighted_bags_as_one(bench, words, (2, 2))
        }),
        4,
    ),
    (("two_nodes_of_one_update_slices_as_all", 1, |_, words| update_slices(words, (2, 1))), 2),
    (("copies_wait_for_transfers_between_nodes", 1, |_, _| copies_wait_for_transfers()), 2),
    (("two_nodes_of_one_evaluate_as_the_cpu_does", 1, |_, words| evaluate(words, (2, 1))), 2),
    (("two_nodes_of_one_score_the_same_bits_in_batches_of_any_size", 4, |_, words| score(words, (2, 1))), 2),
    (("two_nodes_of_two_score_the_same_bits_in_batches_of_any_size", 4, |_, words| score(words, (2, 2))), 4),
    (("two_nodes_of_one_train_the_same_however_they_are_fed", 2, |_, words| feed(words, (2, 1))), 2),
    (
        ("two_nodes_of_two_train_with_dot_products_as_one", 1, |bench, words| {
            train_as_one(bench, words, (2, 2), Interaction::Dot)
        }),
        4,
    ),
    (("two_nodes_of_two_train_with_bf16_as_one", 1, |bench, words| learn_as_one(bench, words, (2, 2))), 4),
    (("two_nodes_of_two_update_slices_as_all", 2, |_, words| update_slices(words, (2, 2))), 4),
    (("two_nodes_of_two_evaluate_as_the_cpu_does", 1, |_, words| evaluate(words, (2, 2))), 4),
    (
        ("four_nodes_of_one_train_with_dot_products_as_one", 1, |bench, words| {
            train_as_one(bench, words, (4, 1), Interaction::Dot)
        }),
        4,
    ),
    (("four_nodes_of_one_evaluate_as_the_cpu_does", 1, |_, words| evaluate(words, (4, 1))), 4),
    (
        ("four_nodes_of_two_train_with_dot_products_as_one", 1, |bench, words| {
            train_as_one(bench, words, (4, 2), Interaction::Dot)
        }),
        8,
    ),
    (("four_nodes_of_two_train_with_bf16_as_one", 1, |bench, words| learn_as_one(bench, words, (4, 2))), 8),
    (("eight_nodes_of_one_update_slices_as_all", 1, |_, words| update_slices(words, (8, 1))), 8),
];

fn devices((nodes, ranks_per_node): Nodes) -> Result<Vec<Arc<Device>>, Failed> {
    Ok((0..nodes * ranks_per_node).map(Device::open).collect::<Result<_, _>>()?)
}

/// A plan whose messages initially have room for `vectors` rows of a table.
fn plan(
    words: &mut Words,
    training: &Training,
    (nodes, ranks_per_node): Nodes,
    vectors: &[usize],
) -> Result<EmbeddingPlan, Failed> {
    let ranks = nodes * ranks_per_node;
    let all: Vec<_> = Rank::first(ranks).collect();
    let exchange = |words: &mut Words, table: usize| random_exchange(words, training, table);
    let of_table = |(number, (table, optimizer)): (usize, (TableSpec, Optimizer))| {
        let plan = match words.below(6) {
            0 | 1 => TablePlan::row_wise(&table, exchange(words, number)),
            2 => {
                let exchange = exchange(words, number);
                TablePlan::table_wise(&table, exchange, Rank(words.below(ranks as u64) as usize))
            }
            3 => TablePlan::replicated(&table),
            4 => {
                let some = words.below(1 + table.rows.min(20));
                let frequent = (0..some).map(|_| words.below(table.rows)).collect();
                TablePlan::hybrid(&table, Exchange::Rows, FrequentRows::listed(frequent))
            }
            _ => {
                let rowwise = matches!(optimizer.rule, UpdateRule::RowwiseAdagrad { .. });
                let exchange = if rowwise { Exchange::Rows } else { exchange(words, number) };
                TablePlan::column_wise(&table, exchange, &all)
            }
        };
        TablePlan { round: RoundCapacity { vectors: words.one_of(vectors), ids: 1 }, ..plan }
    };
    let tables = training.model.all_tables().into_iter().enumerate().map(of_table).collect();
    Ok(EmbeddingPlan { topology: Topology::new(ranks, nodes)?, tables })
}

fn train_as_one(bench: &Bench, words: &mut Words, nodes: Nodes, interaction: Interaction) -> Outcome {
    draws_train_as_one(bench, words, nodes, (interaction, Training::random))
}

fn train_weighted_bags_as_one(bench: &Bench, words: &mut Words, nodes: Nodes) -> Outcome {
    draws_train_as_one(bench, words, nodes, (Interaction::Dot, Training::weighted))
}

fn draws_train_as_one(
    bench: &Bench,
    words: &mut Words,
    nodes: Nodes,
    (interaction, draw): (Interaction, Draw),
) -> Outcome {
    // Batches need several size classes of messages, or one.
    for vectors in [&[1, 2, 5][..], &[1 << 14]] {
        stays_near(words, |words| {
            let training = Training::over_empty_shares(words, interaction, draw);
            let plan = plan(words, &training, nodes, vectors)?;
            is_as_one(bench, &training, &devices(nodes)?, Some(&plan))
        })
        .map_err(|failed| format!("{vectors:?}: {}", failed.message().unwrap_or_default()))?;
    }
    Ok(())
}

fn learn_as_one(bench: &Bench, words: &mut Words, nodes: Nodes) -> Outcome {
    let training = Training::random(words, Interaction::Dot, 200);
    let expected = training.losses_on_gpu(&mut training.on_gpu(bench, Precision::Bf16)?)?;
    let plan = plan(words, &training, nodes, &[2, 1 << 14])?;
    let devices = devices(nodes)?;
    let found = of_all_ranks(&training, &devices, Precision::Bf16, Some(&plan))?;
    let mean = |losses: &[f64]| losses[150..].iter().sum::<f64>() / 50.0;
    let (of_nodes, of_one) = (mean(&found.losses), mean(&expected));
    close("the mean of the last 50 losses", 0, of_nodes, of_one, 0.01 * of_one)?;
    let same = of_all_ranks(&training, &devices, Precision::Bf16, Some(&plan))? == found;
    if same { Ok(()) } else { Err("two trainings differ".into()) }
}

fn update_slices(words: &mut Words, nodes: Nodes) -> Outcome {
    let planned = |words: &mut Words, training: &Training| plan(words, training, nodes, &[2, 1 << 14]);
    update_slices_as_all(words, &devices(nodes)?, &planned)
}

fn evaluate(words: &mut Words, nodes: Nodes) -> Outcome {
    let seeds = std::cell::RefCell::new(Words { seed: words.below(u64::MAX), next: 0 });
    let planned = |training: &Training| plan(&mut seeds.borrow_mut(), training, nodes, &[2, 1 << 14]);
    evaluates_as_the_cpu_does(words, &devices(nodes)?, Some(&planned))
}

fn score(words: &mut Words, nodes: Nodes) -> Outcome {
    let vectors = words.one_of(&[&[1, 2, 5][..], &[2, 1 << 14], &[1 << 14]]);
    let planned = |words: &mut Words, training: &Training| plan(words, training, nodes, vectors);
    let draw = words.one_of(&[Training::random as Draw, Training::weighted, Training::attended]);
    scores_have_the_same_bits(&devices(nodes)?, words, draw, Some(&planned))
}

fn feed(words: &mut Words, nodes: Nodes) -> Outcome {
    let columns = words.one_of(&[Columns::Plain, Columns::Weighted]);
    is_the_same_however_it_is_fed(&devices(nodes)?, nodes.0, words, columns)
}

/// A trace shows no copy from the host beside NCCL's kernels, except in a transfer that waited for a rank.
fn copies_wait_for_transfers() -> Outcome {
    const PATIENCE_US: f64 = 2000.0;
    let folder = tempfile::tempdir()?;
    let sets = ["device.ranks=2", "device.nodes=2", "device.copies=between-exchanges", "train.epochs=50"];
    let job = job(folder.path(), &sets)?;
    let trace = folder.path().join("trace.json");
    let options = TrainBenchOptions {
        warm_up: 20,
        steps: 200,
        trace: Some(trace.clone()),
        ..TrainBenchOptions::default()
    };
    match bench_train(&job, &options, &ProcessGroup::alone(), &mut ()) {
        // CUPTI belongs to the toolkit, which training does not need.
        Err(error) if error.to_string().contains("(libcupti.so.13)") => return Ok(()),
        outcome => outcome?,
    };
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&trace)?)?;
    let spans = |named: &str| -> Vec<(u64, f64, f64)> {
        let events = json["traceEvents"].as_array().into_iter().flatten();
        let events = events.filter(|event| event["name"].as_str().is_some_and(|name| name.contains(named)));
        events
            .filter_map(|event| {
                let (begin, us) = (event["ts"].as_f64()?, event["dur"].as_f64()?);
                Some((event["pid"].as_u64()?, begin, begin + us))
            })
            .collect()
    };
    let (transfers, copies) = (spans("nccl"), spans("copy host to device"));
    if transfers.is_empty() || copies.is_empty() {
        return Err(format!("{} transfers, {} copies", transfers.len(), copies.len()).into());
    }
    for copy in &copies {
        let beside = |transfer: &&(u64, f64, f64)| {
            transfer.0 == copy.0
                && transfer.1 < copy.2
                && copy.1 < transfer.2
                && transfer.2 - transfer.1 < PATIENCE_US
        };
        if let Some(transfer) = transfers.iter().find(beside) {
            return Err(format!("copy {copy:?} ran beside transfer {transfer:?}").into());
        }
    }
    Ok(())
}
