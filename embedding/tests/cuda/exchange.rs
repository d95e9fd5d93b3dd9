//! Compares tables over ranks with the CPU's, and with tables on one GPU.
//!
//! Ranks share one GPU; with several GPUs the same tests also run on two and on all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use half::{bf16, f16};
use libtest_mimic::{Failed, Trial};
use rankine_cuda::kernels::{self, Element, ElementKind, Pair, RAIL_HEADER, Rate, Vectors};
use rankine_cuda::{Buffer, Cluster, Device, Graph, Lane, Moment};
use rankine_embedding::cpu::{self, Bags, FeatureSlot, Route, Table};
use rankine_embedding::cuda::{
    Error, Feature, Hotness, InitialWeights, Layout, LocalTables, NodeTables, RoutedBatch, UpdateInputs,
};
use rankine_embedding::rows::{RowPart, RowPiece, RowSet, Rows, RowsMut, gather, place};
use rankine_embedding::{
    Dtype, EmbeddingPlan, Exchange, FrequentRows, Optimizer, Placement, Pooling, RankTraffic, RoundCapacity,
    Step, TablePlan, TableSpec, UpdateRule,
};
use rankine_topology::{Rank, Topology};

use super::local::{Column, DeviceIds};
use super::traffic::Placed;
use super::update::{self, random_case, weighted_case};
use super::{Bench, CASES, Outcome, Random};

const DEADLINE: Duration = Duration::from_secs(10);
/// How long ranks of several nodes wait: NCCL takes seconds to examine the machine, and minutes under the sanitizer.
const NODES_DEADLINE: Duration = Duration::from_secs(300);
/// Nodes, and GPUs of each.
const NODES: [(usize, usize); 6] = [(2, 1), (2, 2), (3, 1), (3, 2), (4, 2), (8, 1)];
const NODE_CASES: u64 = 2;
/// The factor of gradients, like fp16's loss scale.
const SCALE: f32 = 4.0;

/// Samples of a rank.
const SAMPLES: [usize; 7] = [1, 2, 63, 64, 65, 300, 1500];

/// A test: the function that runs a case.
type CaseBody = fn(&Case, &mut Random) -> Outcome;
/// Draws tables and columns, given numbers of samples to choose from.
type DrawTables = fn(&mut Random, &[usize]) -> Result<update::Case, Failed>;

/// The tests: each on one GPU, with several GPUs on two and on all of them, and over several nodes. Each runs at most
/// `most` cases. The flag says whether there are too few GPUs for a test.
pub(crate) fn trials((seed, most): (u64, u64), devices: usize) -> Vec<(Trial, bool)> {
    let bodies: [(&str, CaseBody, DrawTables); 20] = [
        ("first_weights_are_the_cpus", first_weights_are_the_cpus, random_case),
        ("routes_are_the_cpus", routes_are_the_cpus, random_case),
        ("tables_learn_as_on_the_cpu_in_f32", tables_learn_as_on_the_cpu::<f32>, random_case),
        ("tables_learn_as_on_the_cpu_in_bf16", tables_learn_as_on_the_cpu::<bf16>, random_case),
        ("tables_learn_as_on_the_cpu_in_f16", tables_learn_as_on_the_cpu::<f16>, random_case),
        ("sums_in_bf16_are_near_the_exact_ones", sums_in_bf16_are_near_the_exact_ones, random_case),
        ("captured_iterations_have_the_same_bits", captured_iterations_have_the_same_bits, random_case),
        ("ids_out_of_range_are_told", ids_out_of_range_are_told, random_case),
        ("rows_come_and_go_with_their_state", rows_come_and_go_with_their_state, random_case),
        ("the_rows_that_are_updated_are_known", the_rows_that_are_updated_are_known, random_case),
        ("traffic_is_that_of_the_ids_in_f32", traffic_is_that_of_the_ids::<f32>, random_case),
        ("traffic_is_that_of_the_ids_in_bf16", traffic_is_that_of_the_ids::<bf16>, random_case),
        ("traffic_is_that_of_the_ids_in_f16", traffic_is_that_of_the_ids::<f16>, random_case),
        ("routes_with_weights_are_the_cpus", routes_are_the_cpus, weighted_case),
        ("tables_learn_with_weights_in_f32", tables_learn_as_on_the_cpu::<f32>, weighted_case),
        ("tables_learn_with_weights_in_bf16", tables_learn_as_on_the_cpu::<bf16>, weighted_case),
        ("tables_learn_with_weights_in_f16", tables_learn_as_on_the_cpu::<f16>, weighted_case),
        ("captured_iterations_with_weights", captured_iterations_have_the_same_bits, weighted_case),
        ("traffic_with_weights_in_f32", traffic_is_that_of_the_ids::<f32>, weighted_case),
        ("traffic_with_weights_in_bf16", traffic_is_that_of_the_ids::<bf16>, weighted_case),
    ];
    let mut gpus = vec![1];
    gpus.extend((devices >= 2).then_some(2));
    gpus.extend((devices > 2).then_some(devices));
    let mut trials = Vec::new();
    // Between nodes NCCL is used, which needs one GPU per rank.
    for (nodes, local_ranks) in NODES {
        for (name, body, draw) in bodies {
            let name = format!("exchange::{name}_on_{nodes}_nodes_of_{local_ranks}");
            let trial = Trial::test(name, move || {
                let case = |words: &mut Random| Case::of_nodes(words, (nodes, local_ranks), draw);
                on_cases((seed, NODE_CASES.min(most)), case, body)
            });
            trials.push((trial, devices < nodes * local_ranks));
        }
    }
    for gpus in gpus {
        for (name, body, draw) in bodies {
            let trial = Trial::test(format!("exchange::{name}_on_{gpus}"), move || {
                // The driver is slow at mapping memory into several GPUs.
                let cases = if gpus > 1 { CASES / 3 } else { CASES };
                on_cases((seed, cases.min(most)), |words| Case::random(words, gpus, draw), body)
            });
            trials.push((trial, devices == 0));
        }
        let name = format!("exchange::a_rank_that_does_not_come_is_named_on_{gpus}");
        trials.push((Trial::test(name, move || a_rank_that_does_not_come_is_named(gpus)), devices == 0));
    }
    for (name, draw) in [
        ("one_rank_learns_as_tables_on_one_gpu", random_case as DrawTables),
        ("one_rank_learns_with_weights_as_tables_on_one_gpu", weighted_case),
    ] {
        let trial = Trial::test(format!("exchange::{name}"), move || {
            let case = |words: &mut Random| Case::by_rows(words, (1, 1), draw);
            on_cases((seed, CASES.min(most)), case, one_rank_learns_as_tables_on_one_gpu)
        });
        trials.push((trial, devices == 0));
    }
    trials
}

/// Runs a test on this many random cases; a failure names the case.
fn on_cases(
    (seed, cases): (u64, u64),
    draw: impl Fn(&mut Random) -> Result<Case, Failed>,
    body: CaseBody,
) -> Outcome {
    (0..cases).try_for_each(|number| {
        let mut words = Random { seed: seed ^ number << 32, next: 0 };
        let case = draw(&mut words)?;
        body(&case, &mut words).map_err(|failed| {
            let what = failed.message().unwrap_or_default();
            format!("seed {seed}, case {number}, {:?}: {what}", case.layout).into()
        })
    })
}

/// Tables over ranks.
struct Case {
    /// The tables, and batches as each rank has them.
    of_rank: update::Case,
    layout: Layout,
    /// The placement that the layout has.
    plan: EmbeddingPlan,
    devices: Vec<Arc<Device>>,
}

