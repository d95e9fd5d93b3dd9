//! The cost of placements, counted row by row and rank by rank as `docs/guide/planning.md` describes it. The
//! planner's tests compare with these values; nothing here uses the planner's own sums.

use proptest::prelude::*;
use rankine_topology::{Node, Rank, Topology};

use crate::dtype::Dtype;
use crate::frequency::{BagLengths, CountClass, FrequencyProfile, TableFrequencies};
use crate::optimizer::UpdateRule;
use crate::placement::{Exchange, Owner, Placement, Shard};
use crate::plan::choice::Choice;
use crate::plan::cost::{Context, Flow, RankLoad};
use crate::plan::{FrequentSums, Machine, NonTableLoad, NonTableMemory, TableInput};
use crate::table::TableSpec;

pub(in crate::plan) const ROWWISE: UpdateRule =
    UpdateRule::RowwiseAdagrad { initial_accumulator: 0.0, epsilon: 1e-8 };
pub(in crate::plan) const RULES: [UpdateRule; 4] = [
    UpdateRule::Sgd,
    UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-8 },
    ROWWISE,
    UpdateRule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 },
];

/// A table whose features have bags of some lengths; the planner chooses its placement.
pub(in crate::plan) fn input<'a>(
    spec: &'a TableSpec,
    rule: UpdateRule,
    lengths: &'a [BagLengths],
    profile: &'a FrequencyProfile,
) -> TableInput<'a> {
    let features = lengths.iter().collect();
    TableInput {
        spec,
        rule,
        features,
        weighted: false,
        profile,
        placement: None,
        exchange: None,
        frequent_rows: None,
        device_rows: None,
    }
}

/// A table with known look-ups.
#[derive(Debug, Clone)]
pub(in crate::plan) struct KnownTable {
    pub(in crate::plan) spec: TableSpec,
    pub(in crate::plan) rule: UpdateRule,
    /// Whether ids have weights.
    weighted: bool,
    /// Samples that were counted.
    pub(in crate::plan) samples: u64,
    /// Rows with their look-ups, the most frequent ones first.
    pub(in crate::plan) counts: Vec<(u64, u64)>,
    /// Rows that are not known individually, each looked up this often.
    others: CountClass,
    /// Per feature, the shares of bags with some numbers of ids.
    bags: Vec<Vec<(u32, f64)>>,
    lengths: Vec<BagLengths>,
    profile: FrequencyProfile,
}

impl KnownTable {
    pub(in crate::plan) fn new(
        spec: TableSpec,
        rule: UpdateRule,
        samples: u64,
        counts: Vec<(u64, u64)>,
        others: CountClass,
        bags: Vec<Vec<(u32, u64)>>,
    ) -> Self {
        let lookups = counts.iter().map(|row| row.1).sum::<u64>() + others.lookups;
        let frequencies = TableFrequencies {
            samples,
            lookups,
            distinct_rows: counts.len() as u64 + others.rows,
            head: counts.clone(),
            tail: vec![others],
        };
        let profile = FrequencyProfile::new(spec.rows, &frequencies);
        let lengths = bags.iter().map(|bags| BagLengths::counted(bags.iter().copied())).collect();
        let share = |bags: &Vec<(u32, u64)>| {
            let all: u64 = bags.iter().map(|bag| bag.1).sum();
            bags.iter().map(|&(ids, bags)| (ids, bags as f64 / all as f64)).collect()
        };
        let bags = bags.iter().map(share).collect();
        Self { spec, rule, weighted: false, samples, counts, others, bags, lengths, profile }
    }

