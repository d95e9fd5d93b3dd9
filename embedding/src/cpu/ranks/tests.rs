//! Compares several ranks with one rank, and their traffic with a count by hand.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;
use rankine_topology::{Rank, Topology};

use super::{BagGradients, Communicator, RankTables};
use crate::cpu::{Bags, Feature, FeatureSlot, Route, RowWeights, Table};
use crate::dtype::Dtype;
use crate::optimizer::{Optimizer, Step, UpdateRule};
use crate::placement::{EmbeddingPlan, Exchange, FrequentRows, Owner, Placement, RoundCapacity, TablePlan};
use crate::random::UniformField;
use crate::rows::gather;
use crate::table::{Pooling, TableSpec};
use crate::traffic::{KEY_BYTES, LENGTH_BYTES, LinkTraffic, Traffic};

const SEED: u64 = 5;
const RULES: [UpdateRule; 6] = [
    UpdateRule::Sgd,
    UpdateRule::Momentum { momentum: 0.9, nesterov: true },
    UpdateRule::Adagrad { initial_accumulator: 0.1, epsilon: 1e-8 },
    UpdateRule::RowwiseAdagrad { initial_accumulator: 0.1, epsilon: 1e-8 },
    UpdateRule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-4 },
    UpdateRule::Ftrl { beta: 1.0, l1: 0.01, l2: 0.01 },
];

#[derive(Debug, Clone)]
struct Case {
    topology: Topology,
    round_rows: usize,
    tables: Vec<TableCase>,
}

#[derive(Debug, Clone)]
struct TableCase {
    rows: u64,
    dim: usize,
    rule: UpdateRule,
    placement: Placement,
    exchange: Exchange,
    frequent: Vec<u64>,
    pooling: Pooling,
    /// Whether the ids of every second feature have weights, from the first one on.
    weighted: bool,
    dtype: Dtype,
    /// `[batch][feature][sample]`
    bags: Vec<Vec<Vec<Vec<u64>>>>,
}

const BATCHES: usize = 3;

fn tables(samples: usize) -> impl Strategy<Value = TableCase> {
    let placements = [
        Placement::Replicated,
        Placement::Hybrid,
        Placement::RowWise,
        Placement::TableWise,
        Placement::ColumnWise,
    ];
    (1..30u64, 1..3usize).prop_flat_map(move |(rows, features)| {
        let bag = prop_oneof![
            2 => prop::collection::vec(0..rows, 0..5),
            1 => prop::collection::vec(0..rows.min(3), 1..3),
        ];
        let batch = prop::collection::vec(prop::collection::vec(bag, samples), features);
        (
            1..11usize,
            prop::sample::select(&RULES[..]),
            prop::sample::select(placements.to_vec()),
            prop_oneof![Just(Exchange::Rows), Just(Exchange::Pooled)],
            prop::collection::vec(0..rows, 0..6),
            (prop_oneof![Just(Pooling::Sum), Just(Pooling::Mean)], any::<bool>()),
            prop::collection::vec(batch, BATCHES),
        )
            .prop_map(
                move |(dim, rule, placement, exchange, frequent, (pooling, weighted), bags)| TableCase {
                    rows,
                    dim,
                    rule,
                    placement,
                    exchange,
                    frequent,
                    pooling,
                    weighted,
                    dtype: Dtype::Fp32,
                    bags,
                },
            )
    })
}

fn cases() -> impl Strategy<Value = Case> {
    const TOPOLOGIES: &[(usize, usize)] = &[(1, 1), (2, 1), (3, 1), (4, 2), (4, 4), (6, 2), (8, 2), (8, 4)];
    let samples = prop_oneof![Just(0usize), Just(1), 2..6usize, 7..30usize];
    cases_of(TOPOLOGIES, samples)
}

/// Cases on topologies, which are given as numbers of ranks and nodes.
fn cases_of(
    topologies: &'static [(usize, usize)],
    samples: impl Strategy<Value = usize>,
) -> impl Strategy<Value = Case> {
    (prop::sample::select(topologies.to_vec()), 1..6usize, samples).prop_flat_map(
        |((ranks, nodes), round_rows, samples)| {
            let topology = Topology::new(ranks, nodes).unwrap();
            prop::collection::vec(tables(samples), 1..4).prop_map(move |tables| Case {
                topology,
                round_rows,
                tables,
            })
        },
    )
}