/// A batch: each rank's columns, and the gradients of its vectors.
struct Batch<T> {
    columns: Vec<Vec<Column>>,
    gradients: Vec<Vec<T>>,
}

impl Case {
    fn random(words: &mut Random, gpus: usize, draw: DrawTables) -> Result<Self, Failed> {
        let ranks = if gpus > 1 { gpus } else { words.one_of(&[1, 2, 3]) };
        let case = Self::by_rows(words, (gpus, ranks), draw)?;
        if words.below(4) > 0 { case.placed(words) } else { Ok(case) }
    }

    /// Ranks with all tables placed row-wise.
    fn by_rows(words: &mut Random, (gpus, ranks): (usize, usize), draw: DrawTables) -> Result<Self, Failed> {
        let of_rank = draw(words, &SAMPLES)?;
        let opened: Vec<_> = (0..gpus).map(Device::open).collect::<Result<_, _>>()?;
        let layout = over_ranks(&of_rank, ranks)?;
        let layout = layout.with_optimizers(&of_rank.optimizers);
        let devices = (0..ranks).map(|rank| Arc::clone(&opened[rank % gpus])).collect();
        let plan = row_wise(&layout)?;
        Ok(Self { of_rank, layout, plan, devices })
    }

    /// The same tables, each with one of some placements.
    fn placed(mut self, words: &mut Random) -> Result<Self, Failed> {
        let ranks = self.ranks();
        let owners: Vec<_> = Rank::first(ranks).collect();
        let plan = |(table, optimizer): (&TableSpec, &mut Optimizer)| match words.below(6) {
            0 => TablePlan::row_wise(table, words.one_of(&Exchange::ALL)),
            1 => {
                let owner = Rank(words.below(ranks as u64) as usize);
                TablePlan::table_wise(table, words.one_of(&Exchange::ALL), owner)
            }
            2 => TablePlan::replicated(table),
            3 => TablePlan::hybrid(table, Exchange::Rows, frequent(words, table)),
            _ => by_columns(table, optimizer, (words.one_of(&Exchange::ALL), &owners)),
        };
        let tables =
            self.of_rank.layout.tables().iter().zip(&mut self.of_rank.optimizers).map(plan).collect();
        let optimizers = &self.of_rank.optimizers;
        self.of_rank.layout = self.of_rank.layout.clone().with_optimizers(optimizers);
        self.plan = EmbeddingPlan { topology: Topology::new(ranks, 1)?, tables };
        self.layout = self.layout.with_optimizers(optimizers).with_plan(&self.plan)?;
        self.of_rank.has_plain_weights = self.shares_squares();
        Ok(self)
    }

    /// Ranks on several nodes with this many GPUs each; the smallest messages are usually too small for all rows.
    fn of_nodes(
        words: &mut Random,
        (nodes, local_ranks): (usize, usize),
        draw: DrawTables,
    ) -> Result<Self, Failed> {
        let (mut of_rank, ranks) = (draw(words, &SAMPLES)?, nodes * local_ranks);
        let topology = Topology::new(ranks, nodes)?;
        let owners: Vec<_> = Rank::first(ranks).collect();
        let plan = |(table, optimizer): (&TableSpec, &mut Optimizer)| {
            let plan = match words.below(6) {
                0 | 1 => TablePlan::row_wise(table, words.one_of(&Exchange::ALL)),
                2 => {
                    let owner = Rank(words.below(ranks as u64) as usize);
                    TablePlan::table_wise(table, words.one_of(&Exchange::ALL), owner)
                }
                3 => TablePlan::replicated(table),
                4 => TablePlan::hybrid(table, Exchange::Rows, frequent(words, table)),
                _ => by_columns(table, optimizer, (words.one_of(&Exchange::ALL), &owners)),
            };
            let vectors = words.one_of(&[1, 3, 20, 1 << 14]);
            TablePlan { round: RoundCapacity { vectors, ids: 1 }, ..plan }
        };
        let tables = of_rank.layout.tables().iter().zip(&mut of_rank.optimizers).map(plan).collect();
        of_rank.layout = of_rank.layout.clone().with_optimizers(&of_rank.optimizers);
        let layout = over_ranks(&of_rank, ranks)?;
        let layout = layout.with_optimizers(&of_rank.optimizers).with_nodes(nodes)?;
        let plan = EmbeddingPlan { topology, tables };
        let layout = layout.with_plan(&plan)?;
        let devices = (0..ranks).map(Device::open).collect::<Result<_, _>>()?;
        let mut case = Self { of_rank, layout, plan, devices };
        case.of_rank.has_plain_weights = case.shares_squares();
        Ok(case)
    }

    fn ranks(&self) -> usize {
        self.layout.ranks()
    }

    /// Ranks of a node.
    fn local_ranks(&self) -> usize {
        self.layout.ranks() / self.layout.nodes()
    }

    /// A batch of which ranks have shares of different sizes, some of them empty.
    fn batch<T: Element>(&self, words: &mut Random, exact: bool) -> Batch<T> {
        let columns = (0..self.ranks()).map(|_| match words.below(8) {
            0 => (0..self.layout.columns().len()).map(|column| self.empty(column)).collect(),
            _ => self.of_rank.batch(words),
        });
        let columns = columns.collect();
        let gradients = (0..self.ranks()).map(|_| match exact {
            true if self.shares_squares() => self.of_rank.exact_to_squares(words),
            true => self.of_rank.exact_gradients(words),
            false => {
                let numbers = (0..self.layout.elements()).map(|_| T::of(words.unit() as f32 - 0.5));
                self.of_rank.with_gaps(numbers.collect())
            }
        });
        Batch { columns, gradients: gradients.collect() }
    }

    /// A column without samples.
    fn empty(&self, column: usize) -> Column {
        let weights = self.layout.is_weighted(column).then(Vec::new);
        Column { offsets: vec![0], ids: Vec::new(), weights }
    }

    /// Whether several ranks have some columns each of a table whose rule depends on the squares of whole rows.
    fn shares_squares(&self) -> bool {
        let mut tables = self.plan.tables.iter().zip(&self.of_rank.optimizers);
        tables.any(|(plan, optimizer)| {
            let by_columns = plan.placement == Placement::ColumnWise;
            by_columns && matches!(optimizer.rule, UpdateRule::RowwiseAdagrad { .. })
        })
    }

