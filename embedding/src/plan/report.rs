//! The predicted performance of a plan, and why each table is placed as it is.

use rankine_topology::{Node, Rank};
use serde::Serialize;

use super::choice::Choice;
use super::cost::{Load, Parts, RailLists, Reduction};
use super::input::{NonTableMemory, PlanInput};
use super::search::{Restriction, Search};
use crate::placement::{EmbeddingPlan, Exchange, Owner, Placement, RoundCapacity, TablePlan};
use crate::traffic::{KEY_BYTES, LENGTH_BYTES, LinkTraffic, Traffic};

/// Predictions for an iteration of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanReport {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// Samples per iteration, over all ranks.
    pub batch_size: u64,
    /// The machine's name.
    pub machine: String,
    /// The time of the slowest rank, which determines the iteration's.
    pub iteration: TimeParts,
    /// Samples per second, over all ranks.
    pub samples_per_second: f64,
    /// What the slowest rank spends most of its time on.
    pub limit: Limit,
    /// The mean of all ranks' times divided by that of the slowest: 1 if all are equally busy.
    pub balance: f64,
    /// Traffic between ranks to exchange rows, over all ranks.
    pub traffic: Traffic,
    /// Traffic to all-reduce gradients of frequent rows and of dense parameters, over all ranks.
    pub all_reduce: ReductionReport,
    /// Memory of the fullest rank.
    pub memory: MemoryReport,
    /// One per rank.
    pub per_rank: Vec<RankReport>,
    /// One per table.
    pub tables: Vec<TableReport>,
}

/// The parts of an iteration, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeParts {
    /// The total.
    pub total_s: f64,
    /// Operations of the dense part.
    pub dense_s: f64,
    /// Memory traffic of tables and activations.
    pub memory_s: f64,
    /// Rows or pooled bags, within nodes.
    pub exchange_within_s: f64,
    /// Rows or pooled bags, between nodes.
    pub exchange_between_s: f64,
    /// All-reduces of gradients, within nodes.
    pub all_reduce_within_s: f64,
    /// All-reduces of gradients, between nodes.
    pub all_reduce_between_s: f64,
    /// Overheads of matrix products and messages.
    pub latency_s: f64,
    /// Overlap of these parts, to be subtracted from their sum.
    pub hidden_s: f64,
}

/// What limits an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Operations of the dense part.
    DenseCompute,
    /// Memory traffic.
    MemoryBandwidth,
    /// Bytes within nodes.
    LinkWithin,
    /// Bytes between nodes.
    LinkBetween,
    /// The number of messages and matrix products, whatever their size.
    Latency,
    /// The model does not fit.
    MemoryCapacity,
}

impl Limit {
    /// The name in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::DenseCompute => "dense compute",
            Self::MemoryBandwidth => "memory bandwidth",
            Self::LinkWithin => "link within nodes",
            Self::LinkBetween => "link between nodes",
            Self::Latency => "latency",
            Self::MemoryCapacity => "memory capacity",
        }
    }
}

/// Traffic of all-reduces, over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReductionReport {
    /// Elements of gradients and marks.
    pub elements: u64,
    /// How many of them belong to frequent rows, including their marks.
    pub frequent_elements: u64,
    /// Bytes between ranks of one node.
    pub within_bytes: u64,
    /// Bytes between ranks of different nodes.
    pub between_bytes: u64,
}

/// Memory of the fullest rank, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryReport {
    /// Memory of a rank.
    pub available_bytes: u64,
    /// Memory that the fullest rank needs.
    pub needed_bytes: u64,
    /// How much of it is not for tables.
    pub rest_bytes: u64,
    /// The parts of that.
    pub rest: NonTableMemory,
}