impl TableCase {
    fn spec(&self) -> TableSpec {
        TableSpec { name: "t".into(), rows: self.rows, dim: self.dim, dtype: self.dtype, dynamic: None }
    }

    fn optimizer(&self) -> Optimizer {
        Optimizer { rule: self.rule, learning_rate: 0.125, weight_decay: 0.01 }
    }

    fn plan(&self, topology: Topology, number: usize) -> TablePlan {
        let (spec, ranks) = (self.spec(), topology.ranks());
        match self.placement {
            Placement::Replicated => TablePlan::replicated(&spec),
            Placement::Hybrid => {
                TablePlan::hybrid(&spec, self.exchange, FrequentRows::listed(self.frequent.clone()))
            }
            Placement::RowWise => TablePlan::row_wise(&spec, self.exchange),
            Placement::TableWise => TablePlan::table_wise(&spec, self.exchange, Rank(number % ranks)),
            Placement::ColumnWise => {
                let owners: Vec<_> =
                    (0..ranks.min(3)).map(|i| Rank((number + i * (ranks / 3).max(1)) % ranks)).collect();
                TablePlan::column_wise(&spec, self.exchange, &owners)
            }
        }
    }

    fn samples(&self) -> usize {
        self.bags[0][0].len()
    }

    /// Rounded tables get no gradient: sums are then the same in every placement, and so must be all bits.
    fn gradient(&self, batch: usize, table: usize, sample: usize, element: usize) -> f32 {
        if self.dtype == Dtype::Fp32 { gradient(batch, table, sample, element) } else { 0.0 }
    }
}

impl Case {
    fn plan(&self) -> EmbeddingPlan {
        let round = RoundCapacity { vectors: self.round_rows, ids: self.round_rows + 1 };
        let tables = self.tables.iter().enumerate();
        let tables = tables.map(|(number, table)| TablePlan { round, ..table.plan(self.topology, number) });
        EmbeddingPlan { topology: self.topology, tables: tables.collect() }
    }
}

/// The weights of a sample's bag. Their shares of their sum are exact, as are gradients times one of them.
fn weights(sample: usize, ids: usize) -> impl Iterator<Item = f32> {
    let of_size: &[f32] = match ids {
        1 => &[5.0],
        2 => &[1.0, 3.0],
        3 => &[1.0, 2.0, 1.0],
        _ => &[1.0, 4.0, 2.0, 1.0],
    };
    of_size[..ids].iter().map(move |weight| weight * [0.5, 1.0, 2.0][sample % 3])
}

/// A feature's bags as arrays.
struct Column {
    offsets: Vec<u32>,
    ids: Vec<u64>,
    weights: Option<Vec<f32>>,
}

struct Columns(Vec<Column>);

impl Columns {
    fn of(features: &[Vec<Vec<u64>>], samples: std::ops::Range<usize>, weighted: bool) -> Self {
        let column = |(number, bags): (usize, &Vec<Vec<u64>>)| {
            let bags = &bags[samples.clone()];
            let numbered = samples.clone().zip(bags);
            let weights = numbered.flat_map(|(sample, bag)| weights(sample, bag.len())).collect();
            let weights = (weighted && number.is_multiple_of(2)).then_some(weights);
            let ends = bags.iter().scan(0, |end, bag| {
                *end += bag.len() as u32;
                Some(*end)
            });
            let offsets = std::iter::once(0).chain(ends).collect();
            Column { offsets, ids: bags.iter().flatten().copied().collect(), weights }
        };
        Self(features.iter().enumerate().map(column).collect())
    }

    fn features(&self, pooling: Pooling, dim: usize) -> Vec<Feature<'_>> {
        let stride = self.0.len() * dim;
        let features = self.0.iter().enumerate();
        features
            .map(|(number, Column { offsets, ids, weights })| Feature {
                bags: Bags { offsets, ids, weights: weights.as_deref() },
                pooling,
                slot: FeatureSlot { stride, offset: number * dim },
            })
            .collect()
    }
}