    /// The features of a rank's columns that look a table up, with their numbers.
    fn cpu_features<'a>(&self, columns: &'a [Column], table: usize) -> (Vec<usize>, Vec<cpu::Feature<'a>>) {
        let of_table =
            self.layout.features().iter().enumerate().filter(|(_, feature)| feature.table == table);
        of_table
            .map(|(number, feature)| {
                let slot = FeatureSlot { stride: self.of_rank.stride, offset: feature.vector_offset };
                let bags = columns[feature.column].bags();
                (number, cpu::Feature { bags, pooling: feature.pooling, slot })
            })
            .unzip()
    }

    /// Runs a function on every rank, each in its own thread.
    fn on_ranks<T: Element, R: Send>(
        &self,
        body: impl Fn(&RankThread<'_>) -> Result<R, Failed> + Sync,
    ) -> Result<Vec<R>, Failed> {
        let deadline = if self.layout.nodes() > 1 { NODES_DEADLINE } else { DEADLINE };
        let clusters = Cluster::in_process(&self.devices, self.layout.nodes(), deadline)?;
        let one = |cluster: Cluster| {
            let device = Arc::clone(cluster.device());
            device.bind()?;
            let (lane, side) = (Lane::new(&device)?, Lane::of_high_priority(&device)?);
            let (layout, drawn) = (self.layout.clone(), self.layout.tables().len());
            let (lists, rows) = (cluster.join_rail("routes")?, cluster.join_rail("rows")?);
            let rails = lists.as_ref().zip(rows.as_ref());
            let weights = InitialWeights { seed: self.of_rank.seed, drawn };
            let mut tables =
                NodeTables::initialized::<T>(&cluster, rails, layout, &lane, weights, ROUTES, None)?;
            tables.track_updates()?;
            let bench = Bench { device, lane };
            let rank = RankThread { case: self, tables, cluster, bench, side };
            let outcome = body(&rank);
            // Freeing memory waits for everything that runs on the GPU, including the others' barriers.
            rank.bench.lane.synchronize()?;
            rank.cluster.gather(0u32)?;
            outcome
        };
        let outcomes: Vec<Result<R, Failed>> = std::thread::scope(|scope| {
            let running: Vec<_> = clusters.into_iter().map(|cluster| scope.spawn(|| one(cluster))).collect();
            let join = |rank: std::thread::ScopedJoinHandle<'_, _>| {
                rank.join().unwrap_or_else(|_| Err("a rank panicked".into()))
            };
            running.into_iter().map(join).collect()
        });
        let failed = outcomes.iter().enumerate().filter_map(|(rank, outcome)| {
            let what = outcome.as_ref().err()?.message().unwrap_or_default();
            Some(format!("rank {rank}: {what}"))
        });
        let failed: Vec<_> = failed.collect();
        if failed.is_empty() { outcomes.into_iter().collect() } else { Err(failed.join("; ").into()) }
    }
}

/// The layout of one rank's tables and batches, over ranks.
fn over_ranks(of_rank: &update::Case, ranks: usize) -> Result<Layout, Error> {
    let one = &of_rank.layout;
    let weighted: Vec<_> = (0..one.columns().len()).map(|column| one.is_weighted(column)).collect();
    let (samples, stride) = (one.samples(), of_rank.stride);
    Layout::new(ranks, samples, stride, one.tables(), one.columns(), one.features())?.with_weights(&weighted)
}

/// The placement of a layout without a plan.
fn row_wise(layout: &Layout) -> Result<EmbeddingPlan, Failed> {
    let tables = layout.tables().iter().map(|table| TablePlan::row_wise(table, Exchange::Rows)).collect();
    Ok(EmbeddingPlan { topology: Topology::new(layout.ranks(), layout.nodes())?, tables })
}

/// Some columns of a table at each owner; under a rule that depends on squares of whole rows, exchanged by rows.
fn by_columns(
    table: &TableSpec,
    optimizer: &mut Optimizer,
    (exchange, owners): (Exchange, &[Rank]),
) -> TablePlan {
    if matches!(optimizer.rule, UpdateRule::RowwiseAdagrad { .. }) {
        // Shards sum a row's squares separately, so these sums must be exact in any order; weight decay would make them
        // inexact. Gradients are `exact_to_squares` then.
        optimizer.weight_decay = 0.0;
        return TablePlan::column_wise(table, Exchange::Rows, owners);
    }
    TablePlan::column_wise(table, exchange, owners)
}

/// No, some or all rows of a table, including those that are looked up most often.
fn frequent(words: &mut Random, table: &TableSpec) -> FrequentRows {
    let some = words.below(1 + table.rows.min(300));
    let frequent = (0..some).map(|_| (words.unit().powi(3) * table.rows as f64) as u64);
    FrequentRows::listed(frequent.collect())
}

/// Batch slots.
const ROUTES: usize = 2;

/// A rank in its thread.
struct RankThread<'a> {
    case: &'a Case,
    tables: NodeTables,
    cluster: Cluster,
    bench: Bench,
    side: Lane,
}

/// A batch on a rank's GPU, with the step's parameters.
struct DeviceBatch<T> {
    ids: DeviceIds,
    gradients: Buffer<T>,
    vectors: Buffer<T>,
    rates: Buffer<Rate>,
    step: Buffer<kernels::Step>,
    scale: Buffer<f32>,
    stop: Buffer<u32>,
}

impl<T> DeviceBatch<T> {
    fn update_inputs(&self) -> UpdateInputs {
        UpdateInputs {
            rates: self.rates.pointer(),
            step: self.step.pointer(),
            scale: self.scale.pointer(),
            stop: self.stop.pointer(),
        }
    }
}

impl RankThread<'_> {
    /// Allocates what some batches need, before any of them runs: allocation waits for everything that runs on the
    /// GPU.
    fn upload<T: Element>(&self, batches: &[(&Batch<T>, u32)]) -> Result<Vec<DeviceBatch<T>>, Failed> {
        let (device, layout) = (&self.bench.device, &self.case.layout);
        let one = |(number, &(batch, stop)): (usize, &(&Batch<T>, u32))| {
            let step = step(number);
            let rates = self.case.of_rank.optimizers.iter().map(|optimizer| Rate::from(optimizer.at(step)));
            let gradients = &batch.gradients[self.cluster.rank().0];
            let scaled: Vec<_> = gradients.iter().map(|gradient| T::of(SCALE * gradient.value())).collect();
            Ok::<_, Failed>(DeviceBatch {
                ids: DeviceIds::new(&self.bench, layout, &batch.columns[self.cluster.rank().0])?,
                gradients: Buffer::of(device, &scaled)?,
                vectors: Buffer::filled(device, layout.elements(), 0xff)?,
                rates: Buffer::of(device, &rates.collect::<Vec<_>>())?,
                step: Buffer::of(device, &[kernels::Step { number: step.number, ..Default::default() }])?,
                scale: Buffer::of(device, &[1.0 / SCALE])?,
                stop: Buffer::of(device, &[stop])?,
            })
        };
        let batches = batches.iter().enumerate().map(one).collect::<Result<_, _>>();
        self.cluster.gather(0u32)?;
        batches
    }

    /// Enqueues an iteration over a batch that has a route.
    fn iterate<T: Element>(&self, batch: &DeviceBatch<T>, slot: usize, size: usize) -> Result<(), Error> {
        let (lane, tables) = (&self.bench.lane, &self.tables);
        let routed = RoutedBatch { ids: batch.ids.ids(), slot, size };
        // SAFETY: the buffers have the sizes that the layout says, and live until all ranks' lanes have been waited
        // for.
        unsafe {
            let samples = self.case.layout.samples();
            tables.exchange().look_up(
                tables,
                lane,
                routed,
                samples,
                Vectors::Elements(batch.vectors.pointer()),
            )?;
            tables.reduce(lane, routed, batch.gradients.pointer())?;
            tables.meet(lane)?;
            tables.carry_back(lane, routed)?;
            tables.update(lane, routed, batch.update_inputs())
        }
    }

    /// Enqueues a batch's route on a lane, with a known size of messages between nodes.
    fn route<T>(
        &self,
        lane: &Lane,
        batch: &DeviceBatch<T>,
        (slot, size): (usize, usize),
    ) -> Result<(), Error> {
        // SAFETY: as for iterations.
        unsafe {
            self.tables.exchange().route(&self.tables, lane, batch.ids.ids(), slot)?;
            if size > 0 { self.tables.exchange().route_rest(&self.tables, lane, slot, size) } else { Ok(()) }
        }
    }

    /// Enqueues a batch's route on the lane, and returns the size of messages between nodes that it needs.
    fn routed<T>(&self, batch: &DeviceBatch<T>, slot: usize) -> Result<usize, Failed> {
        self.route(&self.bench.lane, batch, (slot, 0))?;
        if self.tables.exchange().sizes() == 1 {
            return Ok(0);
        }
        self.bench.lane.synchronize()?;
        let size = self.tables.exchange().size_needed(slot);
        if size > 0 {
            // SAFETY: as for iterations.
            unsafe { self.tables.exchange().route_rest(&self.tables, &self.bench.lane, slot, size) }?;
        }
        Ok(size)
    }

    /// All rows that this rank is responsible for, `[row][dim]` of each table; poison elsewhere.
    fn weights(&self) -> Result<Vec<Vec<f32>>, Failed> {
        let rows = self.tables.rows(&self.bench.lane);
        let tables = self.case.layout.tables();
        let poison = |table: &TableSpec| vec![f32::from_bits(u32::MAX); table.rows as usize * table.dim];
        let mut weights: Vec<_> = tables.iter().map(poison).collect();
        let listed = |part: &&RowPart| matches!(part.rows, RowSet::Listed(_));
        for (number, part) in rows.parts().iter().enumerate() {
            // Listed rows take precedence over parts with holes.
            let others = rows.parts().iter().filter(listed).filter(|other| other.table == part.table);
            let before: Vec<_> = others.filter(|_| !listed(&part)).collect();
            let (mut scratch, layout) = (Vec::new(), part.layout);
            let words = rows.read(number, part.own.clone(), &mut scratch)?;
            for (position, words) in part.own.clone().zip(words.chunks_exact(layout.words)) {
                let row = part.rows.row(position);
                if before.iter().all(|other| other.rows.position(row).is_none()) {
                    let dim = tables[part.table].dim;
                    let to = &mut weights[part.table][row as usize * dim..][..dim];
                    layout.read_weights(words, &mut to[part.columns.clone()]);
                }
            }
        }
        Ok(weights)
    }
}

