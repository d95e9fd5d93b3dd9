//! The exchange between ranks against the CPU's tables.
//!
//! Ranks share one GPU, and where there are several the same tests run on as many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use libtest_mimic::{Failed, Trial};
use rankine_cuda::{Device, Graph};
use rankine_embedding::cpu::{self, Bags, FeatureSlot, Route, Table};
use rankine_embedding::cuda::{Error, Feature, Hotness, Layout, Node, Rank, Routing, Schedule, Snapshot};
use rankine_embedding::{Dtype, Optimizer, Pooling, Step, TableSpec};

use super::{BF16_ROUNDING, CASES, F32_ROUNDING, Outcome, Words};

const DEADLINE: Duration = Duration::from_secs(5);
const RATE: f32 = 0.25;

/// The tests: each on one GPU, and where there are several on all of them.
pub(crate) fn trials(seed: u64, devices: usize) -> Vec<Trial> {
    type CaseBody = fn(&Case) -> Outcome;
    let bodies: [(&str, CaseBody); 7] = [
        ("first_weights_are_the_cpus", first_weights_are_the_cpus),
        ("routes_are_the_cpus", routes_are_the_cpus),
        ("vectors_are_the_rows", vectors_are_the_rows),
        ("gradients_are_summed_row_by_row", gradients_are_summed_row_by_row),
        ("updates_are_the_cpus", updates_are_the_cpus),
        ("iterations_have_the_same_bits_each_time", iterations_have_the_same_bits_each_time),
        ("ids_out_of_range_are_told", ids_out_of_range_are_told),
    ];
    let gpus: &[usize] = if devices > 1 { &[1, devices] } else { &[1] };
    let mut trials = Vec::new();
    for &gpus in gpus {
        for (name, body) in bodies {
            trials.push(Trial::test(format!("exchange::{name}_on_{gpus}"), move || {
                // Mapping memory into several GPUs takes the driver its time.
                let cases = if gpus > 1 { CASES / 4 } else { CASES };
                (0..cases).try_for_each(|number| {
                    let case = Case::random(seed ^ number << 32, gpus)?;
                    body(&case).map_err(|failed| {
                        let what = failed.message().unwrap_or_default().to_owned();
                        format!("seed {seed}, case {number}, {:?}: {what}", case.layout).into()
                    })
                })
            }));
        }
        trials.push(Trial::test(
            format!("exchange::a_rank_that_does_not_come_is_named_on_{gpus}"),
            move || a_rank_that_does_not_come_is_named(gpus),
        ));
    }
    trials
}

/// Tables, and for each rank the ids of two batches and gradients.
struct Case {
    layout: Layout,
    tables: Vec<TableSpec>,
    features: Vec<Feature>,
    stride: usize,
    devices: Vec<Arc<Device>>,
    seed: u64,
    /// `[batch][rank][feature][sample]`
    ids: [Vec<Vec<u32>>; 2],
    gradients: Vec<Vec<bf16>>,
}