/// Predictions for a rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RankReport {
    /// The rank.
    pub rank: Rank,
    /// Its node.
    pub node: Node,
    /// Bytes of tables and their state.
    pub table_bytes: u64,
    /// Bytes of messages, of gradients of frequent rows and of their index.
    pub buffer_bytes: u64,
    /// Bytes of everything else.
    pub rest_bytes: u64,
    /// Seconds of an iteration.
    pub seconds: f64,
    /// How much of that is spent on memory traffic.
    pub memory_s: f64,
    /// Bytes that it requests or serves within its node, whichever is more.
    pub within_bytes: u64,
    /// The same between nodes.
    pub between_bytes: u64,
}

/// Predictions for a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableReport {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// The mean number of ids per sample.
    pub lookups_per_sample: f64,
    /// Distinct rows per batch.
    pub distinct_rows: u64,
    /// Its placement.
    pub placement: Placement,
    /// Its exchange; `None` if it is replicated.
    pub exchange: Option<Exchange>,
    /// The ranks that own it, unless every rank does.
    pub owners: Vec<Rank>,
    /// Rows that every rank stores.
    pub frequent_rows: u64,
    /// The share of ids that name them.
    pub frequent_share: f64,
    /// Bytes of the table and its state, summed over all ranks.
    pub bytes: u64,
    /// The same for the rank that stores most of it.
    pub rank_bytes: u64,
    /// Traffic between ranks for it, over all ranks.
    pub traffic: Traffic,
    /// Elements of its frequent rows that are all-reduced.
    pub reduced_elements: u64,
    /// Why it is placed this way.
    pub reason: String,
    /// Its other possible placements, with all other tables unchanged; the best first.
    pub alternatives: Vec<Alternative>,
}

/// Another placement of a table, with all other tables unchanged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alternative {
    /// Its placement.
    pub placement: Placement,
    /// Its exchange.
    pub exchange: Option<Exchange>,
    /// Number of ranks that would own it, unless every rank would.
    pub owners: usize,
    /// Rows that every rank would store.
    pub frequent_rows: u64,
    /// Whether the job allows it.
    pub allowed: bool,
    /// Whether it would fit into memory.
    pub fits: bool,
    /// Bytes of the table on the rank that would store most of it.
    pub rank_bytes: u64,
    /// Bytes exchanged for it within nodes, over all ranks.
    pub within_bytes: u64,
    /// The same between nodes.
    pub between_bytes: u64,
    /// Bytes that its frequent rows would add to all-reduces, on both kinds of links.
    pub all_reduce_bytes: u64,
    /// Seconds of the iteration.
    pub iteration_s: f64,
}

/// A plan, and its predicted performance.
#[derive(Debug, Clone)]
pub struct PlanOutcome {
    /// The placement of each table.
    pub plan: EmbeddingPlan,
    /// The predictions, and the reasons for each placement.
    pub report: PlanReport,
}