/// The step with a given index in a test.
fn step(slot: usize) -> Step {
    Step { number: slot as u64 + 1, rate_factor: 1.0 / (slot as f64 + 1.0) }
}

/// Combines the ranks' rows of each table: each element must be at exactly one rank.
fn whole(of_ranks: Vec<Vec<Vec<f32>>>) -> Result<Vec<Vec<f32>>, Failed> {
    let absent = |weight: &f32| weight.to_bits() == u32::MAX;
    let mut of_ranks = of_ranks.into_iter();
    let mut whole = of_ranks.next().ok_or("no ranks")?;
    for tables in of_ranks {
        for (to, from) in whole.iter_mut().flatten().zip(tables.iter().flatten()) {
            match (absent(to), absent(from)) {
                (true, _) => *to = *from,
                (false, true) => {}
                (false, false) => return Err("two ranks have a weight".into()),
            }
        }
    }
    if whole.iter().flatten().any(absent) { Err("no rank has a weight".into()) } else { Ok(whole) }
}

fn compare(found: &[Vec<f32>], expected: &[Table]) -> Outcome {
    for (weights, table) in found.iter().zip(expected) {
        for (row, own) in (0..).zip(weights.chunks_exact(table.spec().dim)) {
            let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
            if let Some(column) = own.iter().zip(table.weights(row)).position(differs) {
                let (name, have, wanted) = (&table.spec().name, own[column], table.weights(row)[column]);
                return Err(format!("table {name}, row {row}, column {column}: {have}, not {wanted}").into());
            }
        }
    }
    Ok(())
}

fn first_weights_are_the_cpus(case: &Case, _: &mut Random) -> Outcome {
    let of_ranks = case.on_ranks::<f32, _>(|rank| rank.weights())?;
    compare(&whole(of_ranks)?, &case.of_rank.on_cpu())
}

fn routes_are_the_cpus(case: &Case, words: &mut Random) -> Outcome {
    // The second route is built in memory that the first one has used.
    let batches = [case.batch::<f32>(words, true), case.batch(words, true)];
    let routes = case.on_ranks::<f32, _>(|rank| {
        let uploaded = rank.upload(&[(&batches[0], 0), (&batches[1], 0)])?;
        for batch in &uploaded {
            rank.routed(batch, 0)?;
        }
        rank.tables.check(&rank.bench.lane)?;
        let found = rank.tables.snapshot(&rank.bench.lane, 0)?;
        let counts = rank.tables.counts(&rank.bench.lane, 0)?.into_iter();
        let counted = counts.fold((0, 0), |sum, of| (sum.0 + of.look_ups, sum.1 + of.distinct_rows));
        if counted != (found.sorted.len() as u64, found.list.len() as u64) {
            return Err(format!("{counted:?} look-ups and distinct rows are counted").into());
        }
        Ok(found)
    })?;
    let (local_ranks, nodes, span) = (case.local_ranks(), case.layout.nodes(), case.layout.span());
    let mut unions = vec![Union::new(); case.ranks()];
    for (rank, found) in routes.iter().enumerate() {
        let expected = look_ups(case, &batches[1].columns[rank]);
        let (mut list, mut sorted) = (Vec::new(), Vec::new());
        for ((owner, number), look_ups) in &expected {
            for &(bag, index) in look_ups {
                if found.slots[index] as usize != list.len() {
                    return Err(
                        format!("rank {rank}: look-up {index} has slot {}", found.slots[index]).into()
                    );
                }
                sorted.push(Pair { slot: list.len() as u32, bag });
            }
            list.push((*owner, *number));
        }
        if found.list != list || found.sorted != sorted {
            let have = (found.list.len(), found.sorted.len());
            return Err(format!("rank {rank}: {have:?}, not {:?}", (list.len(), sorted.len())).into());
        }
        let node = rank / local_ranks;
        for (owner, union) in unions[node * local_ranks..][..local_ranks].iter_mut().enumerate() {
            // Rows that every rank stores are in each one's union, over several nodes after all others.
            let behind = if nodes > 1 { nodes * span } else { 0 };
            for (of, first) in [(owner, 0), (local_ranks, behind as u32)] {
                for (entry, &(_, number)) in list.iter().filter(|(other, _)| *other == of).enumerate() {
                    union.entry(first + number).or_insert_with(|| vec![None; local_ranks])
                        [rank % local_ranks] = Some(entry as u32);
                }
            }
        }
    }
    for (rank, found) in routes.iter().enumerate().filter(|_| nodes > 1) {
        let (own, local_rank) = (rank / local_ranks, rank % local_ranks);
        let mut named = Union::new();
        for node in 0..nodes {
            let is_own = |number: u32| [own, nodes].contains(&(number as usize / span));
            let of_own = unions[node * local_ranks + local_rank].keys().filter(|&&number| is_own(number));
            for (entry, &number) in of_own.enumerate() {
                let row = number % span as u32;
                named.entry(row).or_insert_with(|| vec![None; nodes])[node] = Some(entry as u32);
            }
        }
        if found.named != named.into_iter().collect::<Vec<_>>() {
            return Err(format!("rank {rank}: {} rows that nodes name differ", found.named.len()).into());
        }
    }
    for (owner, (found, union)) in routes.iter().zip(unions).enumerate() {
        let (numbers, sources): (Vec<_>, Vec<_>) = union.into_iter().unzip();
        if found.union != numbers || found.sources != sources {
            return Err(format!("owner {owner}: the union of {} rows differs", numbers.len()).into());
        }
    }
    Ok(())
}