    pub(in crate::plan) fn input(
        &self,
        placement: Option<Placement>,
        exchange: Option<Exchange>,
    ) -> TableInput<'_> {
        let input = input(&self.spec, self.rule, &self.lengths, &self.profile);
        TableInput { weighted: self.weighted, placement, exchange, ..input }
    }

    pub(in crate::plan) fn lookups(&self) -> f64 {
        (self.counts.iter().map(|row| row.1).sum::<u64>() + self.others.lookups) as f64
    }

    /// `named(c, k)` of the documentation: the probability that some samples name a row with a count.
    pub(in crate::plan) fn named(&self, count: f64, samples: f64) -> f64 {
        if samples >= self.samples as f64 {
            return 1.0;
        }
        let drawn = samples * self.lookups() / self.samples as f64;
        let (m, most) = (count.min(drawn), count.max(drawn));
        if m <= 1.0 {
            return (m * most / self.lookups()).min(1.0);
        }
        let of_each = (most / (self.lookups() - (m - 1.0) / 2.0)).min(1.0);
        1.0 - (1.0 - of_each).powf(m)
    }

    /// Bags per sample with an id of a kind that makes up this share of all ids.
    pub(in crate::plan) fn hits(&self, share: f64) -> f64 {
        let of_feature = |bags: &Vec<(u32, f64)>| -> f64 {
            bags.iter().map(|&(ids, bags)| bags * (1.0 - (1.0 - share).powi(ids as i32))).sum()
        };
        self.bags.iter().map(of_feature).sum()
    }

    pub(in crate::plan) fn is_frequent(&self, choice: &Choice, number: Option<usize>) -> bool {
        choice.placement == Placement::Replicated || number.is_some_and(|number| number < choice.split)
    }

    /// Each row; rows that are not known individually are grouped: number among the counted rows, number of rows in
    /// the group, and look-ups of each.
    pub(in crate::plan) fn rows(&self) -> impl Iterator<Item = (Option<usize>, f64, f64)> + '_ {
        let known = self.counts.iter().enumerate().map(|(number, row)| (Some(number), 1.0, row.1 as f64));
        let others = (self.others.rows > 0).then(|| {
            let each = self.others.lookups as f64 / self.others.rows as f64;
            (None, self.others.rows as f64, each)
        });
        known.chain(others)
    }

    /// The owners of a row of [`KnownTable::rows`]: ranks with their shares.
    pub(in crate::plan) fn owners(
        &self,
        number: Option<usize>,
        owner: Owner,
        ranks: usize,
    ) -> Vec<(Rank, f64)> {
        match (owner, number) {
            (Owner::Rank(rank), _) => vec![(rank, 1.0)],
            (Owner::EveryRank, Some(number)) => vec![(Rank(self.counts[number].0 as usize % ranks), 1.0)],
            (Owner::EveryRank, None) => Rank::first(ranks).map(|rank| (rank, 1.0 / ranks as f64)).collect(),
        }
    }
}

/// Bytes of rows with some columns and their state: rows start at multiples of 16 bytes, and in narrow tables 2-byte
/// weights save two bytes each.
pub(in crate::plan) fn bytes(known: &KnownTable, machine: &Machine, rows: f64, columns: usize) -> f64 {
    let state = match known.rule {
        UpdateRule::Sgd => 0,
        UpdateRule::RowwiseAdagrad { .. } => 1,
        UpdateRule::Adam { .. } => 2 * columns,
        _ => columns,
    };
    let words = (columns + state).div_ceil(4) * 4;
    let saved = if machine.narrow_tables && known.spec.dtype != Dtype::Fp32 { 2 * columns } else { 0 };
    rows * (4 * words - saved) as f64
}