pub(super) fn planned(input: &PlanInput<'_>, search: &Search<'_>, choices: &[Choice]) -> PlanOutcome {
    let context = &search.context;
    let totals = search.load(choices);
    let tables = choices.iter().zip(&input.tables).zip(&search.tables).map(|((choice, table), costs)| {
        let plan = choice.plan(table);
        let crosses = input.topology.nodes() > 1 && !plan.shards.is_empty();
        TablePlan { round: if crosses { round(costs.rail_lists(choice)) } else { plan.round }, ..plan }
    });
    let plan = EmbeddingPlan { topology: input.topology, tables: tables.collect() };
    let (machine, topology) = (input.machine, input.topology);

    let (_, parts) = search.slowest(&totals);
    let common = totals.common(context);
    let per_rank: Vec<_> = topology
        .all_ranks()
        .map(|rank| {
            let load = &totals.ranks[rank.0];
            let parts = totals.parts(rank, &common, machine);
            RankReport {
                rank,
                node: topology.node_of(rank),
                table_bytes: whole(load.table_bytes),
                buffer_bytes: whole(load.buffer_bytes),
                rest_bytes: input.rest.memory.bytes(),
                seconds: parts.total(machine),
                memory_s: parts.memory,
                within_bytes: whole(load.within.asked.max(load.within.served)),
                between_bytes: whole(load.between.asked.max(load.between.served)),
            }
        })
        .collect();
    let total_s = parts.total(machine);
    let mean = per_rank.iter().map(|rank| rank.seconds).sum::<f64>() / per_rank.len() as f64;
    let mut traffic = traffic(&totals);
    traffic.between_nodes.padding_bytes = whole(padding(search, choices));
    let elements = totals.reduced_elements + input.rest.reduced_elements as f64;
    let reduction = Reduction::new(topology, machine, elements);
    let ranks = topology.ranks() as f64;
    let fullest = topology.all_ranks().map(|rank| totals.memory_of(rank, context)).fold(0.0, f64::max);
    let report = PlanReport {
        ranks: topology.ranks(),
        nodes: topology.nodes(),
        batch_size: input.batch_size,
        machine: machine.name.clone(),
        iteration: TimeParts::new(&parts, parts.hidden(machine), total_s),
        samples_per_second: if total_s > 0.0 { input.batch_size as f64 / total_s } else { 0.0 },
        limit: limit(&parts),
        balance: if total_s > 0.0 { mean / total_s } else { 1.0 },
        traffic,
        all_reduce: ReductionReport {
            elements: if topology.ranks() > 1 { whole(elements) } else { 0 },
            frequent_elements: whole(totals.reduced_elements),
            within_bytes: whole(reduction.within_bytes * ranks),
            between_bytes: whole(reduction.between_bytes * ranks),
        },
        memory: MemoryReport {
            available_bytes: machine.memory_bytes,
            needed_bytes: whole(fullest),
            rest_bytes: input.rest.memory.bytes(),
            rest: input.rest.memory,
        },
        per_rank,
        tables: (0..choices.len()).map(|table| table_report(search, choices, &totals, table)).collect(),
    };
    PlanOutcome { plan, report }
}

impl TimeParts {
    fn new(parts: &Parts, hidden_s: f64, total_s: f64) -> Self {
        Self {
            total_s,
            dense_s: parts.dense,
            memory_s: parts.memory,
            exchange_within_s: parts.exchange_within,
            exchange_between_s: parts.exchange_between,
            all_reduce_within_s: parts.reduce_within,
            all_reduce_between_s: parts.reduce_between,
            latency_s: parts.matmul_latency + parts.link_latency,
            hidden_s,
        }
    }
}

fn limit(parts: &Parts) -> Limit {
    let candidates = [
        (Limit::DenseCompute, parts.dense),
        (Limit::MemoryBandwidth, parts.memory),
        (Limit::LinkWithin, parts.exchange_within + parts.reduce_within),
        (Limit::LinkBetween, parts.exchange_between + parts.reduce_between),
        (Limit::Latency, parts.matmul_latency + parts.link_latency),
    ];
    candidates.into_iter().reduce(|most, other| if other.1 > most.1 { other } else { most }).expect("five").0
}

/// Traffic of all requests.
fn traffic(load: &Load) -> Traffic {
    let mut traffic = Traffic::default();
    let (mut within, mut between) = ((0.0, 0.0), (0.0, 0.0));
    for rank in &load.ranks {
        within = (within.0 + rank.within.rows, within.1 + rank.within.asked);
        between = (between.0 + rank.between.rows, between.1 + rank.between.asked);
    }
    let link = |(rows, bytes)| LinkTraffic { rows: whole(rows), bytes: whole(bytes), padding_bytes: 0 };
    traffic.within_nodes = link(within);
    traffic.between_nodes = link(between);
    traffic
}

fn whole(number: f64) -> u64 {
    number.max(0.0).round() as u64
}