/// Rows, each with its index in the lists that may name it.
type Union = BTreeMap<u32, Vec<Option<u32>>>;

/// Per distinct row, by owner and number: its look-ups in order, each with its bag and its position among slots.
fn look_ups(case: &Case, columns: &[Column]) -> BTreeMap<(usize, u32), Vec<(u32, usize)>> {
    let (layout, mut rows) = (&case.layout, BTreeMap::<_, Vec<_>>::new());
    let mut first = 0;
    for (number, &(feature, part)) in (0u32..).zip(layout.looked_up()) {
        let feature = &layout.features()[feature];
        let Column { offsets, ids, .. } = &columns[feature.column];
        for (sample, bag) in offsets.windows(2).enumerate() {
            for index in bag[0]..bag[1] {
                let (owner, row) = layout.locate(part, ids[index as usize]);
                let look_up = (number << layout.sample_bits() | sample as u32, first + index as usize);
                rows.entry((owner, row as u32)).or_default().push(look_up);
            }
        }
        first += layout.samples() * layout.columns()[feature.column].max();
    }
    rows
}

/// The vectors of a rank's samples, from rows that are rounded to `T` before they are pooled; poison between them.
fn expected_vectors<T: Element>(case: &Case, tables: &[Table], columns: &[Column]) -> Vec<T> {
    let (stride, poison) =
        (case.of_rank.stride, bytemuck::pod_read_unaligned::<T>(&vec![0xff; size_of::<T>()]));
    let mut vectors = vec![poison; case.layout.elements()];
    for feature in case.layout.features() {
        let (table, column) = (&tables[feature.table], &columns[feature.column]);
        let dim = table.spec().dim;
        for (sample, vector) in vectors.chunks_exact_mut(stride).enumerate() {
            let is_there = sample < column.bags().len();
            let bag = if is_there { column.bags().bag(sample) } else { &[] };
            let mut factors = if is_there { column.bags().factors(sample, feature.pooling) } else { None };
            let scale = if factors.is_some() { 1.0 } else { feature.pooling.scale(bag.len()) };
            let mut sum = vec![0.0f32; dim.next_multiple_of(4)];
            for &id in bag {
                let factor = factors.as_mut().and_then(Iterator::next).unwrap_or(1.0);
                let row = table.weights(id).iter().map(|&weight| T::of(weight).value());
                sum.iter_mut().zip(row).for_each(|(sum, weight)| *sum += weight * factor);
            }
            let to = vector[feature.vector_offset..].iter_mut();
            to.zip(sum).for_each(|(to, sum)| *to = T::of(sum * scale));
        }
    }
    vectors
}

/// By how much vectors may differ in tables whose owners pool, since sums of their parts are rounded in another
/// order; 0 for all others.
fn slack_of_pooled<T: Element>(case: &Case, tables: &[Table], columns: &[Column]) -> Vec<f64> {
    let rounding = match T::KIND {
        ElementKind::F32 => super::F32_ROUNDING,
        ElementKind::Bf16 => super::BF16_ROUNDING,
        ElementKind::F16 => 1.0 / 2048.0,
    };
    let mut slack = vec![0.0; case.layout.elements()];
    for number in case.layout.pooled() {
        let feature = case.layout.features()[number];
        let (table, column) = (&tables[feature.table], &columns[feature.column]);
        for sample in 0..column.bags().len() {
            let bag = column.bags().bag(sample);
            // Without weights factors are at most 1.
            let factors = match column.weights {
                Some(_) => column.factors_of(sample, feature.pooling),
                None => vec![1.0; bag.len()],
            };
            let of_sample = &mut slack[sample * case.of_rank.stride + feature.vector_offset..];
            for (column, slack) in of_sample[..table.spec().dim].iter_mut().enumerate() {
                let size = bag.iter().zip(&factors);
                let size = size.map(|(&id, &factor)| f64::from(table.weights(id)[column] * factor).abs());
                let size: f64 = size.sum();
                // Exchanged rows are rounded individually, pooled rows are not; each part is
                // rounded once, and so are the sums of a node's parts and, over several nodes, of the nodes' sums.
                let travels = if case.layout.nodes() > 1 { 4.0 } else { 3.0 };
                let roundings = (bag.len() + 2 * case.ranks() + 3) as f64;
                *slack = size * (travels * rounding + roundings * super::F32_ROUNDING) * 1.1
                    + f64::from(u8::from(T::KIND == ElementKind::F16)) * 1e-6;
            }
        }
    }
    slack
}

/// A sum of gradients in the type in which it travels.
fn travelled<T: Element>(sum: f32) -> f32 {
    if T::KIND == ElementKind::Bf16 { bf16::from_f32(sum).to_f32() } else { sum }
}

/// Updates the CPU's tables from each rank's sums. All sums of gradients are exact, apart from rounding to the type
/// in which they travel.
fn update_on_cpu<T: Element>(case: &Case, tables: &mut [Table], batch: &Batch<T>, step: Step) {
    for (number, table) in tables.iter_mut().enumerate() {
        let (dim, local_ranks) = (table.spec().dim, case.local_ranks());
        let (mut ids, mut sums) = (Vec::new(), Vec::new());
        // If owners pool, gradients of bags travel unchanged.
        let pooled = case.layout.pooled().any(|feature| case.layout.features()[feature].table == number);
        let ranks: Vec<_> = batch.columns.iter().zip(&batch.gradients).collect();
        for ranks in ranks.chunks(local_ranks) {
            let mut of_node = Vec::new();
            for (columns, gradients) in ranks {
                of_node.extend(sums_of_rank(case, (columns, gradients), table, number, pooled));
            }
            if case.layout.nodes() > 1 && !pooled {
                // The sum over a node's ranks leaves the node once.
                let mut rows = BTreeMap::<u64, Vec<f32>>::new();
                for (row, own) in of_node {
                    let sum = rows.entry(row).or_insert_with(|| vec![0.0; dim]);
                    sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
                }
                let travelled =
                    |(row, sum): (u64, Vec<f32>)| (row, sum.into_iter().map(travelled::<T>).collect());
                of_node = rows.into_iter().map(travelled).collect();
            }
            for (row, sum) in of_node {
                ids.push(row);
                sums.extend(sum);
            }
        }
        let offsets: Vec<u32> = (0..=ids.len() as u32).collect();
        let features = [cpu::Feature {
            bags: Bags { offsets: &offsets, ids: &ids, weights: None },
            pooling: Pooling::Sum,
            slot: FeatureSlot { stride: dim, offset: 0 },
        }];
        let mut route = Route::default();
        route.build(&features, table.spec().rows);
        table.update(&route, &features, &sums, step);
    }
}

/// A rank's sum for each distinct row of a table, as it travels.
fn sums_of_rank<T: Element>(
    case: &Case,
    (columns, gradients): (&[Column], &[T]),
    table: &Table,
    number: usize,
    pooled: bool,
) -> Vec<(u64, Vec<f32>)> {
    let (_, features) = case.cpu_features(columns, number);
    if features.is_empty() {
        return Vec::new();
    }
    let mut route = Route::default();
    route.build(&features, table.spec().rows);
    let of_row = |(index, &row): (usize, &u64)| {
        let mut sum = vec![0.0f32; table.spec().dim];
        for bag in route.bags_of(index) {
            let feature = &features[bag.feature];
            let scale = feature.pooling.scale(feature.bags.bag(bag.sample).len());
            let scale = bag.factor.unwrap_or(scale);
            let from = &gradients[bag.sample * feature.slot.stride + feature.slot.offset..][..sum.len()];
            sum.iter_mut().zip(from).for_each(|(sum, from)| *sum += from.value() * scale);
        }
        (row, sum.into_iter().map(|sum| if pooled { sum } else { travelled::<T>(sum) }).collect())
    };
    route.rows.iter().enumerate().map(of_row).collect()
}