impl Case {
    fn random(seed: u64, gpus: usize) -> Result<Self, Failed> {
        let mut words = Words { seed, next: 0 };
        let ranks = if gpus > 1 { gpus } else { words.one_of(&[1, 2, 3]) };
        let opened: Vec<_> = (0..gpus).map(Device::open).collect::<Result<_, _>>()?;
        let devices = (0..ranks).map(|rank| Arc::clone(&opened[rank % gpus])).collect();
        let dim = words.one_of(&[4, 16, 64, 128, 128, 132, 256]);
        let tables: Vec<_> = (0..1 + words.below(5))
            .map(|number| {
                let rows = words.one_of(&[1, 3, 40, 2_000, 70_000, 150_000]);
                TableSpec { name: format!("t{number}"), rows, dim, dtype: Dtype::Fp32 }
            })
            .collect();
        let count = if dim > 16 { words.one_of(&[1, 2, 7]) } else { words.one_of(&[3, 26, 40]) };
        let gap = words.one_of(&[0, 4, 8]);
        let of = |number| Feature {
            column: number,
            table: number % tables.len(),
            place: gap + number * (dim + gap),
            pooling: Pooling::Sum,
        };
        let features: Vec<_> = (0..count).map(of).collect();
        let stride = gap + count * (dim + gap) + words.one_of(&[0, 4]);
        let samples = words.one_of(&[1, 2, 63, 64, 65, 1000, 4097]);
        let layout =
            Layout::new(ranks, samples, stride, &tables, &vec![Hotness::Fixed(1); count], &features)?;
        let mut batch = || {
            let of_rank = |_| {
                let ids = features.iter().flat_map(|feature| {
                    let rows = tables[feature.table].rows;
                    // From every row alike to almost all look-ups of one row.
                    let skew = words.one_of(&[1, 4, 30]);
                    let ids: Vec<_> =
                        (0..samples).map(|_| (words.unit().powi(skew) * rows as f64) as u32).collect();
                    ids
                });
                ids.collect()
            };
            (0..ranks).map(of_rank).collect::<Vec<Vec<u32>>>()
        };
        let ids = [batch(), batch()];
        let gradient = |_| bf16::from_f64(words.unit() - 0.5);
        let gradients = (0..ranks * layout.elements()).map(gradient).collect::<Vec<_>>();
        let gradients = gradients.chunks(layout.elements()).map(<[bf16]>::to_vec).collect();
        Ok(Self { layout, tables, features, stride, devices, seed, ids, gradients })
    }

    /// The ranks with their first weights, their ids and their gradients, and a schedule each.
    fn ranks(&self, overlap: bool) -> Result<Vec<(Rank, Schedule)>, Failed> {
        let ranks = Node::ranks(self.layout.clone(), &self.devices, 2, 2, DEADLINE)?;
        let with_schedule = ranks.into_iter().enumerate().map(|(number, rank)| {
            rank.device().bind()?;
            let schedule = Schedule::new(&rank, overlap)?;
            let lane = schedule.lane();
            rank.initialize(lane, self.seed)?;
            rank.set_rate(lane, RATE)?;
            rank.set_gradients(lane, &self.gradients[number])?;
            for (batch, ids) in self.ids.iter().enumerate() {
                rank.set_ids(lane, batch, &ids[number])?;
            }
            Ok((rank, schedule))
        });
        with_schedule.collect()
    }

    fn cpu_tables(&self) -> Vec<Table> {
        let of = |(number, table): (usize, &TableSpec)| {
            Table::initialized(table.clone(), Optimizer::sgd(f64::from(RATE)), self.seed, number as u32)
        };
        self.tables.iter().enumerate().map(of).collect()
    }

    /// A batch's ids of one feature, over some ranks.
    fn column(&self, batch: usize, feature: usize, ranks: &[usize]) -> Vec<u64> {
        let samples = self.layout.samples();
        let of_rank = |&rank: &usize| &self.ids[batch][rank][feature * samples..(feature + 1) * samples];
        ranks.iter().flat_map(of_rank).map(|&id| u64::from(id)).collect()
    }

