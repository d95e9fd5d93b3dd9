//! Compares plans with what ranks really send, with other plans, and with the available memory.

pub(super) mod counted;

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use proptest::prelude::*;
use rankine_topology::Topology;

use super::*;
use crate::cpu::{BagGradients, Bags, Communicator, Feature, FeatureSlot, RankTables};
use crate::dtype::Dtype;
use crate::frequency::{BagLengths, CountClass, FrequencyProfile, FrequencySketch, TableFrequencies};
use crate::optimizer::{Optimizer, Step, UpdateRule};
use crate::placement::{EmbeddingPlan, Exchange, Owner, Placement};
use crate::random::philox4x32;
use crate::table::{Pooling, TableSpec};
use crate::traffic::{LinkTraffic, Traffic};

const ROWWISE: UpdateRule = UpdateRule::RowwiseAdagrad { initial_accumulator: 0.0, epsilon: 1e-8 };

/// A number from 0 to 1 per counter.
fn unit(counter: u64) -> f64 {
    f64::from(philox4x32([counter as u32, (counter >> 32) as u32, 0, 0], [3, 4])[0]) / 4_294_967_296.0
}

/// A table with its own synthetic dataset.
struct Synthetic {
    spec: TableSpec,
    rule: UpdateRule,
    /// Bags, feature by feature and sample by sample.
    bags: Vec<Vec<Vec<u64>>>,
    lengths: Vec<BagLengths>,
    profile: FrequencyProfile,
}

impl Synthetic {
    /// Ids from about `k^-1`: `hotness` per bag, or any number up to that.
    fn new(
        seed: u64,
        samples: usize,
        rows: u64,
        dim: usize,
        hotness: &[u32],
        ragged: bool,
        rule: UpdateRule,
    ) -> Self {
        let mut counter = seed << 32;
        let mut draw = || {
            counter += 1;
            unit(counter)
        };
        let mut bags = Vec::new();
        for &hotness in hotness {
            let bag = |_| {
                let ids = if ragged { (draw() * f64::from(hotness + 1)) as u32 } else { hotness };
                (0..ids)
                    .map(|_| ((((rows + 1) as f64).powf(draw()) as u64).clamp(1, rows) - 1) * 7 % rows)
                    .collect()
            };
            bags.push((0..samples).map(bag).collect::<Vec<Vec<u64>>>());
        }
        let mut all = FrequencySketch::new(1 << 20);
        all.add_samples(samples as u64);
        let lengths = bags.iter().map(|of_feature| {
            let mut own = FrequencySketch::new(1 << 20);
            for bag in of_feature {
                own.add_bag(bag);
                all.add_bag(bag);
            }
            own.bag_lengths()
        });
        let lengths = lengths.collect();
        let profile = FrequencyProfile::new(rows, &all.frequencies());
        Self {
            spec: TableSpec { name: format!("t{seed}"), rows, dim, dtype: Dtype::Fp32, dynamic: None },
            rule,
            bags,
            lengths,
            profile,
        }
    }

    fn input(&self, placement: Option<Placement>, exchange: Option<Exchange>) -> TableInput<'_> {
        let input = counted::input(&self.spec, self.rule, &self.lengths, &self.profile);
        TableInput { placement, exchange, ..input }
    }
}