fn bits<T: Element>(elements: &[T]) -> Vec<u32> {
    elements.iter().map(|element| element.value().to_bits()).collect()
}

fn tables_learn_as_on_the_cpu<T: Element>(case: &Case, words: &mut Random) -> Outcome {
    const STEPS: usize = 6;
    let batches: Vec<Batch<T>> = (0..STEPS).map(|_| case.batch(words, true)).collect();
    let stops: Vec<u32> = (0..STEPS).map(|_| u32::from(words.below(6) == 0)).collect();
    let with_stops: Vec<_> = batches.iter().zip(stops.iter().copied()).collect();
    let found = case.on_ranks::<T, _>(|rank| {
        let uploaded = rank.upload(&with_stops)?;
        for (number, batch) in uploaded.iter().enumerate() {
            let size = rank.routed(batch, number % ROUTES)?;
            rank.iterate(batch, number % ROUTES, size)?;
        }
        rank.tables.check(&rank.bench.lane)?;
        let lane = &rank.bench.lane;
        let vectors = uploaded.iter().map(|batch| batch.vectors.read(lane)).collect::<Result<Vec<_>, _>>()?;
        let weights = rank.weights()?;
        // Memory must not be freed while others may wait.
        rank.cluster.gather(0u32)?;
        Ok((vectors, weights))
    })?;
    let mut tables = case.of_rank.on_cpu();
    for (number, (batch, stop)) in with_stops.iter().enumerate() {
        for (rank, (vectors, _)) in found.iter().enumerate() {
            let expected = expected_vectors::<T>(case, &tables, &batch.columns[rank]);
            let slack = slack_of_pooled::<T>(case, &tables, &batch.columns[rank]);
            let differs = |(at, (a, b)): (usize, (&T, &T))| match slack[at] {
                // A weight too small for f16 becomes a zero with its sign, which the CPU loses where it adds to 0.
                0.0 if a.value() == 0.0 => b.value() != 0.0,
                0.0 => a.value().to_bits() != b.value().to_bits(),
                slack => f64::from(a.value() - b.value()).abs() > slack || a.value().is_nan(),
            };
            let mut both = vectors[number].iter().zip(&expected).enumerate();
            if let Some(at) = both.position(differs) {
                let (sample, element) = (at / case.of_rank.stride, at % case.of_rank.stride);
                let (have, wanted) = (vectors[number][at], expected[at]);
                let element = format!("step {number}, rank {rank}, sample {sample}, element {element}");
                return Err(format!("{element}: {have:?}, not {wanted:?}").into());
            }
        }
        if *stop == 0 {
            update_on_cpu(case, &mut tables, batch, step(number));
        }
    }
    compare(&whole(found.into_iter().map(|(_, weights)| weights).collect())?, &tables)
}

/// Bitwise equal, for gradients whose sums are not exact as well, if a rank's look-ups are divided as those of tables
/// on one GPU.
fn one_rank_learns_as_tables_on_one_gpu(case: &Case, words: &mut Random) -> Outcome {
    let batches: Vec<Batch<f32>> = (0..4).map(|_| case.batch(words, false)).collect();
    let with_stops: Vec<_> = batches.iter().map(|batch| (batch, 0)).collect();
    let found = case.on_ranks::<f32, _>(|rank| {
        let (lane, case) = (&rank.bench.lane, &rank.case.of_rank);
        let (layout, drawn) = (case.layout.clone(), case.layout.tables().len());
        let local = LocalTables::initialized(
            &rank.bench.device,
            layout,
            lane,
            InitialWeights { seed: case.seed, drawn },
        )?;
        let uploaded = rank.upload(&with_stops)?;
        for batch in &uploaded {
            rank.routed(batch, 0)?;
            rank.iterate(batch, 0, 0)?;
            let ids = batch.ids.ids();
            let vectors = batch.vectors.read(lane)?;
            // SAFETY: the buffers have the sizes that the layout says, and live until the lane has been waited for.
            unsafe {
                local.look_up(
                    lane,
                    ids,
                    case.layout.samples(),
                    Vectors::Elements(batch.vectors.pointer()),
                )?;
                local.route(lane, ids)?;
                local.update(lane, ids, batch.gradients.pointer(), batch.update_inputs())?;
            }
            if bits(&vectors) != bits(&batch.vectors.read(lane)?) {
                return Err("vectors differ".into());
            }
        }
        rank.tables.check(lane)?;
        let mut rows = Vec::new();
        for (number, table) in case.layout.tables().iter().enumerate() {
            let mut weights = vec![0.0; table.rows as usize * table.dim];
            gather(&local.rows(lane), number, 0..table.rows, false, (table.dim, &mut weights))?;
            rows.extend(weights);
        }
        Ok((rank.weights()?.concat(), rows))
    })?;
    let (found, expected) = &found[0];
    if bits(found) == bits(expected) { Ok(()) } else { Err("weights differ".into()) }
}

/// A row's state on the CPU, for some columns: kind by kind.
fn state_of(table: &Table, row: u64, part: &RowPart) -> Vec<f32> {
    let (row, dim) = (table.row(row), table.spec().dim);
    let kind = |number: usize| match part.layout.rowwise {
        true => row[dim..dim + 1].to_vec(),
        false => row[dim + number * dim..][part.columns.clone()].to_vec(),
    };
    (0..part.layout.state().len()).flat_map(kind).collect()
}

/// Rows of the CPU are written to the ranks, and read again.
fn rows_come_and_go_with_their_state(case: &Case, words: &mut Random) -> Outcome {
    let mut tables = case.of_rank.on_cpu();
    for table in &mut tables {
        let (layout, dtype) = (table.layout(), table.spec().dtype);
        for row in 0..table.spec().rows {
            for (column, word) in table.words_mut(row..row + 1).iter_mut().enumerate() {
                let number = words.unit() as f32 - 0.5;
                *word = if column < layout.dim { dtype.nearest(number) } else { number };
            }
        }
    }
    case.on_ranks::<f32, _>(|rank| {
        let mut rows = rank.tables.rows(&rank.bench.lane);
        for (number, table) in tables.iter().enumerate() {
            let (spec, layout) = (table.spec(), table.layout());
            let row_bytes = spec.dim * spec.dtype.bytes();
            let mut weights = vec![0; spec.rows as usize * row_bytes];
            let mut state = vec![Vec::new(); layout.state().len()];
            let all = table.words(0..spec.rows).chunks_exact(layout.words);
            for (row, weights) in all.zip(weights.chunks_exact_mut(row_bytes)) {
                layout.write_weights(row, spec.dtype, weights);
                for (state, &begin) in state.iter_mut().zip(layout.state()) {
                    state.extend_from_slice(&row[begin..begin + layout.state_words()]);
                }
            }
            let piece = RowPiece {
                table: number,
                columns: 0..spec.dim,
                rows: RowSet::all(spec.rows),
                dtype: spec.dtype,
                weights: &weights,
                state: state.iter().map(Vec::as_slice).collect(),
            };
            place(&mut rows, &piece)?;
        }
        let mut scratch = Vec::new();
        for (number, part) in rows.parts().iter().enumerate() {
            let table = &tables[part.table];
            let words = rows.read(number, 0..part.rows.len(), &mut scratch)?;
            for (row, words) in part.rows.iter().zip(words.chunks_exact(part.layout.words)) {
                let mut weights = vec![0.0; part.columns.len()];
                part.layout.read_weights(words, &mut weights);
                let kept = |begin: &usize| words[*begin..begin + part.layout.state_words()].to_vec();
                let state: Vec<_> = part.layout.state().iter().flat_map(kept).collect();
                if weights != table.weights(row)[part.columns.clone()] || state != state_of(table, row, part)
                {
                    return Err(format!("row {row} of {part:?} differs").into());
                }
            }
            let positions: Vec<_> = part.own.clone().filter(|position| position % 3 != 1).collect();
            let mut listed = vec![f32::NAN; positions.len() * part.layout.words];
            rows.copy_listed(number, &positions, &mut listed)?;
            let all = words.chunks_exact(part.layout.words).zip(0..);
            let expected = all.filter(|(_, position)| positions.binary_search(position).is_ok());
            if !expected.flat_map(|(row, _)| row).eq(&listed) {
                return Err(format!("other rows of {part:?} are listed").into());
            }
        }
        Ok(())
    })?;
    Ok(())
}