/// A table's cost for each rank, row by row and rank by rank.
pub(in crate::plan) fn counted(known: &KnownTable, choice: &Choice, context: &Context<'_>) -> Vec<RankLoad> {
    let (topology, machine) = (context.topology, context.machine);
    let (ranks, nodes, per_node) = (topology.ranks(), topology.nodes(), topology.ranks_per_node());
    let samples = context.batch / ranks as f64;
    let (vector, table) = (machine.vector_element_bytes as f64, machine.table_element_bytes as f64);
    let per_sample = |lookups: f64| lookups / known.samples as f64;
    let dim = known.spec.dim;
    let mut loads = vec![RankLoad::default(); ranks];
    let mut add_frequent = |rows: f64, named: f64, of_node: f64, of_batch: f64, lookups: f64| {
        for load in &mut loads {
            load.table_bytes += bytes(known, machine, rows, dim);
            load.memory_traffic += samples * lookups * (2.0 * vector * dim as f64 + machine.lookup_bytes)
                + named * table * dim as f64
                + of_batch * 2.0 * bytes(known, machine, 1.0, dim);
            let with_mark = 4.0 * rows * (dim + 1) as f64;
            if machine.frequent_sums == FrequentSums::Reduced && ranks > 1 {
                load.buffer_bytes += with_mark;
                load.memory_traffic += 3.0 * with_mark;
            } else if ranks > 1 {
                // To and from each other rank of the node, and along the rail; all of it is written and read.
                let each = 8.0 + vector * dim as f64;
                let (peers, others) = ((per_node - 1) as f64, (nodes - 1) as f64);
                for (flow, sent) in [(&mut load.within, peers * named), (&mut load.between, others * of_node)]
                {
                    *flow += Flow { rows: sent, asked: sent * each, served: sent * each };
                }
                let along = if nodes > 1 { nodes as f64 * of_node } else { 0.0 };
                load.memory_traffic += 2.0 * (per_node as f64 * named + along) * (vector * dim as f64 + 64.0);
            }
        }
    };
    let frequent_rows = match choice.placement {
        Placement::Replicated => known.spec.rows as f64,
        _ => choice.split as f64,
    };
    if frequent_rows > 0.0 {
        let (mut named, mut of_node, mut of_batch, mut lookups) = (0.0, 0.0, 0.0, 0.0);
        for (_, rows, count) in known.rows().filter(|row| known.is_frequent(choice, row.0)) {
            named += rows * known.named(count, samples);
            of_node += rows * known.named(count, samples * per_node as f64);
            of_batch += rows * known.named(count, context.batch);
            lookups += per_sample(rows * count);
        }
        add_frequent(frequent_rows, named, of_node, of_batch, lookups);
        if choice.placement != Placement::Replicated {
            // Eight bytes per frequent row; and per row of the table one bit plus its share of 32 bits per 64-bit
            // word.
            let index = 8.0 * frequent_rows + 1.5 / 8.0 * known.spec.rows as f64;
            loads.iter_mut().for_each(|load| load.buffer_bytes += index);
        }
    }

    let shards = match choice.placement {
        Placement::Replicated => Vec::new(),
        _ => choice.plan(&known.input(None, None)).shards,
    };
    for Shard { columns, owner } in &shards {
        let columns = columns.len();
        let width = vector * columns as f64;
        for (rank, load) in loads.iter_mut().enumerate() {
            let owned = (0..known.spec.rows).filter(|&row| owner.of(row, topology) == Rank(rank)).count();
            load.table_bytes += bytes(known, machine, owned as f64, columns);
        }
        // Look-ups per sample that each rank owns.
        let mut of_owner = vec![0.0; ranks];
        for (number, rows, count) in known.rows().filter(|row| !known.is_frequent(choice, row.0)) {
            for (to, share) in known.owners(number, *owner, ranks) {
                let rows = rows * share;
                of_owner[to.0] += per_sample(rows * count);
                let update = table * columns as f64 + 2.0 * bytes(known, machine, 1.0, columns) + 64.0;
                loads[to.0].memory_traffic += rows * known.named(count, context.batch) * update;
                if choice.exchange == Exchange::Pooled {
                    continue;
                }
                let each = 8.0 + 2.0 * width;
                let mut asks = |from: Rank, of: Rank, named: f64, within: bool| {
                    if from != of {
                        let (asked, served) = (named * each, named * each);
                        let flow = |load: &mut RankLoad, flow: Flow| {
                            *(if within { &mut load.within } else { &mut load.between }) += flow;
                            load.memory_traffic += named * (2.0 * width + 64.0);
                        };
                        flow(&mut loads[from.0], Flow { rows: named, asked, served: 0.0 });
                        flow(&mut loads[of.0], Flow { rows: 0.0, asked: 0.0, served });
                    }
                };
                for from in topology.all_ranks() {
                    let via = topology.rank(topology.node_of(from), topology.local_rank(to));
                    asks(from, via, rows * known.named(count, samples), true);
                }
                for node in topology.all_nodes() {
                    let via = topology.rank(node, topology.local_rank(to));
                    asks(via, to, rows * known.named(count, samples * per_node as f64), false);
                }
            }
        }
        let all: f64 = of_owner.iter().sum();
        if choice.exchange == Exchange::Rows {
            for load in &mut loads {
                load.memory_traffic += samples * all * (2.0 * width + machine.lookup_bytes);
            }
        } else {
            let share = |lookups: f64| lookups / per_sample(known.lookups());
            let of_node = |node: Node| -> f64 {
                topology.local_ranks().map(|local_rank| of_owner[topology.rank(node, local_rank).0]).sum()
            };
            let mut asks = |from: Rank, of: Rank, samples: f64, lookups: f64, within: bool| {
                let (bags, ids) = (samples * known.hits(share(lookups)), samples * lookups);
                let id = if known.weighted { 12.0 } else { 8.0 };
                let crosses = bags * (4.0 + 2.0 * width) + id * ids;
                let flow = |load: &mut RankLoad, flow: Flow| {
                    *(if within { &mut load.within } else { &mut load.between }) += flow;
                    load.memory_traffic += 2.0 * width * bags + 2.0 * id * ids;
                };
                flow(&mut loads[from.0], Flow { rows: bags, asked: crosses, served: 0.0 });
                flow(&mut loads[of.0], Flow { rows: 0.0, asked: 0.0, served: crosses });
            };
            for from in topology.all_ranks() {
                let (node, local_rank) = (topology.node_of(from), topology.local_rank(from));
                for to in topology.all_nodes().filter(|&to| to != node) {
                    asks(from, topology.rank(to, local_rank), samples, of_node(to), false);
                }
                // For the bags of its whole rail.
                for to in topology.node_group(from).into_iter().filter(|&to| to != from) {
                    asks(from, to, samples * nodes as f64, of_owner[to.0], true);
                }
            }
            for (load, lookups) in loads.iter_mut().zip(&of_owner) {
                let each = table * columns as f64 + width + 3.0 * machine.lookup_bytes;
                load.memory_traffic += context.batch * lookups * each;
            }
        }
    }
    if matches!(known.rule, UpdateRule::RowwiseAdagrad { .. }) && shards.len() > 1 {
        let distinct: f64 =
            known.rows().map(|(_, rows, count)| rows * known.named(count, context.batch)).sum();
        for from in &shards {
            for to in &shards {
                let (Owner::Rank(from), Owner::Rank(to)) = (from.owner, to.owner) else { unreachable!() };
                let within = topology.node_of(from) == topology.node_of(to);
                if from != to {
                    let flow = |load: &mut RankLoad, flow: Flow| {
                        *(if within { &mut load.within } else { &mut load.between }) += flow;
                    };
                    flow(&mut loads[from.0], Flow { rows: 0.0, asked: 4.0 * distinct, served: 0.0 });
                    flow(&mut loads[to.0], Flow { rows: 0.0, asked: 0.0, served: 4.0 * distinct });
                }
            }
        }
    }
    for load in &mut loads {
        let flows = [load.within, load.between];
        load.buffer_bytes += flows.iter().map(|flow| flow.asked + flow.served).sum::<f64>();
    }
    loads
}