    /// Calls `each` for every table that is looked up, with its route over the samples of some ranks and the numbers of
    /// its features.
    fn each_route(
        &self,
        batch: usize,
        ranks: &[usize],
        mut each: impl FnMut(usize, &Route, &[cpu::Feature<'_>], &[usize]) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let offsets: Vec<u32> = (0..=(ranks.len() * self.layout.samples()) as u32).collect();
        for (table, spec) in self.tables.iter().enumerate() {
            let of_table = |number: &usize| self.features[*number].table == table;
            let numbers: Vec<_> = (0..self.features.len()).filter(of_table).collect();
            if numbers.is_empty() {
                continue;
            }
            let columns: Vec<_> = numbers.iter().map(|&number| self.column(batch, number, ranks)).collect();
            let features: Vec<_> = numbers
                .iter()
                .zip(&columns)
                .map(|(&number, ids)| cpu::Feature {
                    bags: Bags { offsets: &offsets, ids },
                    pooling: Pooling::Sum,
                    slot: FeatureSlot { stride: self.stride, offset: self.features[number].place },
                })
                .collect();
            let mut route = Route::default();
            route.build(&features, spec.rows);
            each(table, &route, &features, &numbers)?;
        }
        Ok(())
    }
}

/// Enqueues on every rank in turn, with its GPU the current one.
fn on_each(
    ranks: &[(Rank, Schedule)],
    mut enqueue: impl FnMut(&Rank, &Schedule) -> Result<(), Error>,
) -> Result<(), Failed> {
    for (rank, schedule) in ranks {
        rank.device().bind()?;
        enqueue(rank, schedule)?;
    }
    Ok(())
}

/// Waits for every rank and hands back what `read` finds there.
fn read_each<T>(
    ranks: &[(Rank, Schedule)],
    read: impl Fn(&Rank, &Schedule) -> Result<T, Error>,
) -> Result<Vec<T>, Failed> {
    let of = |(rank, schedule): &(Rank, Schedule)| {
        rank.device().bind()?;
        rank.check(schedule.lane())?;
        Ok(read(rank, schedule)?)
    };
    ranks.iter().map(of).collect()
}

const FIRST: Routing = Routing { batch: 0, route: 0 };
const SECOND: Routing = Routing { batch: 1, route: 1 };

fn first_weights_are_the_cpus(case: &Case) -> Result<(), Failed> {
    let ranks = case.ranks(false)?;
    let tables = read_each(&ranks, |rank, schedule| rank.table(schedule.lane()))?;
    let dim = case.tables[0].dim;
    for (number, table) in case.cpu_tables().iter().enumerate() {
        for row in 0..table.spec().rows {
            let (owner, place) = case.layout.place(number, row);
            let own = &tables[owner][place as usize * dim..][..dim];
            if own != table.weights(row) {
                return Err(
                    format!("table {number}, row {row}: {own:?}, not {:?}", table.weights(row)).into()
                );
            }
        }
    }
    Ok(())
}

fn routes_are_the_cpus(case: &Case) -> Result<(), Failed> {
    let ranks = case.ranks(false)?;
    // The second batch goes the way of iterations: its route is made in memory that the first one's left behind.
    on_each(&ranks, |rank, schedule| {
        schedule.begin(rank, FIRST)?;
        schedule.begin(rank, SECOND)
    })?;
    for routing in [FIRST, SECOND] {
        let routes = read_each(&ranks, |rank, schedule| rank.snapshot(schedule.lane(), routing.route))?;
        check_routes(case, routing.batch, &routes)?;
    }
    Ok(())
}

fn check_routes(case: &Case, batch: usize, routes: &[Snapshot]) -> Result<(), Failed> {
    let (layout, samples) = (&case.layout, case.layout.samples());
    let mut unions = vec![BTreeMap::<u64, Vec<Option<u32>>>::new(); routes.len()];
    for (rank, route) in routes.iter().enumerate() {
        if !route.list.is_sorted_by(|one, other| one < other) {
            return Err(format!("rank {rank}: the list does not ascend").into());
        }
        let slot_of: BTreeMap<_, _> = (0u32..).zip(&route.list).map(|(slot, &place)| (place, slot)).collect();
        let mut distinct = 0;
        case.each_route(batch, &[rank], |table, expected, _, numbers| {
            distinct += expected.rows.len();
            for (index, &row) in expected.rows.iter().enumerate() {
                let Some(&slot) = slot_of.get(&layout.place(table, row)) else {
                    return Err(format!("rank {rank}: row {row} of table {table} has no slot").into());
                };
                let bag = |bag: cpu::BagPlace| {
                    (numbers[bag.feature] as u32) << layout.sample_bits() | bag.sample as u32
                };
                let bags: Vec<_> = expected.bags_of(index).map(bag).collect();
                if route.bags[slot as usize] != bags {
                    let have = &route.bags[slot as usize];
                    return Err(format!("rank {rank}, slot {slot}: {have:?}, not {bags:?}").into());
                }
            }
            Ok(())
        })?;
        if route.list.len() != distinct {
            return Err(format!("rank {rank}: {} slots for {distinct} rows", route.list.len()).into());
        }
        for (id, (&row, &slot)) in case.ids[batch][rank].iter().zip(&route.slots).enumerate() {
            let place = layout.place(case.features[id / samples].table, u64::from(row));
            if route.list.get(slot as usize) != Some(&place) {
                return Err(format!("rank {rank}, id {id}: slot {slot}, not that of {place:?}").into());
            }
        }
        for (&(owner, row), &slot) in &slot_of {
            let sources = unions[owner].entry(row).or_insert_with(|| vec![None; routes.len()]);
            let first = route.list.partition_point(|(other, _)| *other < owner);
            sources[rank] = Some(slot - first as u32);
        }
    }
    for (owner, (route, union)) in routes.iter().zip(unions).enumerate() {
        let (rows, sources): (Vec<_>, Vec<_>) = union.into_iter().unzip();
        if route.union != rows || route.sources != sources {
            return Err(format!("owner {owner}: the union of {} rows is another", rows.len()).into());
        }
    }
    Ok(())
}

fn vectors_are_the_rows(case: &Case) -> Result<(), Failed> {
    let tables = case.cpu_tables();
    let dim = tables[0].spec().dim;
    type Way = fn(&Rank, &Schedule) -> Result<(), Error>;
    let ways: [(&str, Way); 3] = [
        ("sent", |rank, schedule| {
            schedule.begin(rank, FIRST)?;
            rank.send(schedule.lane(), 0)?;
            rank.barrier(schedule.lane())?;
            rank.gather(schedule.lane(), 0)
        }),
        ("fetched", |rank, schedule| {
            rank.route(schedule.lane(), FIRST)?;
            rank.fetch(schedule.lane(), 0)?;
            rank.gather(schedule.lane(), 0)
        }),
        ("sent as vectors", |rank, schedule| {
            rank.send_vectors(schedule.lane(), 0)?;
            rank.barrier(schedule.lane())
        }),
    ];
    for (way, enqueue) in ways {
        let ranks = case.ranks(false)?;
        on_each(&ranks, enqueue)?;
        let vectors = read_each(&ranks, |rank, schedule| rank.vectors(schedule.lane()))?;
        for (rank, vectors) in vectors.iter().enumerate() {
            let mut expected = vec![bf16::from_bits(0xffff); case.layout.elements()];
            for (number, feature) in case.features.iter().enumerate() {
                for (sample, id) in case.column(0, number, &[rank]).into_iter().enumerate() {
                    let at = sample * case.stride + feature.place;
                    let weights = tables[feature.table].weights(id);
                    let row = weights.iter().map(|&weight| bf16::from_f32(weight));
                    expected[at..at + dim].iter_mut().zip(row).for_each(|(to, from)| *to = from);
                }
            }
            // Bits, since what is never written is not a number.
            let bits = |of: &[bf16]| of.iter().map(|element| element.to_bits()).collect::<Vec<_>>();
            if bits(vectors) != bits(&expected) {
                return Err(format!("rank {rank}: rows that were {way} are others").into());
            }
        }
    }
    Ok(())
}

/// The sum of a row's gradients over bags, in f64, and the sum of their sizes.
fn exact_sums(case: &Case, rank: usize, bags: &[u32]) -> (Vec<f64>, Vec<f64>) {
    let (dim, bits) = (case.tables[0].dim, case.layout.sample_bits());
    let (mut sums, mut sizes) = (vec![0.0; dim], vec![0.0; dim]);
    for bag in bags {
        let sample = (bag & ((1 << bits) - 1)) as usize;
        let at = sample * case.stride + case.features[(bag >> bits) as usize].place;
        for (element, gradient) in case.gradients[rank][at..at + dim].iter().enumerate() {
            sums[element] += gradient.to_f64();
            sizes[element] += gradient.to_f64().abs();
        }
    }
    (sums, sizes)
}

/// The owner that has the summed gradient of a rank's slot, and where it begins there.
fn place_of_sum(case: &Case, rank: usize, route: &Snapshot, slot: usize) -> (usize, usize) {
    let owner = route.list[slot].0;
    let first = route.list.partition_point(|(other, _)| *other < owner);
    (owner, (rank * case.layout.entries_max() + slot - first) * case.tables[0].dim)
}

fn gradients_are_summed_row_by_row(case: &Case) -> Result<(), Failed> {
    let mut first: Option<Vec<Vec<u16>>> = None;
    for _ in 0..2 {
        let ranks = case.ranks(false)?;
        on_each(&ranks, |rank, schedule| {
            schedule.begin(rank, FIRST)?;
            rank.reduce(schedule.lane(), 0)?;
            rank.barrier(schedule.lane())
        })?;
        let sums = read_each(&ranks, |rank, schedule| rank.sums(schedule.lane()))?;
        let routes = read_each(&ranks, |rank, schedule| rank.snapshot(schedule.lane(), 0))?;
        for (rank, route) in routes.iter().enumerate() {
            for (slot, bags) in route.bags.iter().enumerate() {
                let (exact, sizes) = exact_sums(case, rank, bags);
                let (owner, place) = place_of_sum(case, rank, route, slot);
                for (element, (exact, size)) in exact.iter().zip(sizes).enumerate() {
                    let have = sums[owner][place + element].to_f64();
                    // Each addition rounds what it adds to, which is no larger than the sum of sizes.
                    let added = bags.len() as f64 * F32_ROUNDING * size;
                    let bound = added + BF16_ROUNDING * (exact.abs() + added);
                    if (have - exact).abs() > bound || have.is_nan() {
                        let what = format!("rank {rank}, slot {slot}, element {element} of {}", bags.len());
                        return Err(format!("{what}: {have}, not {exact} within {bound}").into());
                    }
                }
            }
        }
        let bits: Vec<Vec<u16>> =
            sums.iter().map(|sums| sums.iter().map(|sum| sum.to_bits()).collect()).collect();
        if first.get_or_insert_with(|| bits.clone()) != &bits {
            return Err("the second time has other bits".into());
        }
    }
    Ok(())
}

fn updates_are_the_cpus(case: &Case) -> Result<(), Failed> {
    let ranks = case.ranks(true)?;
    on_each(&ranks, |rank, schedule| {
        schedule.begin(rank, FIRST)?;
        schedule.iteration(rank, 0, SECOND, |_| Ok(()))
    })?;
    let tables = read_each(&ranks, |rank, schedule| rank.table(schedule.lane()))?;
    let sums = read_each(&ranks, |rank, schedule| rank.sums(schedule.lane()))?;
    let routes = read_each(&ranks, |rank, schedule| rank.snapshot(schedule.lane(), 0))?;
    let before = case.cpu_tables();
    let dim = before[0].spec().dim;

    // The very bits, from the sums that the GPUs have.
    let mut expected = before.clone();
    for (owner, route) in routes.iter().enumerate() {
        for (&row, sources) in route.union.iter().zip(&route.sources) {
            let mut total = vec![0.0f32; dim];
            for (rank, entry) in
                sources.iter().enumerate().filter_map(|(rank, entry)| Some((rank, (*entry)?)))
            {
                let sum = &sums[owner][(rank * case.layout.entries_max() + entry as usize) * dim..][..dim];
                total.iter_mut().zip(sum).for_each(|(total, sum)| *total += sum.to_f32());
            }
            let (table, row) = case.layout.row_of(owner, row);
            let weights = expected[table].weights_mut(row);
            weights.iter_mut().zip(&total).for_each(|(weight, total)| *weight -= RATE * total);
        }
    }
    for (number, table) in expected.iter().enumerate() {
        for row in 0..table.spec().rows {
            let (owner, place) = case.layout.place(number, row);
            let own = &tables[owner][place as usize * dim..][..dim];
            if own != table.weights(row) {
                return Err(
                    format!("table {number}, row {row}: {own:?}, not {:?}", table.weights(row)).into()
                );
            }
        }
    }

    // The CPU's update over all ranks' samples, within what rounding a gradient a rank to bf16 explains.
    let all: Vec<_> = (0..ranks.len()).collect();
    let gradients: Vec<f32> = case.gradients.iter().flatten().map(|gradient| gradient.to_f32()).collect();
    let mut tables_of_cpu = before;
    case.each_route(0, &all, |table, route, features, numbers| {
        tables_of_cpu[table].update(route, features, &gradients, Step { number: 1, rate_factor: 1.0 });
        for (index, &row) in route.rows.iter().enumerate() {
            let mut sizes = vec![0.0f64; dim];
            let bags = route.bags_of(index);
            let count = bags.len() as f64;
            for bag in bags {
                let at = bag.sample * case.stride + case.features[numbers[bag.feature]].place;
                let of_bag = &gradients[at..at + dim];
                sizes.iter_mut().zip(of_bag).for_each(|(size, gradient)| *size += f64::from(gradient.abs()));
            }
            let (cpu, gpu) = (tables_of_cpu[table].weights(row), expected[table].weights(row));
            for ((&cpu, &gpu), size) in cpu.iter().zip(gpu).zip(sizes) {
                let summed = f64::from(RATE) * size * (BF16_ROUNDING + 2.0 * count * F32_ROUNDING) * 1.01;
                let bound = summed + 2.0 * F32_ROUNDING * f64::from(cpu.abs().max(gpu.abs()));
                if f64::from((cpu - gpu).abs()) > bound {
                    return Err(format!("row {row} of table {table}: {gpu}, not {cpu} within {bound}").into());
                }
            }
        }
        Ok(())
    })
}

fn iterations_have_the_same_bits_each_time(case: &Case) -> Result<(), Failed> {
    let mut first: Option<Vec<Vec<f32>>> = None;
    // In order; overlapped; overlapped, captured and replayed.
    for (overlap, captured) in [(false, false), (true, false), (true, true)] {
        let ranks = case.ranks(overlap)?;
        let pair = |rank: &Rank, schedule: &Schedule| {
            schedule.iteration(rank, 0, SECOND, |_| Ok(()))?;
            schedule.iteration(rank, 1, FIRST, |_| Ok(()))
        };
        on_each(&ranks, |rank, schedule| schedule.begin(rank, FIRST))?;
        let mut graphs = Vec::new();
        if captured {
            on_each(&ranks, |rank, schedule| {
                graphs.push(Graph::capture(schedule.lane(), || pair(rank, schedule))?);
                Ok(())
            })?;
        }
        for _ in 0..3 {
            let mut graphs = graphs.iter_mut();
            on_each(&ranks, |rank, schedule| match graphs.next() {
                // SAFETY: the ranks, whose buffers the graph has, live until the end of this turn.
                Some(graph) => Ok(unsafe { graph.replay(schedule.lane()) }?),
                None => pair(rank, schedule),
            })?;
        }
        let tables = read_each(&ranks, |rank, schedule| rank.table(schedule.lane()))?;
        if first.get_or_insert_with(|| tables.clone()) != &tables {
            return Err(format!("other bits with overlap {overlap}, captured {captured}").into());
        }
    }
    Ok(())
}

fn ids_out_of_range_are_told(case: &Case) -> Result<(), Failed> {
    let ranks = case.ranks(false)?;
    let (rank, schedule) = &ranks[0];
    rank.device().bind()?;
    let mut ids = case.ids[0][0].clone();
    ids[0] = case.tables[case.features[0].table].rows as u32;
    rank.set_ids(schedule.lane(), 0, &ids)?;
    rank.route(schedule.lane(), FIRST)?;
    match rank.check(schedule.lane()) {
        Err(Error::Ids { count: 1 }) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn a_rank_that_does_not_come_is_named(gpus: usize) -> Result<(), Failed> {
    let devices: Vec<_> = (0..2).map(|rank| Device::open(rank % gpus)).collect::<Result<_, _>>()?;
    let table = TableSpec { name: "t".into(), rows: 10, dim: 4, dtype: Dtype::Fp32 };
    let feature = Feature { column: 0, table: 0, place: 0, pooling: Pooling::Sum };
    let layout = Layout::new(2, 1, 4, &[table], &[Hotness::Fixed(1)], &[feature])?;
    let ranks = Node::ranks(layout, &devices, 1, 2, Duration::from_millis(50))?;
    let waiting = &ranks[1];
    waiting.device().bind()?;
    let schedule = Schedule::new(waiting, false)?;
    // The second does not wait for the deadline again.
    (0..2).try_for_each(|_| waiting.barrier(schedule.lane()))?;
    match waiting.check(schedule.lane()) {
        Err(Error::Deadline { waiting: 1, missing: 0, deadline_ms: 50 }) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