/// The gradient with respect to an element of a sample's vectors of a table: a small multiple of 12 / 4096, so that
/// the gradients of means of up to four rows are exact, and their sums in every order. If a sum nearly cancels, its
/// rounding would change an update of Adam by more than the tolerance.
fn gradient(batch: usize, table: usize, sample: usize, element: usize) -> f32 {
    let mut value = [0.0];
    let row = ((batch * 100 + table) * 1000 + sample) as u64 * 1000 + element as u64;
    UniformField::new(1, 2).fill_row(row, 1.0, &mut value);
    (256.0 * value[0]).round() * (12.0 / 4096.0)
}

/// The results of a run: the vectors of each batch and table, `[sample, features x dim]`, and the tables afterwards.
struct Outcome {
    vectors: Vec<Vec<Vec<f32>>>,
    weights: Vec<Vec<f32>>,
}

fn one_rank(case: &Case) -> Outcome {
    let mut tables: Vec<_> = case
        .tables
        .iter()
        .enumerate()
        .map(|(number, table)| Table::initialized(table.spec(), table.optimizer(), SEED, number as u32))
        .collect();
    let mut vectors = vec![Vec::new(); BATCHES];
    for (batch, vectors) in vectors.iter_mut().enumerate() {
        for (number, (of_case, table)) in case.tables.iter().zip(&mut tables).enumerate() {
            let samples = of_case.samples();
            let columns = Columns::of(&of_case.bags[batch], 0..samples, of_case.weighted);
            let features = columns.features(of_case.pooling, of_case.dim);
            let width = features.len() * of_case.dim;
            let mut out = vec![f32::NAN; samples * width];
            features.iter().for_each(|feature| table.pool(feature, 0, &mut out));
            let gradients: Vec<_> =
                (0..samples * width).map(|i| of_case.gradient(batch, number, i / width, i % width)).collect();
            let mut route = Route::default();
            route.build(&features, of_case.rows);
            table.update(&route, &features, &gradients, step(batch));
            vectors.push(out);
        }
    }
    let weights = tables
        .iter()
        .map(|table| (0..table.spec().rows).flat_map(|row| table.weights(row)).copied().collect());
    Outcome { vectors, weights: weights.collect() }
}

fn step(batch: usize) -> Step {
    Step { number: batch as u64 + 1, rate_factor: 1.0 }
}