pub(in crate::plan) fn shards_of(known: &KnownTable, choice: &Choice) -> usize {
    match choice.placement {
        Placement::Replicated => 0,
        _ => choice.plan(&known.input(None, None)).shards.len(),
    }
}

/// Elements of frequent rows that are all-reduced.
pub(in crate::plan) fn summed(known: &KnownTable, choice: &Choice, context: &Context<'_>) -> f64 {
    let rows = match choice.placement {
        Placement::Replicated => known.spec.rows as f64,
        _ => choice.split as f64,
    };
    let reduced = context.machine.frequent_sums == FrequentSums::Reduced && context.topology.ranks() > 1;
    if reduced { rows * (known.spec.dim + 1) as f64 } else { 0.0 }
}

/// Seconds of each rank, as in the documentation's table of times.
pub(in crate::plan) fn seconds(tables: &[(&KnownTable, Choice)], context: &Context<'_>) -> Vec<f64> {
    let Context { topology, machine, rest, .. } = *context;
    let loads: Vec<_> = tables.iter().map(|(known, choice)| counted(known, choice, context)).collect();
    let (nodes, per_node) = (topology.nodes() as f64, topology.ranks_per_node() as f64);
    let elements = rest.reduced_elements as f64
        + tables.iter().map(|(known, choice)| summed(known, choice, context)).sum::<f64>();
    let reduced = elements * machine.reduction_element_bytes as f64;
    let shards: usize = tables.iter().map(|(known, choice)| shards_of(known, choice)).sum();
    let squares = tables.iter().any(|(known, choice)| {
        matches!(known.rule, UpdateRule::RowwiseAdagrad { .. }) && shards_of(known, choice) > 1
    });
    let exchanges = if shards > 0 { 3.0 } else { 0.0 } + if squares { 1.0 } else { 0.0 };
    let mut links = shards as f64 * machine.shard_latency_s;
    let crossing = [
        (per_node, machine.within_nodes, 2.0 * reduced * (per_node - 1.0) / per_node),
        (nodes, machine.between_nodes, 2.0 * reduced / per_node * (nodes - 1.0) / nodes),
    ];
    for (ends, link, bytes) in crossing {
        if ends > 1.0 {
            links += exchanges * link.latency_s + link.reduction_latency_s;
            links += bytes / (link.bytes_per_s * link.reduction_efficiency);
        }
    }
    let of_rank = |rank: usize| {
        let sum = |of: &dyn Fn(&RankLoad) -> f64| loads.iter().map(|loads| of(&loads[rank])).sum::<f64>();
        let compute = rest.flops / machine.flops
            + rest.matmuls as f64 * machine.matmul_latency_s
            + (rest.memory_traffic_bytes + sum(&|load| load.memory_traffic)) / machine.memory_bytes_per_s;
        let within = sum(&|load| load.within.asked).max(sum(&|load| load.within.served));
        let between = sum(&|load| load.between.asked).max(sum(&|load| load.between.served));
        let communicate =
            links + within / machine.within_nodes.bytes_per_s + between / machine.between_nodes.bytes_per_s;
        compute + communicate - machine.overlap * compute.min(communicate)
    };
    (0..topology.ranks()).map(of_rank).collect()
}