/// The mean traffic between ranks per batch of `batch` samples, over consecutive batches.
fn sent(tables: &[&Synthetic], plan: &EmbeddingPlan, batch: usize) -> Traffic {
    let plan = Arc::new(plan.clone());
    let batches = tables[0].bags[0].len() / batch;
    let of_rank = |mut communicator: Communicator| {
        let optimizer = |rule| Optimizer { rule, learning_rate: 0.1, weight_decay: 0.0 };
        let specs = tables.iter().map(|table| (table.spec.clone(), optimizer(table.rule), None));
        let mut own = RankTables::initialized(plan.clone(), communicator.rank(), specs);
        let share = plan.topology.share(batch, communicator.rank());
        for number in 0..batches {
            let samples = number * batch + share.start..number * batch + share.end;
            let flat = |bags: &Vec<Vec<u64>>| {
                let mut offsets = vec![0];
                let mut ids = Vec::new();
                for bag in &bags[samples.clone()] {
                    ids.extend_from_slice(bag);
                    offsets.push(ids.len() as u32);
                }
                (offsets, ids)
            };
            let columns: Vec<Vec<_>> =
                tables.iter().map(|table| table.bags.iter().map(flat).collect()).collect();
            let stride: usize = tables.iter().map(|table| table.bags.len() * table.spec.dim).sum();
            let mut offset = 0;
            let mut features = Vec::new();
            for (table, columns) in tables.iter().zip(&columns) {
                let feature = |(offsets, ids)| {
                    let slot = FeatureSlot { stride, offset };
                    offset += table.spec.dim;
                    Feature { bags: Bags { offsets, ids, weights: None }, pooling: Pooling::Sum, slot }
                };
                features.push(
                    columns
                        .iter()
                        .map(|(offsets, ids)| (offsets.as_slice(), ids.as_slice()))
                        .map(feature)
                        .collect(),
                );
            }
            let mut out = vec![0.0; share.len() * stride];
            own.forward(&mut communicator, &features, &mut out);
            let gradients = features.iter().map(|features: &Vec<Feature<'_>>| {
                features.iter().map(|feature| BagGradients { matrix: &out, slot: feature.slot }).collect()
            });
            let gradients: Vec<Vec<_>> = gradients.collect();
            let mut frequent = vec![0.0; own.frequent_elements()];
            own.backward(&mut communicator, &gradients, &mut frequent);
            own.update(&mut communicator, &frequent, Step { number: number as u64 + 1, rate_factor: 1.0 });
        }
        communicator.exchange_traffic()
    };
    let mut all = Traffic::default();
    thread::scope(|scope| {
        let of_rank = &of_rank;
        let ranks =
            Communicator::connect(plan.topology).into_iter().map(|end| scope.spawn(move || of_rank(end)));
        ranks.collect::<Vec<_>>().into_iter().for_each(|rank| all += rank.join().unwrap());
    });
    let mean = |link: LinkTraffic| LinkTraffic {
        rows: link.rows / batches as u64,
        bytes: link.bytes / batches as u64,
        padding_bytes: link.padding_bytes / batches as u64,
    };
    Traffic { within_nodes: mean(all.within_nodes), between_nodes: mean(all.between_nodes) }
}

fn input<'a>(
    tables: Vec<TableInput<'a>>,
    batch_size: u64,
    topology: Topology,
    machine: &'a Machine,
) -> PlanInput<'a> {
    let rest = NonTableLoad {
        memory: NonTableMemory { batch_bytes: 1 << 20, ..NonTableMemory::default() },
        flops: 1e6,
        matmuls: 9,
        memory_traffic_bytes: 1e6,
        reduced_elements: 1000,
    };
    PlanInput { tables, batch_size, topology, machine, rest }
}

#[track_caller]
fn assert_near(expected: u64, found: u64, share: f64, what: &str) {
    let slack = share * found as f64 + 3.0;
    assert!((expected as f64 - found as f64).abs() <= slack, "{what}: {expected} expected, {found} sent");
}