fn table_report(search: &Search<'_>, choices: &[Choice], totals: &Load, table: usize) -> TableReport {
    let (costs, choice) = (&search.tables[table], &choices[table]);
    let input = costs.input;
    let load = costs.load(choice);
    let alternatives = alternatives(search, choices, totals, table);
    TableReport {
        name: input.spec.name.clone(),
        rows: input.spec.rows,
        dim: input.spec.dim,
        lookups_per_sample: input.profile.lookups_per_sample(),
        distinct_rows: whole(input.profile.distinct(search.context.batch)),
        placement: choice.placement,
        exchange: exchange_of(choice),
        owners: owners_of(choice, input),
        frequent_rows: costs.frequent_rows(choice),
        frequent_share: costs.frequent_share(choice),
        bytes: whole(load.ranks.iter().map(|rank| rank.table_bytes).sum()),
        rank_bytes: whole(load.ranks.iter().map(|rank| rank.table_bytes).fold(0.0, f64::max)),
        traffic: traffic(&load),
        reduced_elements: whole(load.reduced_elements),
        reason: reason(search, totals, input, &alternatives),
        alternatives,
    }
}

fn exchange_of(choice: &Choice) -> Option<Exchange> {
    (choice.placement != Placement::Replicated).then_some(choice.exchange)
}

fn owners_of(choice: &Choice, input: &super::TableInput<'_>) -> Vec<Rank> {
    let owner = |owner| match owner {
        Owner::Rank(rank) => Some(rank),
        Owner::EveryRank => None,
    };
    match choice.placement {
        Placement::TableWise | Placement::ColumnWise => {
            choice.plan(input).shards.iter().filter_map(|shard| owner(shard.owner)).collect()
        }
        _ => Vec::new(),
    }
}

/// The best of every other kind, with either exchange, whether the job allows it or not.
fn alternatives(search: &Search<'_>, choices: &[Choice], totals: &Load, table: usize) -> Vec<Alternative> {
    let (costs, chosen) = (&search.tables[table], &choices[table]);
    let (topology, machine) = (search.context.topology, search.context.machine);
    if topology.ranks() == 1 {
        return Vec::new();
    }
    let mut others = totals.clone();
    others -= &costs.load(chosen);
    let kinds = Placement::ALL.into_iter().flat_map(|placement| {
        let exchanges = if placement == Placement::Replicated { &Exchange::ALL[..1] } else { &Exchange::ALL };
        exchanges.iter().map(move |&exchange| (placement, exchange))
    });
    let mut found = Vec::new();
    for (placement, exchange) in kinds {
        if placement == chosen.placement && Some(exchange) == exchange_of(chosen).or(Some(Exchange::Rows)) {
            continue;
        }
        let restriction = Restriction { placement: Some(placement), exchange: Some(exchange) };
        let scored = search.every_candidate(table, restriction, &others).into_iter().map(|choice| {
            let load = costs.load(&choice);
            let mut with = others.clone();
            with += &load;
            (search.score(&with), choice, load)
        });
        let best = scored.reduce(|best, other| if other.0.is_less(&best.0) { other } else { best });
        let Some((score, choice, load)) = best else { continue };
        if placement == Placement::Hybrid && choice.split == 0 {
            // With no frequent rows it is row-wise.
            continue;
        }
        let traffic = traffic(&load);
        let reduction = Reduction::new(topology, machine, load.reduced_elements);
        let admits = |wanted: Option<Placement>, exchanged: Option<Exchange>| {
            wanted.is_none_or(|wanted| wanted == placement)
                && (placement == Placement::Replicated || exchanged.is_none_or(|wanted| wanted == exchange))
        };
        found.push(Alternative {
            placement,
            exchange: exchange_of(&choice),
            owners: owners_of(&choice, costs.input).len(),
            frequent_rows: costs.frequent_rows(&choice),
            allowed: admits(costs.input.placement, costs.input.exchange),
            fits: score.fits(),
            rank_bytes: whole(load.ranks.iter().map(|rank| rank.table_bytes).fold(0.0, f64::max)),
            within_bytes: traffic.within_nodes.bytes,
            between_bytes: traffic.between_nodes.bytes,
            all_reduce_bytes: whole(
                (reduction.within_bytes + reduction.between_bytes) * topology.ranks() as f64,
            ),
            iteration_s: score.slowest,
        });
    }
    found.sort_by(|a, b| a.iteration_s.total_cmp(&b.iteration_s));
    found
}