fn the_rows_that_are_updated_are_known(case: &Case, words: &mut Random) -> Outcome {
    let batches = [case.batch::<f32>(words, true), case.batch(words, true)];
    let of_ranks = case.on_ranks::<f32, _>(|rank| {
        let uploaded = rank.upload(&[(&batches[0], 0), (&batches[1], 0)])?;
        let found = uploaded.iter().enumerate().map(|(number, batch)| {
            if number == 1 {
                rank.tables.rows(&rank.bench.lane).begin_tracking()?;
            }
            let size = rank.routed(batch, 0)?;
            rank.iterate(batch, 0, size)?;
            rank.tables.check(&rank.bench.lane)?;
            update::updated(&rank.tables.rows(&rank.bench.lane))
        });
        found.collect::<Result<Vec<_>, _>>()
    })?;
    for (number, batch) in batches.iter().enumerate() {
        let named: BTreeSet<_> =
            batch.columns.iter().flat_map(|columns| case.of_rank.named(columns)).collect();
        let found: BTreeSet<_> = of_ranks.iter().flat_map(|rank| &rank[number]).copied().collect();
        if found != named {
            return Err(format!("other rows are reported as updated in batch {number}").into());
        }
    }
    Ok(())
}

/// The counted bytes are those that follow from ids and placements, of all steps and of nothing else.
fn traffic_is_that_of_the_ids<T: Element>(case: &Case, words: &mut Random) -> Outcome {
    // The third batch is skipped, and the first one is only looked up.
    let batches: Vec<Batch<T>> = (0..4).map(|_| case.batch(words, true)).collect();
    let with_stops: Vec<_> = batches.iter().zip([0, 0, 1, 0]).collect();
    let of_ranks = case.on_ranks::<T, _>(|rank| {
        let (lane, uploaded) = (&rank.bench.lane, rank.upload(&with_stops)?);
        for (number, batch) in uploaded.iter().enumerate() {
            let (slot, samples) = (number % ROUTES, case.layout.samples());
            let size = rank.routed(batch, slot)?;
            let routed = RoutedBatch { ids: batch.ids.ids(), slot, size };
            if number == 0 {
                // SAFETY: as for iterations.
                unsafe {
                    rank.tables.exchange().look_up(
                        &rank.tables,
                        lane,
                        routed,
                        samples,
                        Vectors::Elements(batch.vectors.pointer()),
                    )?;
                    rank.tables.meet(lane)?;
                }
                continue;
            }
            // SAFETY: the tables live until the lane has been waited for.
            unsafe { rank.tables.count_traffic(lane, routed) }?;
            rank.iterate(batch, slot, size)?;
            lane.synchronize()?;
        }
        rank.tables.check(lane)?;
        let traffic = rank.tables.traffic(lane)?;
        rank.tables.forget_traffic(lane)?;
        match rank.tables.traffic(lane)? == RankTraffic::default() {
            true => Ok(traffic),
            false => Err("traffic is not forgotten".into()),
        }
    })?;
    let mut found = RankTraffic::default();
    of_ranks.into_iter().for_each(|of_rank| found += of_rank);
    let placed = Placed {
        plan: &case.plan,
        layout: &case.layout,
        optimizers: &case.of_rank.optimizers,
        row_bytes: size_of::<T>() as u64,
        sum_bytes: if T::KIND == ElementKind::Bf16 { 2 } else { 4 },
    };
    let mut expected = RankTraffic::default();
    for (batch, stop) in &with_stops[1..] {
        expected += placed.traffic(&batch.columns, *stop == 0);
    }
    // The padding between nodes depends on sizes of messages that the plan does not tell exactly; but each message
    // is longer than its header.
    let padding = &mut found.exchange.between_nodes.padding_bytes;
    let least = (3 * case.ranks() * (case.layout.nodes() - 1) * RAIL_HEADER * 4) as u64;
    if !(least..1 << 32).contains(padding) && case.layout.nodes() > 1 {
        return Err(format!("{padding} bytes of padding between nodes").into());
    }
    if case.layout.nodes() > 1 {
        *padding = 0;
    }
    if found == expected { Ok(()) } else { Err(format!("{found:?}, not {expected:?}").into()) }
}

fn sums_in_bf16_are_near_the_exact_ones(case: &Case, words: &mut Random) -> Outcome {
    const RATE: f64 = 0.125;
    let layout = &case.layout;
    let in_f32 = |table: &TableSpec| TableSpec { dtype: Dtype::Fp32, ..table.clone() };
    let tables: Vec<_> = layout.tables().iter().map(in_f32).collect();
    let (samples, stride) = (layout.samples(), case.of_rank.stride);
    let nodes = layout.nodes();
    let layout = Layout::new(case.ranks(), samples, stride, &tables, layout.columns(), layout.features())?;
    let layout = layout.with_nodes(nodes)?;
    let optimizers = vec![Optimizer::sgd(RATE); tables.len()];
    let layout = layout.with_optimizers(&optimizers);
    let of_rank = update::Case {
        layout: layout.clone(),
        optimizers,
        stride,
        seed: case.of_rank.seed,
        has_plain_weights: false,
    };
    let plan = row_wise(&layout)?;
    let case = Case { of_rank, layout, plan, devices: case.devices.clone() };
    let batch = case.batch::<bf16>(words, false);
    let found = case.on_ranks::<bf16, _>(|rank| {
        let uploaded = rank.upload(&[(&batch, 0)])?;
        let size = rank.routed(&uploaded[0], 0)?;
        rank.iterate(&uploaded[0], 0, size)?;
        rank.tables.check(&rank.bench.lane)?;
        let weights = rank.weights()?;
        rank.cluster.gather(0u32)?;
        Ok(weights)
    })?;
    let found = whole(found)?;
    for (number, table) in case.of_rank.on_cpu().iter().enumerate() {
        let dim = table.spec().dim;
        // Per row: the sums of its gradients and of their magnitudes, and the number of gradients.
        let mut sums = vec![(0.0f64, 0.0f64); table.spec().rows as usize * dim];
        let mut counts = vec![0.0; table.spec().rows as usize];
        for (columns, gradients) in batch.columns.iter().zip(&batch.gradients) {
            for feature in case.cpu_features(columns, number).1 {
                for sample in 0..feature.bags.len() {
                    let bag = feature.bags.bag(sample);
                    let scale = f64::from(feature.pooling.scale(bag.len()));
                    let from = &gradients[sample * stride + feature.slot.offset..][..dim];
                    for &row in bag {
                        counts[row as usize] += 1.0;
                        for (sum, from) in sums[row as usize * dim..][..dim].iter_mut().zip(from) {
                            sum.0 += from.to_f64() * scale;
                            sum.1 += from.to_f64().abs() * scale;
                        }
                    }
                }
            }
        }
        for (at, (&have, (sum, size))) in found[number].iter().zip(sums).enumerate() {
            let (row, column) = (at / dim, at % dim);
            let before = f64::from(table.weights(row as u64)[column]);
            let exact = before - RATE * sum;
            // Each addition rounds by a share of the partial sum, which is at most the sum of magnitudes; sums are
            // rounded once more when they travel.
            let travels = if case.layout.nodes() > 1 { 2.0 } else { 1.0 };
            let summed =
                size * (travels * super::BF16_ROUNDING + (counts[row] + 8.0) * super::F32_ROUNDING) * 1.02;
            let bound = RATE * summed + 2.0 * super::F32_ROUNDING * (before.abs() + exact.abs());
            if (f64::from(have) - exact).abs() > bound || have.is_nan() {
                let element = format!("table {number}, row {row}, column {column}");
                return Err(format!("{element}: {have}, not {exact} within {bound}").into());
            }
        }
    }
    Ok(())
}