#[test]
fn ranks_send_what_is_expected() {
    let machine = Machine::cpu(1 << 30);
    let (samples, batch) = (4096, 512);
    let one_hot = Synthetic::new(1, samples, 3000, 8, &[1], false, UpdateRule::Sgd);
    let tiny = Synthetic::new(2, samples, 5, 4, &[1], false, UpdateRule::Sgd);
    let shared = Synthetic::new(3, samples, 2000, 16, &[1, 3], false, ROWWISE);
    let ragged = Synthetic::new(4, samples, 800, 8, &[12], true, ROWWISE);
    let tables = [&one_hot, &tiny, &shared, &ragged];
    for (ranks, nodes) in [(2, 1), (4, 1), (4, 2), (6, 3), (3, 3)] {
        let topology = Topology::new(ranks, nodes).unwrap();
        for placement in Placement::ALL {
            for exchange in Exchange::ALL {
                let tables_in =
                    tables.iter().map(|table| table.input(Some(placement), Some(exchange))).collect();
                let planned = plan(&input(tables_in, batch as u64, topology, &machine)).unwrap();
                let sent = sent(&tables, &planned.plan, batch);
                let what = format!("{ranks} ranks, {nodes} nodes, {placement:?}, {exchange:?}");
                let expected = planned.report.traffic;
                if matches!(placement, Placement::RowWise | Placement::TableWise | Placement::ColumnWise) {
                    assert!(sent.within_nodes.rows + sent.between_nodes.rows > 500, "{what}: {sent:?}");
                }
                for (expected, sent, link) in [
                    (expected.within_nodes, sent.within_nodes, "within"),
                    (expected.between_nodes, sent.between_nodes, "between"),
                ] {
                    assert_near(expected.rows, sent.rows, 0.03, &format!("{what}, rows {link}"));
                    assert_near(expected.bytes, sent.bytes, 0.03, &format!("{what}, bytes {link}"));
                    assert_near(
                        expected.padding_bytes,
                        sent.padding_bytes,
                        0.2,
                        &format!("{what}, padding {link}"),
                    );
                }
            }
        }
    }
}

/// A table known only by its distribution: `rows` rows, of which the `k`-th most frequent is looked up about `k^-1`
/// times.
fn lawful(
    number: usize,
    rows: u64,
    dim: usize,
    rule: UpdateRule,
) -> (TableSpec, UpdateRule, FrequencyProfile) {
    let head: Vec<_> = (0..rows.min(2000)).map(|k| (k * 31 % rows, (10_000_000 / (k + 1)).max(1))).collect();
    let head: std::collections::BTreeMap<_, _> = head.into_iter().rev().collect();
    let mut head: Vec<_> = head.into_iter().collect();
    head.sort_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
    let rest = rows - head.len() as u64;
    let tail = if rest > 0 { vec![CountClass { rows: rest, lookups: rest * 3 }] } else { Vec::new() };
    let lookups = head.iter().map(|row| row.1).sum::<u64>() + rest * 3;
    let frequencies = TableFrequencies { samples: lookups, lookups, distinct_rows: rows, head, tail };
    let spec = TableSpec { name: format!("t{number}"), rows, dim, dtype: Dtype::Fp32, dynamic: None };
    (spec, rule, FrequencyProfile::new(rows, &frequencies))
}

type Lawful = (TableSpec, UpdateRule, FrequencyProfile);

fn inputs<'a>(
    tables: &'a [Lawful],
    bags: &'a BagLengths,
    placement: Option<Placement>,
    exchange: Option<Exchange>,
) -> Vec<TableInput<'a>> {
    let input = |(spec, rule, profile): &'a Lawful| TableInput {
        spec,
        rule: *rule,
        features: vec![bags],
        weighted: false,
        profile,
        placement,
        exchange,
        frequent_rows: None,
        device_rows: None,
    };
    tables.iter().map(input).collect()
}

/// Every row of every column is stored exactly once, or is frequent.
fn assert_whole(planned: &PlanOutcome, tables: &[Lawful]) {
    let plan = &planned.plan;
    assert_eq!(plan.tables.len(), tables.len());
    for (table, (spec, ..)) in plan.tables.iter().zip(tables) {
        let mut columns: Vec<_> = table.shards.iter().flat_map(|shard| shard.columns.clone()).collect();
        columns.sort_unstable();
        if table.shards.is_empty() {
            assert_eq!(table.frequent.len(), spec.rows);
        } else {
            assert!(columns.into_iter().eq(0..spec.dim), "{table:?}");
        }
        for shard in &table.shards {
            let rows: u64 = plan
                .topology
                .all_ranks()
                .map(|rank| shard.owner.rows_at(rank, spec.rows, plan.topology))
                .sum();
            assert_eq!(rows, spec.rows);
            assert!(matches!(shard.owner, Owner::EveryRank) || table.frequent.is_empty());
        }
        assert!((0..table.frequent.len()).all(|index| table.frequent.row(index) < spec.rows));
    }
}