pub(in crate::plan) fn topologies() -> impl Strategy<Value = Topology> {
    let all = [(1, 1), (2, 1), (3, 1), (2, 2), (4, 2), (6, 2), (6, 3)];
    prop::sample::select(all.to_vec()).prop_map(|(ranks, nodes)| Topology::new(ranks, nodes).unwrap())
}

prop_compose! {
    pub(in crate::plan) fn known()(
        counts in prop::collection::vec(1..40u64, 1..12),
        others in prop_oneof![Just((0, 0)), (1..9u64, 1..4u64)],
        more_rows in 0..20u64,
        dim in 1..20usize,
        rule in prop::sample::select(&RULES[..]),
        dtype in prop::sample::select(vec![Dtype::Fp32, Dtype::Bf16]),
        samples in 20..60u64,
        weighted in any::<bool>(),
        bags in prop::collection::vec(prop::collection::vec((0..9u32, 1..5u64), 1..4), 1..3),
    ) -> KnownTable {
        let rows = counts.len() as u64 + others.0 + more_rows;
        // Scatters the rows: 7 is coprime to the number of rows; otherwise rows stay as they are.
        let row = |number: u64| if rows.is_multiple_of(7) { number } else { number * 7 % rows };
        let mut counts: Vec<_> = (0..).zip(counts).map(|(number, count)| (row(number), count)).collect();
        counts.sort_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
        let others = CountClass { rows: others.0, lookups: others.0 * others.1 };
        let spec = TableSpec { name: "t".into(), rows, dim, dtype, dynamic: None };
        let distinct: std::collections::BTreeMap<_, _> = bags[0].iter().copied().collect();
        let bags = bags.iter().skip(1).cloned().chain([distinct.into_iter().collect()]).collect();
        KnownTable { weighted, ..KnownTable::new(spec, rule, samples, counts, others, bags) }
    }
}

/// A choice of a given kind for a table.
pub(in crate::plan) fn choice_of(
    known: &KnownTable,
    topology: Topology,
    kind: usize,
    pooled: bool,
    number: usize,
) -> Choice {
    let exchange = if pooled { Exchange::Pooled } else { Exchange::Rows };
    let ranks = topology.ranks();
    match kind {
        0 => Choice::replicated(),
        1 => Choice::row_wise(exchange),
        2 => Choice::hybrid(exchange, number % (known.counts.len() + 1)),
        3 => Choice::table_wise(exchange, Rank(number % ranks)),
        _ => {
            let mut owners: Vec<_> = (0..=number % ranks).map(|i| Rank((number + i) % ranks)).collect();
            owners.sort_unstable();
            Choice::column_wise(exchange, owners)
        }
    }
}

pub(in crate::plan) fn machine(gpu: bool) -> Machine {
    let machine = if gpu { Machine::h200() } else { Machine::cpu(1 << 30) };
    Machine { lookup_bytes: 17.0, ..machine }
}

pub(in crate::plan) fn rest() -> NonTableLoad {
    NonTableLoad {
        memory: NonTableMemory { batch_bytes: 1000, ..NonTableMemory::default() },
        flops: 1e4,
        matmuls: 3,
        memory_traffic_bytes: 1e3,
        reduced_elements: 100,
    }
}