fn captured_iterations_have_the_same_bits(case: &Case, words: &mut Random) -> Outcome {
    let batches: Vec<Batch<bf16>> = (0..ROUTES).map(|_| case.batch(words, false)).collect();
    let with_stops: Vec<_> = batches.iter().map(|batch| (batch, 0)).collect();
    let mut first: Option<Vec<Vec<f32>>> = None;
    // First in order; then captured, with the next batch's route on a separate lane.
    for captured in [false, true] {
        let found = case.on_ranks::<bf16, _>(|rank| {
            let (lane, side) = (&rank.bench.lane, &rank.side);
            let uploaded = rank.upload(&with_stops)?;
            let (forked, joined) = (Moment::new(&rank.bench.device)?, Moment::new(&rank.bench.device)?);
            // The batches' sizes must be known before anything is captured.
            let sizes = (0..ROUTES).rev().map(|slot| rank.routed(&uploaded[slot], slot));
            let mut sizes = sizes.collect::<Result<Vec<_>, _>>()?;
            sizes.reverse();
            let pair = || {
                for slot in 0..ROUTES {
                    let next = (slot + 1) % ROUTES;
                    if captured {
                        lane.record(&forked)?;
                        side.wait(&forked)?;
                        rank.route(side, &uploaded[next], (next, sizes[next]))?;
                        side.record(&joined)?;
                        rank.iterate(&uploaded[slot], slot, sizes[slot])?;
                        lane.wait(&joined)?;
                    } else {
                        rank.iterate(&uploaded[slot], slot, sizes[slot])?;
                        rank.route(lane, &uploaded[next], (next, sizes[next]))?;
                    }
                }
                Ok::<_, Error>(())
            };
            lane.synchronize()?;
            let mut graph = captured.then(|| Graph::capture(lane, pair)).transpose()?;
            rank.cluster.gather(0u32)?;
            for _ in 0..3 {
                match &mut graph {
                    // SAFETY: the graph's buffers live until all lanes have been waited for.
                    Some(graph) => unsafe { graph.replay(lane) }?,
                    None => pair()?,
                }
            }
            rank.tables.check(lane)?;
            let weights = rank.weights()?;
            rank.cluster.gather(0u32)?;
            Ok(weights)
        })?;
        let found = whole(found)?;
        let same = |one: &[Vec<f32>], other: &[Vec<f32>]| bits(&one.concat()) == bits(&other.concat());
        if !same(first.get_or_insert_with(|| found.clone()), &found) {
            return Err(format!("other bits, captured {captured}").into());
        }
    }
    Ok(())
}

fn ids_out_of_range_are_told(case: &Case, words: &mut Random) -> Outcome {
    let mut batch = case.batch::<f32>(words, true);
    let feature = case.layout.features()[0];
    let looked_up = case.layout.looked_up().iter().map(|&(feature, _)| case.layout.features()[feature]);
    let pooled = case.layout.pooled().map(|number| case.layout.features()[number]);
    let expected = looked_up.chain(pooled).filter(|other| other.column == feature.column).count();
    let Some(id) = batch.columns[0][feature.column].ids.last_mut() else { return Ok(()) };
    *id = u64::from(u32::MAX);
    let outcomes = case.on_ranks::<f32, _>(|rank| {
        let uploaded = rank.upload(&[(&batch, 0)])?;
        rank.routed(&uploaded[0], 0)?;
        let outcome = rank.tables.check(&rank.bench.lane);
        rank.cluster.gather(0u32)?;
        Ok(outcome)
    })?;
    for (rank, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(()) if rank > 0 => {}
            Err(Error::Ids { count }) if rank == 0 && *count as usize == expected => {}
            other => {
                return Err(format!("rank {rank}: {other:?}, but {expected} look-ups name the id").into());
            }
        }
    }
    Ok(())
}

/// How long ranks wait for one that does not take part. It also limits how long they may take to allocate shared
/// memory, which is slow while a driver clears freed memory.
const PATIENCE: Duration = Duration::from_secs(2);

fn waits_time_out(tables: &NodeTables, lane: &Lane) -> Outcome {
    // The second call does not wait for the deadline again.
    // SAFETY: the tables live until all ranks are done.
    (0..2).try_for_each(|_| unsafe { tables.meet(lane) })?;
    match tables.check(lane) {
        Err(Error::Cuda(rankine_cuda::Error::PeerBarrier {
            waiting: Rank(1),
            missing: Rank(0),
            deadline_ms,
            ..
        })) => {
            assert_eq!(deadline_ms, PATIENCE.as_millis());
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn a_rank_that_does_not_come_is_named(gpus: usize) -> Outcome {
    let devices: Vec<_> = (0..2).map(|rank| Device::open(rank % gpus)).collect::<Result<_, _>>()?;
    let table = TableSpec { name: "t".into(), rows: 10, dim: 4, dtype: Dtype::Fp32, dynamic: None };
    let feature = Feature { column: 0, table: 0, vector_offset: 0, pooling: Pooling::Sum };
    let layout = Layout::new(2, 1, 4, &[table], &[Hotness::Fixed(1)], &[feature])?;
    let together = Barrier::new(2);
    let one = |cluster: Cluster| -> Outcome {
        let device = Arc::clone(cluster.device());
        device.bind()?;
        let lane = Lane::new(&device)?;
        let tables = NodeTables::initialized::<bf16>(
            &cluster,
            None,
            layout.clone(),
            &lane,
            InitialWeights { seed: 1, drawn: 1 },
            ROUTES,
            None,
        )?;
        let outcome = match cluster.rank() {
            Rank(0) => Ok(()),
            Rank(_) => waits_time_out(&tables, &lane),
        };
        // The tables live until all ranks are done.
        together.wait();
        outcome
    };
    let clusters = Cluster::in_process(&devices, 1, PATIENCE)?;
    std::thread::scope(|scope| {
        let running: Vec<_> = clusters.into_iter().map(|cluster| scope.spawn(|| one(cluster))).collect();
        running.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank panicked")?)
    })
}