/// Why a table is placed this way, in a sentence.
fn reason(
    search: &Search<'_>,
    totals: &Load,
    input: &super::TableInput<'_>,
    alternatives: &[Alternative],
) -> String {
    if search.context.topology.ranks() == 1 {
        return "there is one rank".into();
    }
    if input.placement.is_some() {
        return "set in the job".into();
    }
    let own = search.score(totals).slowest;
    let described = |other: &Alternative| {
        let exchange = other.exchange.map_or(String::new(), |exchange| format!(" ({})", exchange.name()));
        format!("{}{exchange}", other.placement.name())
    };
    let of = |seconds: f64| format!("{:+.2}%", (seconds / own - 1.0) * 100.0);
    let usable = |other: &&Alternative| other.allowed && other.fits;
    let next = alternatives.iter().find(usable);
    let faster = alternatives.iter().find(|other| other.allowed && !other.fits && other.iteration_s < own);
    let mut text = match next {
        Some(other) if other.iteration_s <= own * (1.0 + 5e-5) => {
            format!("the slowest rank is not affected; {} takes as long", described(other))
        }
        Some(other) => format!("next best is {}, {} per iteration", described(other), of(other.iteration_s)),
        None => "nothing else fits".into(),
    };
    if let Some(other) = faster {
        text += &format!("; {} would be {} but does not fit", described(other), of(other.iteration_s));
    }
    text
}

/// The smallest and largest capacity of a round for a shard.
const ROUND_ITEMS: std::ops::RangeInclusive<usize> = 16..=1 << 20;
/// By how many standard deviations a batch may exceed its expected count.
const ROUND_DEVIATIONS: f64 = 5.0;

/// The capacity of a round between nodes: the expected length, with room for random variation.
fn round(lists: RailLists) -> RoundCapacity {
    let with_room = |length: f64| {
        let items = (length + ROUND_DEVIATIONS * length.sqrt()).ceil() as usize;
        items.clamp(*ROUND_ITEMS.start(), *ROUND_ITEMS.end())
    };
    RoundCapacity { vectors: with_room(lists.vectors), ids: with_room(lists.ids) }
}

/// Bytes of padding of lists along rails, over all ranks: every list of an exchange takes as many rounds as the
/// longest one.
fn padding(search: &Search<'_>, choices: &[Choice]) -> f64 {
    let topology = search.context.topology;
    let pairs = (topology.ranks() * (topology.nodes() - 1)) as f64;
    let vector = 2.0 * search.context.machine.vector_element_bytes as f64;
    let mut padded = 0.0;
    for exchange in Exchange::ALL {
        let all = search.tables.iter().zip(choices).filter(|(_, choice)| choice.exchange == exchange);
        let of_exchange: Vec<_> = all
            .map(|(costs, choice)| {
                let lists = costs.rail_lists(choice);
                (costs, choice, lists, round(lists))
            })
            .collect();
        let rounds = |of: fn(RailLists, RoundCapacity) -> f64| {
            of_exchange.iter().map(|&(.., lists, round)| of(lists, round).ceil()).fold(1.0, f64::max)
        };
        let vector_rounds = rounds(|lists, round| lists.vectors / round.vectors as f64);
        let id_rounds = rounds(|lists, round| lists.ids / round.ids as f64);
        for (costs, choice, _, round) in of_exchange {
            let (vectors, ids) = (vector_rounds * round.vectors as f64, id_rounds * round.ids as f64);
            let keys = match exchange {
                Exchange::Rows => vectors * KEY_BYTES as f64,
                Exchange::Pooled => vectors * LENGTH_BYTES as f64 + ids * costs.input.id_bytes(),
            };
            let shards = costs.shard_columns(choice);
            let capacity: f64 = shards.iter().map(|&columns| keys + vectors * vector * columns as f64).sum();
            let sent: f64 = costs.load(choice).ranks.iter().map(|rank| rank.between.asked).sum();
            padded += (pairs * capacity - sent).max(0.0);
        }
    }
    padded
}