/// The same over several ranks; also their traffic, and their replicas, which must be equal.
fn many_ranks(case: &Case) -> (Outcome, Traffic) {
    let plan = Arc::new(case.plan());
    let of_rank = |mut communicator: Communicator| {
        let rank = communicator.rank();
        let tables = case.tables.iter().enumerate().map(|(number, table)| {
            (table.spec(), table.optimizer(), Some(UniformField::new(SEED, number as u32)))
        });
        let mut own = RankTables::initialized(plan.clone(), rank, tables);
        let share = case.topology.share(case.tables[0].samples(), rank);
        let mut vectors = vec![Vec::new(); BATCHES];
        for (batch, vectors) in vectors.iter_mut().enumerate() {
            let columns = case.tables.iter();
            let columns: Vec<_> =
                columns.map(|table| Columns::of(&table.bags[batch], share.clone(), table.weighted)).collect();
            // All tables share one matrix.
            let widths: Vec<_> =
                case.tables.iter().map(|table| table.bags[batch].len() * table.dim).collect();
            let stride: usize = widths.iter().sum();
            let mut offset = 0;
            let mut features = Vec::new();
            for ((columns, table), width) in columns.iter().zip(&case.tables).zip(&widths) {
                let mut of_table = columns.features(table.pooling, table.dim);
                for feature in &mut of_table {
                    feature.slot = FeatureSlot { stride, offset: offset + feature.slot.offset };
                }
                offset += width;
                features.push(of_table);
            }
            let mut out = vec![f32::NAN; share.len() * stride];
            own.forward(&mut communicator, &features, &mut out);
            let mut offset = 0;
            for width in &widths {
                let rows = out.chunks_exact(stride.max(1));
                vectors.push(rows.flat_map(|row| &row[offset..offset + width]).copied().collect::<Vec<_>>());
                offset += width;
            }
            let of_tables = (0..case.tables.len()).map(|table| {
                let width = widths[table];
                let of =
                    |i: usize| case.tables[table].gradient(batch, table, share.start + i / width, i % width);
                (0..share.len() * width).map(of).collect::<Vec<_>>()
            });
            let of_tables: Vec<_> = of_tables.collect();
            let gradients = features.iter().zip(&of_tables).zip(&widths).zip(&case.tables);
            let gradients: Vec<Vec<_>> = gradients
                .map(|(((features, matrix), &stride), table)| {
                    let slot = |number| FeatureSlot { stride, offset: number * table.dim };
                    (0..features.len()).map(|number| BagGradients { matrix, slot: slot(number) }).collect()
                })
                .collect();
            let mut frequent = vec![f32::NAN; own.frequent_elements()];
            own.backward(&mut communicator, &gradients, &mut frequent);
            communicator.all_reduce(&mut frequent);
            own.update(&mut communicator, &frequent, step(batch));
        }
        (own, vectors, communicator.exchange_traffic())
    };
    let ranks: Vec<_> = thread::scope(|scope| {
        let ranks = Communicator::connect(case.topology).into_iter().map(|end| scope.spawn(|| of_rank(end)));
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let bits = |tables: &RankTables| -> Vec<u32> {
        let rows = tables.replicas().flat_map(|table| (0..table.spec().rows).flat_map(|row| table.row(row)));
        rows.map(|value| value.to_bits()).collect()
    };
    let mut traffic = Traffic::default();
    let mut vectors = vec![vec![Vec::new(); case.tables.len()]; BATCHES];
    for (tables, of_rank, sent) in &ranks {
        let with_frequent = tables.plan().tables.iter().filter(|table| !table.frequent.is_empty());
        assert_eq!(tables.replicas().count(), with_frequent.count());
        assert_eq!(bits(tables), bits(&ranks[0].0), "replicas differ");
        traffic += *sent;
        for (all, own) in vectors.iter_mut().flatten().zip(of_rank.iter().flatten()) {
            all.extend_from_slice(own);
        }
    }
    let weights = case.tables.iter().enumerate().map(|(number, table)| {
        let mut weights = vec![f32::NAN; table.rows as usize * table.dim];
        for (listed, (tables, ..)) in
            [false, true].into_iter().flat_map(|l| ranks.iter().map(move |r| (l, r)))
        {
            gather(&tables.rows(), number, 0..table.rows, listed, (table.dim, &mut weights)).unwrap();
        }
        weights
    });
    (Outcome { weights: weights.collect(), vectors }, traffic)
}

proptest! {
    // Each case starts hundreds of threads.
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn ranks_of_many_nodes_do_so_too(case in cases_of(&[(128, 16), (64, 64)], 60..300usize)) {
        are_as_one(&case)?;
    }
}

/// Several ranks look up and learn what one rank does, and send what follows from the ids.
fn are_as_one(case: &Case) -> Result<(), TestCaseError> {
    let alone = one_rank(case);
    let (together, traffic) = many_ranks(case);
    for (batch, (found, exact)) in together.vectors.iter().zip(&alone.vectors).enumerate() {
        for (table, (found, exact)) in found.iter().zip(exact).enumerate() {
            assert_close(found, exact, &format!("vectors of batch {batch}, table {table}"));
        }
    }
    for (table, (found, exact)) in together.weights.iter().zip(&alone.weights).enumerate() {
        assert_close(found, exact, &format!("weights of table {table}"));
    }
    let padding = |link: LinkTraffic| LinkTraffic { padding_bytes: 0, ..link };
    let sent = Traffic {
        within_nodes: padding(traffic.within_nodes),
        between_nodes: padding(traffic.between_nodes),
    };
    prop_assert_eq!(sent, expected_traffic(case));
    prop_assert_eq!(traffic.within_nodes.padding_bytes, 0);
    Ok(())
}

/// The least traffic, counted from the ids: see `docs/guide/planning.md`.
fn expected_traffic(case: &Case) -> Traffic {
    let (topology, plan) = (case.topology, case.plan());
    let mut traffic = Traffic::default();
    let mut cross = |from: Rank, to: Rank, rows: u64, bytes: u64| {
        let same_node = topology.node_of(from) == topology.node_of(to);
        let link = if same_node { &mut traffic.within_nodes } else { &mut traffic.between_nodes };
        if from != to {
            *link += LinkTraffic { rows, bytes, padding_bytes: 0 };
        }
    };
    for (table, planned) in case.tables.iter().zip(&plan.tables) {
        let shares: Vec<_> = topology.all_ranks().map(|rank| topology.share(table.samples(), rank)).collect();
        for (batch, shard) in
            table.bags.iter().flat_map(|batch| planned.shards.iter().map(move |s| (batch, s)))
        {
            let bytes = |dim: usize| 2 * 4 * dim as u64;
            let dim = shard.columns.len();
            let bags_of =
                |rank: Rank| batch.iter().flat_map(|bags| &bags[shares[rank.0].clone()]).collect::<Vec<_>>();
            let is_infrequent = |row: &&u64| planned.frequent.index(**row).is_none();
            let owner = |row: &u64| shard.owner.of(*row, topology);
            let mut named = BTreeSet::new();
            for rank in topology.all_ranks() {
                let (node, local_rank) = (topology.node_of(rank), topology.local_rank(rank));
                match planned.exchange {
                    Exchange::Rows => {
                        let rows: BTreeSet<_> =
                            bags_of(rank).into_iter().flatten().filter(is_infrequent).collect();
                        for row in rows {
                            let via = topology.rank(node, topology.local_rank(owner(row)));
                            cross(rank, via, 1, KEY_BYTES + bytes(dim));
                            if named.insert((via, row)) {
                                cross(via, owner(row), 1, KEY_BYTES + bytes(dim));
                            }
                        }
                    }
                    Exchange::Pooled => {
                        // All ids of a table with weights have a factor.
                        let id_bytes = KEY_BYTES + if table.weighted { 4 } else { 0 };
                        for bag in bags_of(rank) {
                            let ids: Vec<_> = bag.iter().filter(is_infrequent).collect();
                            let ids_at = |is: &dyn Fn(Rank) -> bool| {
                                ids.iter().filter(|row| is(owner(row))).count() as u64
                            };
                            for to in topology.all_nodes() {
                                let via = topology.rank(to, local_rank);
                                let at_node = ids_at(&|owner| topology.node_of(owner) == to);
                                if at_node == 0 {
                                    continue;
                                }
                                cross(rank, via, 1, at_node * id_bytes + LENGTH_BYTES + bytes(dim));
                                for owner in topology.node_group(via) {
                                    let there = ids_at(&|other| other == owner);
                                    if there > 0 {
                                        cross(via, owner, 1, there * id_bytes + LENGTH_BYTES + bytes(dim));
                                    }
                                }
                            }
                        }
                    }
                }
            }
            if matches!(table.rule, UpdateRule::RowwiseAdagrad { .. }) && planned.shards.len() > 1 {
                let rows: BTreeSet<_> = batch.iter().flatten().flatten().filter(is_infrequent).collect();
                let Owner::Rank(from) = shard.owner else { unreachable!() };
                for other in &planned.shards {
                    let Owner::Rank(to) = other.owner else { unreachable!() };
                    cross(from, to, 0, 4 * rows.len() as u64);
                }
            }
        }
    }
    traffic
}

fn assert_close(found: &[f32], exact: &[f32], what: &str) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(exact).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let size = norm(&mut exact.iter().map(|value| f64::from(*value)));
    // Sums of pooled rows, and of the squares of row-wise Adagrad, in different orders, and three updates.
    assert!(difference <= 1e-5 * size + 1e-7, "{what}: {difference} of {size}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn ranks_look_up_and_learn_what_one_rank_does(case in cases()) {
        are_as_one(&case)?;
    }

    #[test]
    fn ranks_round_weights_as_one_rank_does(case in cases(), fp16 in any::<bool>()) {
        let mut case = case;
        for table in &mut case.tables {
            table.dtype = if fp16 { Dtype::Fp16 } else { Dtype::Bf16 };
            // Weight decay moves weights without a gradient. With column shards, row-wise rules add up in a different
            // order.
            table.rule = UpdateRule::Momentum { momentum: 0.5, nesterov: true };
        }
        prop_assert_eq!(many_ranks(&case).0.weights, one_rank(&case).weights);
    }
}