/// Every rank's tables have the size that the report says, and fit.
fn assert_fits(planned: &PlanOutcome, tables: &[Lawful], machine: &Machine) {
    let specs: Vec<_> = tables
        .iter()
        .map(|(spec, rule, _)| {
            (spec.clone(), Optimizer { rule: *rule, learning_rate: 0.1, weight_decay: 0.0 })
        })
        .collect();
    for rank in &planned.report.per_rank {
        assert_eq!(rank.table_bytes, RankTables::bytes(&planned.plan, rank.rank, &specs));
        assert!(rank.table_bytes + rank.buffer_bytes + rank.rest_bytes <= machine.memory_bytes + 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn plans_are_whole_fit_and_beat_every_uniform_one(
        sizes in prop::collection::vec((1..300_000u64, 1..40usize, any::<bool>()), 1..12),
        per_node in 1..4usize,
        nodes in 1..4usize,
        hotness in 1..30u32,
        batch in 1..100_000u64,
        memory_share in 0.3..3.0f64,
        gpu in any::<bool>(),
    ) {
        let tables: Vec<_> = (0..)
            .zip(&sizes)
            .map(|(n, &(rows, dim, rowwise))| lawful(n, rows, dim, if rowwise { ROWWISE } else { UpdateRule::Sgd }))
            .collect();
        let bytes: f64 = tables.iter().map(|(spec, ..)| (spec.rows as usize * (spec.dim + 4)) as f64 * 4.0).sum();
        let topology = Topology::new(per_node * nodes, nodes).unwrap();
        let needed = bytes / topology.ranks() as f64 + bytes * 0.02 + batch as f64 * 3e4;
        let mut machine = if gpu { Machine::h200() } else { Machine::cpu(0) };
        machine.memory_bytes = (needed * (1.0 + memory_share)) as u64 + (2 << 20);
        let bags = BagLengths::fixed(hotness);
        let of = |placement, exchange| {
            plan(&input(inputs(&tables, &bags, placement, exchange), batch, topology, &machine))
        };
        let auto = of(None, None);
        for placement in Placement::ALL {
            for exchange in [None, Some(Exchange::Rows), Some(Exchange::Pooled)] {
                // GPUs do not support these, so they are planned only on demand.
                let beyond = nodes > 1 || matches!(placement, Placement::Hybrid | Placement::ColumnWise);
                if gpu && beyond && exchange == Some(Exchange::Pooled) {
                    continue;
                }
                let Ok(uniform) = of(Some(placement), exchange) else { continue };
                assert_whole(&uniform, &tables);
                assert_fits(&uniform, &tables, &machine);
                let (auto, uniform) = (auto.as_ref().unwrap().report.iteration, uniform.report.iteration);
                prop_assert!(
                    auto.total_s <= uniform.total_s * (1.0 + 1e-6),
                    "{} > {} of {placement:?} {exchange:?}", auto.total_s, uniform.total_s
                );
            }
        }
        if let Ok(auto) = auto {
            assert_whole(&auto, &tables);
            assert_fits(&auto, &tables, &machine);
            let again = of(None, None).unwrap();
            prop_assert_eq!(&again.plan, &auto.plan);
            prop_assert_eq!(&again.report, &auto.report);
            let sum: f64 = auto.report.tables.iter().map(|table| table.traffic.within_nodes.bytes as f64).sum();
            prop_assert!((sum - auto.report.traffic.within_nodes.bytes as f64).abs() < 1e-6 * sum + 100.0);
        }
    }
}

#[test]
fn a_hybrid_table_has_as_many_frequent_rows_as_are_wanted() {
    let tables = [lawful(0, 100_000, 16, UpdateRule::Sgd)];
    let (machine, bags) = (Machine::h200(), BagLengths::fixed(1));
    let frequent = |frequent_rows: u64| {
        let mut inputs = inputs(&tables, &bags, Some(Placement::Hybrid), None);
        inputs[0].frequent_rows = Some(frequent_rows);
        let planned = plan(&input(inputs, 65_536, Topology::new(4, 1).unwrap(), &machine)).unwrap();
        assert_whole(&planned, &tables);
        assert_eq!(planned.report.tables[0].placement, Placement::Hybrid);
        planned.plan.tables[0].frequent.clone()
    };
    for wanted in [1, 7, 500] {
        let found = frequent(wanted);
        // The most frequent rows of the distribution, by number.
        assert!(
            (0..found.len()).map(|index| found.row(index)).eq((0..found.len()).map(|k| k * 31)),
            "{found:?}"
        );
        assert!(found.len() <= wanted && found.len() * 10 >= wanted * 9, "{} of {wanted}", found.len());
    }
}

#[test]
fn one_rank_has_everything() {
    let tables = [lawful(0, 1000, 8, UpdateRule::Sgd)];
    let (machine, bags) = (Machine::cpu(1 << 30), BagLengths::fixed(1));
    let inputs = inputs(&tables, &bags, Some(Placement::TableWise), Some(Exchange::Pooled));
    let planned = plan(&input(inputs, 100, Topology::ONE, &machine)).unwrap();
    assert_eq!(planned.plan, EmbeddingPlan::replicated(Topology::ONE, &[tables[0].0.clone()]));
    assert_eq!((planned.report.traffic, planned.report.all_reduce.elements), (Traffic::default(), 0));
    assert_eq!(planned.report.tables[0].reason, "there is one rank");
}

#[test]
fn what_does_not_fit_says_what_would() {
    let tables = [lawful(0, 1_000_000, 16, UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-8 })];
    let bags = BagLengths::fixed(1);
    let machine = Machine { memory_is_shared: false, ..Machine::cpu(50 << 20) };
    let topology = Topology::new(2, 1).unwrap();
    let of = |placement| plan(&input(inputs(&tables, &bags, placement, None), 100, topology, &machine));
    let PlanError::Memory(shortage) = of(None).unwrap_err();
    // 128 MB over two ranks; over four they are 32 MB per rank, and 76 MB with one number of state per row instead of
    // 16.
    assert_eq!((shortage.ranks, shortage.ranks_that_fit), (2, Some(4)));
    assert!((64_000_000..66_000_000).contains(&shortage.needed_bytes), "{shortage:?}");
    let rowwise = shortage.rowwise_state_bytes.unwrap();
    assert!((40_000_000..42_000_000).contains(&rowwise), "{shortage:?}");
    let words = shortage.to_string();
    for part in [
        "with 2 ranks, a rank needs up to 62.04 MiB",
        "4 ranks would suffice",
        "rowwise-adagrad",
        "which fits",
    ] {
        assert!(words.contains(part), "{words}");
    }
    let PlanError::Memory(forced) = of(Some(Placement::Replicated)).unwrap_err();
    assert_eq!((forced.ranks_that_fit, forced.forced.len()), (None, 1));
    assert!(forced.to_string().contains("t0 (replicated)"), "{forced}");
    let shared = Machine::cpu(50 << 20);
    let of_shared = plan(&input(inputs(&tables, &bags, None, None), 100, topology, &shared));
    let words = of_shared.unwrap_err().to_string();
    assert!(words.contains("More ranks would not help: they share one memory"), "{words}");
}

#[test]
fn hundreds_of_tables_are_planned_at_once() {
    let tables: Vec<_> = (0..500)
        .map(|n| lawful(n, 1 + (unit(n as u64) * 16.0).exp2() as u64 * 40, [8, 16, 64, 128][n % 4], ROWWISE))
        .collect();
    let (machine, bags) = (Machine::h200(), BagLengths::uniform(20));
    let began = Instant::now();
    let topology = Topology::new(16, 2).unwrap();
    let planned = plan(&input(inputs(&tables, &bags, None, None), 65_536, topology, &machine)).unwrap();
    let seconds = began.elapsed().as_secs_f64();
    assert_whole(&planned, &tables);
    let most = if cfg!(debug_assertions) { 30.0 } else { 2.0 };
    assert!(seconds < most, "{seconds} s");
}
