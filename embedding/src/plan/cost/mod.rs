//! The cost of a placement for each rank: bytes stored, read and written, and sent and received.
//!
//! All numbers are expectations over batches of a given size, of which each rank has an equal share. Traffic is
//! counted as in [`crate::traffic`], so that it can be compared with a run's counters.

use std::ops::{AddAssign, SubAssign};

use rankine_topology::{LocalRank, Rank, Topology};

use super::choice::Choice;
use super::input::{NonTableLoad, TableInput};
use super::machine::{FrequentSums, Machine};
use crate::cpu::Table;
use crate::dtype::Dtype;
use crate::optimizer::UpdateRule;
use crate::placement::{Exchange, Owner, Placement};
use crate::table::TableSpec;
use crate::traffic::{KEY_BYTES, LENGTH_BYTES};

/// Memory traffic of one distinct row to be found, sorted and merged: its key and its position, in several passes.
const ROUTE_BYTES: f64 = 64.0;
/// Memory of a listed frequent row, and of each row of the table up to the last one: see [`crate::FrequentRows`].
const LISTED_ROW_BYTES: f64 = 8.0;
const INDEXED_ROW_BYTES: f64 = 1.5 / 8.0;

/// An id that an owner pools is taken out of its bag, sent, sorted with those of all ranks, and looked up and updated
/// individually; an id whose row is exchanged is only sorted at the rank it comes from. On four H200s this factor
/// matches bags of dlrm-dcnv2, pooled by rows and by columns.
const POOLED_LOOK_UPS: f64 = 3.0;

/// The first splits to try are apart by one more than their number divided by this.
const SPLIT_STEP_SHARE: usize = 12;

/// What is the same for all tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) topology: Topology,
    pub(super) machine: &'a Machine,
    pub(super) rest: NonTableLoad,
    /// Samples of the batch, of a node and of a rank.
    pub(super) batch: f64,
    pub(super) of_node: f64,
    pub(super) of_rank: f64,
}

impl<'a> Context<'a> {
    pub(super) fn new(topology: Topology, machine: &'a Machine, rest: NonTableLoad, batch_size: u64) -> Self {
        let batch = batch_size as f64;
        let (of_node, of_rank) = (batch / topology.nodes() as f64, batch / topology.ranks() as f64);
        Self { topology, machine, rest, batch, of_node, of_rank }
    }

    /// Returns whether ranks send gradient sums only of those frequent rows that their samples name.
    fn sends_frequent(&self) -> bool {
        self.machine.frequent_sums == FrequentSums::Sent && self.topology.ranks() > 1
    }
}

/// The cost of a table, or of all tables, for one rank and iteration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct RankLoad {
    /// Bytes of rows and their state.
    pub(super) table_bytes: f64,
    /// Bytes of send and receive buffers, and of the gradients of frequent rows.
    pub(super) buffer_bytes: f64,
    /// Bytes read from and written to memory.
    pub(super) memory_traffic: f64,
    pub(super) within: Flow,
    pub(super) between: Flow,
}

/// A rank's exchange over links of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Flow {
    /// Vectors that it requests.
    pub(super) rows: f64,
    /// Bytes of their keys, the vectors and their gradients.
    pub(super) asked: f64,
    /// Bytes of what others request from it.
    pub(super) served: f64,
}

/// The cost of a table, or of all tables.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Load {
    pub(super) ranks: Vec<RankLoad>,
    /// Elements that are all-reduced.
    pub(super) reduced_elements: f64,
    /// Shards that are exchanged.
    pub(super) shards: usize,
    /// Tables whose owners send each other squares of gradients.
    pub(super) sharing_squares: usize,
}

/// Expected numbers, per rank, for the infrequent rows that it owns of a table.
struct OwnedCounts {
    /// Distinct rows that one rank's samples name.
    of_rank: Vec<f64>,
    /// Distinct rows that one node's samples name.
    of_node: Vec<f64>,
    /// Distinct rows of the batch.
    of_batch: Vec<f64>,
    /// Ids per sample.
    lookups: Vec<f64>,
}

/// The longest lists that a rank sends another one along its rail.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RailLists {
    /// Rows, or parts of bags.
    pub(super) vectors: f64,
    /// Ids of parts of bags.
    pub(super) ids: f64,
}

/// The basis of a table's costs, independent of its placement.
#[derive(Debug)]
pub(super) struct TableCosts<'a> {
    pub(super) input: &'a TableInput<'a>,
    context: Context<'a>,
    /// One per class of the profile, each including all later classes, and one for the rows after all classes.
    of_rank: Vec<f64>,
    of_node: Vec<f64>,
    of_batch: Vec<f64>,
    lookups: Vec<f64>,
}

/// Bytes of `rows` rows with `columns` columns of a table whose weights have a type, including state.
pub(super) fn table_bytes(
    machine: &Machine,
    dtype: Dtype,
    rows: u64,
    columns: usize,
    rule: UpdateRule,
) -> f64 {
    let part = TableSpec { name: String::new(), rows, dim: columns, dtype: Dtype::Fp32, dynamic: None };
    let Machine { table_element_bytes, narrow_tables, .. } = *machine;
    let bytes = Table::bytes(&part, rule) as f64 / 4.0 * table_element_bytes as f64;
    let narrower = table_element_bytes.saturating_sub(dtype.bytes() as u64);
    if narrow_tables { bytes - (rows * columns as u64 * narrower) as f64 } else { bytes }
}

impl<'a> TableCosts<'a> {
    pub(super) fn new(input: &'a TableInput<'a>, context: Context<'a>) -> Self {
        let distinct = |samples| input.profile.distinct_after(0, samples);
        Self {
            input,
            context,
            of_rank: distinct(context.of_rank),
            of_node: distinct(context.of_node),
            of_batch: distinct(context.batch),
            lookups: input.profile.lookups_after(),
        }
    }

    /// Bytes of `rows` rows with `columns` columns of the table, including state.
    pub(super) fn bytes(&self, rows: u64, columns: usize, rule: UpdateRule) -> f64 {
        table_bytes(self.context.machine, self.input.spec.dtype, rows, columns, rule)
    }

    /// Bytes of the memory of a rank for `rows` rows with `columns` columns that it owns.
    fn rank_bytes(&self, rows: u64, columns: usize) -> f64 {
        let rows = self.input.device_rows.map_or(rows, |device_rows| rows.min(device_rows));
        self.bytes(rows, columns, self.input.rule)
    }

    /// Bytes of a row with `columns` columns, including state.
    fn row_bytes(&self, columns: usize) -> f64 {
        self.bytes(1, columns, self.input.rule)
    }

    /// The shards of a choice: number of columns, and owner.
    fn shards(&self, choice: &Choice) -> Vec<(usize, Owner)> {
        match choice.placement {
            Placement::Replicated => Vec::new(),
            Placement::Hybrid | Placement::RowWise => vec![(self.input.spec.dim, Owner::EveryRank)],
            Placement::TableWise | Placement::ColumnWise => {
                let plan = choice.plan(self.input);
                plan.shards.into_iter().map(|shard| (shard.columns.len(), shard.owner)).collect()
            }
        }
    }

    /// Frequent rows of a choice.
    pub(super) fn frequent_rows(&self, choice: &Choice) -> u64 {
        match choice.placement {
            Placement::Replicated => self.input.spec.rows,
            _ => self.input.profile.rows_before(choice.split),
        }
    }

    /// The share of ids that name frequent rows.
    pub(super) fn frequent_share(&self, choice: &Choice) -> f64 {
        let all = self.lookups[0];
        match choice.placement {
            Placement::Replicated => 1.0,
            _ if all == 0.0 => 0.0,
            _ => 1.0 - self.lookups[choice.split] / all,
        }
    }

    /// The table's cost for every rank.
    pub(super) fn load(&self, choice: &Choice) -> Load {
        let mut load =
            Load { ranks: vec![RankLoad::default(); self.context.topology.ranks()], ..Load::default() };
        self.add_frequent(choice, &mut load);
        let shards = self.shards(choice);
        for &(columns, owner) in &shards {
            let owned = self.owned(choice.split, owner);
            match choice.exchange {
                Exchange::Rows => self.add_rows(&owned, columns, &mut load.ranks),
                Exchange::Pooled => self.add_pooled(&owned, columns, &mut load.ranks),
            }
            self.add_owned(&owned, columns, owner, &mut load.ranks);
        }
        load.shards = shards.len();
        let rowwise = self.input.rule.is_rowwise();
        if shards.len() > 1 && rowwise {
            self.add_squares(choice, shards.len(), &mut load);
        }
        for rank in &mut load.ranks {
            for flow in [rank.within, rank.between] {
                rank.buffer_bytes += flow.asked + flow.served;
            }
        }
        load
    }

    /// The replica of the frequent rows: looked up and summed by each rank separately, then all-reduced.
    fn add_frequent(&self, choice: &Choice, load: &mut Load) {
        let Context { machine, of_rank, topology, .. } = self.context;
        let rows = self.frequent_rows(choice);
        if rows == 0 {
            return;
        }
        let dim = self.input.spec.dim;
        let of_frequent = |after: &[f64]| match choice.placement {
            Placement::Replicated => after[0],
            _ => after[0] - after[choice.split],
        };
        let lookups = of_rank * of_frequent(&self.lookups);
        let (named, updated) = (of_frequent(&self.of_rank), of_frequent(&self.of_batch));
        let (table, vector) = (machine.table_element_bytes as f64, machine.vector_element_bytes as f64);
        let elements = self.reduced_elements(choice);
        let mut each = RankLoad {
            table_bytes: self.rank_bytes(rows, dim),
            // Read from memory once, and from the cache for each look-up; summed from the vectors' gradients;
            // updated.
            memory_traffic: (2.0 * lookups * vector + named * table) * dim as f64
                + lookups * machine.lookup_bytes
                + updated * 2.0 * self.row_bytes(dim),
            ..RankLoad::default()
        };
        if choice.placement != Placement::Replicated {
            each.buffer_bytes +=
                rows as f64 * LISTED_ROW_BYTES + self.input.spec.rows as f64 * INDEXED_ROW_BYTES;
        }
        if self.context.sends_frequent() {
            // To each other rank of the node; and the node's sums to each other node, along each rail.
            let named_of_node = of_frequent(&self.of_node);
            let (peers, nodes) = ((topology.ranks_per_node() - 1) as f64, (topology.nodes() - 1) as f64);
            let bytes = KEY_BYTES as f64 + vector * dim as f64;
            let flow = |rows: f64| Flow { rows, asked: rows * bytes, served: rows * bytes };
            each.within += flow(peers * named);
            each.between += flow(nodes * named_of_node);
            // Written to all, and read from all.
            let moved = (peers + 1.0) * named + if nodes > 0.0 { (nodes + 1.0) * named_of_node } else { 0.0 };
            each.memory_traffic += 2.0 * moved * (vector * dim as f64 + ROUTE_BYTES);
        } else if topology.ranks() > 1 {
            let reduced = machine.reduction_element_bytes as f64 * elements;
            each.buffer_bytes += reduced;
            // Cleared, written where rows are named, read and written by the all-reduce.
            each.memory_traffic += 3.0 * reduced;
            load.reduced_elements += elements;
        }
        load.ranks.iter_mut().for_each(|rank| *rank += each);
    }

    /// Elements of its frequent rows that are summed with the dense gradients: a vector and a mark per row.
    fn reduced_elements(&self, choice: &Choice) -> f64 {
        if self.context.sends_frequent() {
            return 0.0;
        }
        (self.frequent_rows(choice) * (self.input.spec.dim as u64 + 1)) as f64
    }

    /// What each rank owns of the rows after a split.
    fn owned(&self, split: usize, owner: Owner) -> OwnedCounts {
        let topology = self.context.topology;
        let ranks = topology.ranks();
        let spread = |after: &[f64]| -> Vec<f64> {
            let Owner::EveryRank = owner else {
                return topology
                    .all_ranks()
                    .map(|rank| if owner == Owner::Rank(rank) { after[split] } else { 0.0 })
                    .collect();
            };
            // Rows that are known individually have a definite owner; the others are spread evenly.
            let mut of_ranks = vec![0.0; ranks];
            let mut rest = after[split];
            for (class, number) in self.input.profile.classes().iter().zip(0..).skip(split) {
                let Some(row) = class.row else { break };
                let of_class = after[number] - after[number + 1];
                of_ranks[owner.of(row, topology).0] += of_class;
                rest -= of_class;
            }
            of_ranks.iter_mut().for_each(|of_rank| *of_rank += rest.max(0.0) / ranks as f64);
            of_ranks
        };
        OwnedCounts {
            of_rank: spread(&self.of_rank),
            of_node: spread(&self.of_node),
            of_batch: spread(&self.of_batch),
            lookups: spread(&self.lookups),
        }
    }

    /// Distinct rows: each rank requests them from its node's ranks on the owners' rails, and these along their rails.
    fn add_rows(&self, owned: &OwnedCounts, columns: usize, ranks: &mut [RankLoad]) {
        let Context { topology, machine, of_rank, .. } = self.context;
        let (nodes, per_node) = (topology.nodes(), topology.ranks_per_node());
        let vector = machine.vector_element_bytes as f64 * columns as f64;
        let bytes = KEY_BYTES as f64 + 2.0 * vector;
        let of_local_rank = |local_rank: LocalRank, of: &[f64]| -> f64 {
            topology.all_nodes().map(|node| of[topology.rank(node, local_rank).0]).sum()
        };
        let of_local_ranks: Vec<_> =
            topology.local_ranks().map(|local_rank| of_local_rank(local_rank, &owned.of_rank)).collect();
        let on_rails: Vec<_> =
            topology.local_ranks().map(|local_rank| of_local_rank(local_rank, &owned.of_node)).collect();
        let all: f64 = of_local_ranks.iter().sum();
        let lookups: f64 = owned.lookups.iter().sum();
        for (rank, load) in ranks.iter_mut().enumerate() {
            let local_rank = topology.local_rank(Rank(rank)).0;
            let within = (all - of_local_ranks[local_rank]).max(0.0);
            let between = (on_rails[local_rank] - owned.of_node[rank]).max(0.0);
            let served_within = (per_node - 1) as f64 * of_local_ranks[local_rank];
            let served_between = (nodes - 1) as f64 * owned.of_node[rank];
            load.within += Flow { rows: within, asked: within * bytes, served: served_within * bytes };
            load.between += Flow { rows: between, asked: between * bytes, served: served_between * bytes };
            // Vectors are added to bags and bags' gradients to rows; what is sent is read, what is received written.
            let moved = within + between + served_within + served_between;
            load.memory_traffic += of_rank * lookups * (2.0 * vector + machine.lookup_bytes)
                + moved * (2.0 * vector + ROUTE_BYTES);
        }
    }

    /// Pooled bags: each rank requests a bag along its rail once per node, and there within the node once per rank.
    fn add_pooled(&self, owned: &OwnedCounts, columns: usize, ranks: &mut [RankLoad]) {
        let Context { topology, machine, of_rank, batch, .. } = self.context;
        let (nodes, per_node) = (topology.nodes(), topology.ranks_per_node());
        let vector = machine.vector_element_bytes as f64 * columns as f64;
        let bytes = LENGTH_BYTES as f64 + 2.0 * vector;
        let id = self.input.id_bytes();
        let all = self.lookups[0].max(f64::MIN_POSITIVE);
        // Bags per sample, over all features, that have an id owned by a rank or node with this many look-ups.
        let hits =
            |lookups: f64| -> f64 { self.input.features.iter().map(|bags| bags.hit(lookups / all)).sum() };
        let mut known = (f64::NAN, 0.0);
        let hits_of_ranks: Vec<_> = owned
            .lookups
            .iter()
            .map(|&lookups| {
                // Most ranks own as much as the one before.
                if lookups != known.0 {
                    known = (lookups, hits(lookups));
                }
                known.1
            })
            .collect();
        let of_nodes: Vec<f64> = topology
            .all_nodes()
            .map(|node| topology.local_ranks().map(|p| owned.lookups[topology.rank(node, p).0]).sum())
            .collect();
        let hits_of_nodes: Vec<_> = of_nodes.iter().map(|&lookups| hits(lookups)).collect();
        let (ids, hit_nodes): (f64, f64) = (of_nodes.iter().sum(), hits_of_nodes.iter().sum());
        // What a rank receives to forward within its node comes from its whole rail.
        let of_rail = of_rank * nodes as f64;
        for (rank, load) in ranks.iter_mut().enumerate() {
            let (node, table) = (topology.node_of(Rank(rank)).0, machine.table_element_bytes as f64);
            let first = node * per_node;
            let here = first..first + per_node;
            let hit_here: f64 = hits_of_ranks[here].iter().sum();
            let within = of_rail * (hit_here - hits_of_ranks[rank]).max(0.0);
            let within_ids = of_rail * (of_nodes[node] - owned.lookups[rank]).max(0.0);
            let between = of_rank * (hit_nodes - hits_of_nodes[node]).max(0.0);
            let between_ids = of_rank * (ids - of_nodes[node]).max(0.0);
            let peers = (per_node - 1) as f64 * of_rail;
            let (served_within, served_within_ids) =
                (peers * hits_of_ranks[rank], peers * owned.lookups[rank]);
            let others = (nodes - 1) as f64 * of_rank;
            let (served_between, served_between_ids) =
                (others * hits_of_nodes[node], others * of_nodes[node]);
            load.within += Flow {
                rows: within,
                asked: within * bytes + within_ids * id,
                served: served_within * bytes + served_within_ids * id,
            };
            load.between += Flow {
                rows: between,
                asked: between * bytes + between_ids * id,
                served: served_between * bytes + served_between_ids * id,
            };
            let moved = within + between + served_within + served_between;
            let ids_moved = within_ids + between_ids + served_within_ids + served_between_ids;
            let pooled = batch * owned.lookups[rank];
            load.memory_traffic += moved * 2.0 * vector
                + ids_moved * 2.0 * id
                + pooled * (columns as f64 * table + vector + POOLED_LOOK_UPS * machine.lookup_bytes);
        }
    }

    /// Rows that a rank owns: stored, read for requests, and updated once.
    fn add_owned(&self, owned: &OwnedCounts, columns: usize, owner: Owner, ranks: &mut [RankLoad]) {
        let row_bytes = self.row_bytes(columns);
        let weights = (columns as u64 * self.context.machine.table_element_bytes) as f64;
        for (rank, load) in ranks.iter_mut().enumerate() {
            let rows = owner.rows_at(Rank(rank), self.input.spec.rows, self.context.topology);
            load.table_bytes += self.rank_bytes(rows, columns);
            load.memory_traffic += owned.of_batch[rank] * (weights + 2.0 * row_bytes + ROUTE_BYTES);
        }
    }

    /// Row-wise Adagrad over columns: owners send each other one number per distinct row of the batch.
    fn add_squares(&self, choice: &Choice, shards: usize, load: &mut Load) {
        let topology = self.context.topology;
        let owners = &choice.owners[..shards];
        let bytes = 4.0 * self.of_batch[0];
        for &owner in owners {
            let same_node = |&&other: &&Rank| topology.node_of(other) == topology.node_of(owner);
            let here = owners.iter().filter(same_node).count();
            let (within, between) = ((here - 1) as f64 * bytes, (shards - here) as f64 * bytes);
            load.ranks[owner.0].within += Flow { rows: 0.0, asked: within, served: within };
            load.ranks[owner.0].between += Flow { rows: 0.0, asked: between, served: between };
        }
        load.sharing_squares = 1;
    }

    /// The longest lists that are sent along a rail for a choice.
    pub(super) fn rail_lists(&self, choice: &Choice) -> RailLists {
        let Context { topology, of_rank, .. } = self.context;
        let mut longest = RailLists::default();
        for (_, owner) in self.shards(choice) {
            let owned = self.owned(choice.split, owner);
            let lists = match choice.exchange {
                Exchange::Rows => {
                    RailLists { vectors: owned.of_node.iter().copied().fold(0.0, f64::max), ids: 0.0 }
                }
                Exchange::Pooled => {
                    let of_nodes = owned.lookups.chunks(topology.ranks_per_node());
                    let ids = of_nodes.map(|ranks| ranks.iter().sum()).fold(0.0, f64::max);
                    let probability = ids / self.lookups[0].max(f64::MIN_POSITIVE);
                    let hits: f64 = self.input.features.iter().map(|bags| bags.hit(probability)).sum();
                    RailLists { vectors: of_rank * hits, ids: of_rank * ids }
                }
            };
            longest.vectors = longest.vectors.max(lists.vectors);
            longest.ids = longest.ids.max(lists.ids);
        }
        longest
    }

    /// Columns of each shard of a choice.
    pub(super) fn shard_columns(&self, choice: &Choice) -> Vec<usize> {
        self.shards(choice).into_iter().map(|(columns, _)| columns).collect()
    }

    /// The fastest split of a hybrid choice, assuming that all ranks own equally much.
    pub(super) fn best_split(&self, exchange: Exchange) -> usize {
        let Context { machine, topology, .. } = self.context;
        let time = |split: &usize| {
            let choice = Choice::hybrid(exchange, *split);
            let load = self.uniform_load(&choice);
            let links = [(load.within, machine.within_nodes), (load.between, machine.between_nodes)];
            let exchanged: f64 = links.iter().map(|(flow, link)| flow.asked / link.bytes_per_s).sum();
            let reduced = Reduction::new(topology, machine, self.reduced_elements(&choice));
            load.memory_traffic / machine.memory_bytes_per_s + exchanged + reduced.seconds(machine)
        };
        let best = |splits: &mut dyn Iterator<Item = usize>| {
            let timed = splits.map(|split| (time(&split), split));
            timed.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0, |(_, split)| split)
        };
        // First some splits, further apart the later they come; then all splits next to the best of these.
        let end = self.input.profile.splits().end;
        let coarse = std::iter::successors(Some(0), |&split| Some(split + 1 + split / SPLIT_STEP_SHARE));
        let coarse: Vec<_> = coarse.take_while(|&split| split < end).chain([end - 1]).collect();
        let near = best(&mut coarse.iter().copied());
        let at = coarse.partition_point(|&split| split < near);
        let (from, to) = (coarse[at.saturating_sub(1)], coarse[(at + 1).min(coarse.len() - 1)]);
        best(&mut (from..=to))
    }

    /// The cost of a row-wise or hybrid choice for a rank if all ranks owned equally much.
    fn uniform_load(&self, choice: &Choice) -> RankLoad {
        let topology = self.context.topology;
        let ranks = topology.ranks();
        let each = |after: &[f64]| vec![after[choice.split] / ranks as f64; ranks];
        let owned = OwnedCounts {
            of_rank: each(&self.of_rank),
            of_node: each(&self.of_node),
            of_batch: each(&self.of_batch),
            lookups: each(&self.lookups),
        };
        let dim = self.input.spec.dim;
        let mut load = Load { ranks: vec![RankLoad::default(); 1], ..Load::default() };
        self.add_frequent(choice, &mut load);
        match choice.exchange {
            Exchange::Rows => self.add_rows(&owned, dim, &mut load.ranks),
            Exchange::Pooled => self.add_pooled(&owned, dim, &mut load.ranks),
        }
        self.add_owned(&owned, dim, Owner::EveryRank, &mut load.ranks);
        load.ranks[0]
    }
}

/// What each rank sends to all-reduce some elements, in two levels.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reduction {
    pub(super) within_bytes: f64,
    pub(super) between_bytes: f64,
}

impl Reduction {
    pub(super) fn new(topology: Topology, machine: &Machine, elements: f64) -> Self {
        let (nodes, per_node) = (topology.nodes() as f64, topology.ranks_per_node() as f64);
        let bytes = elements * machine.reduction_element_bytes as f64;
        Self {
            within_bytes: 2.0 * bytes * (per_node - 1.0) / per_node,
            between_bytes: 2.0 * bytes / per_node * (nodes - 1.0) / nodes,
        }
    }

    pub(super) fn within_s(&self, machine: &Machine) -> f64 {
        self.within_bytes / (machine.within_nodes.bytes_per_s * machine.within_nodes.reduction_efficiency)
    }

    pub(super) fn between_s(&self, machine: &Machine) -> f64 {
        self.between_bytes / (machine.between_nodes.bytes_per_s * machine.between_nodes.reduction_efficiency)
    }

    pub(super) fn seconds(&self, machine: &Machine) -> f64 {
        self.within_s(machine) + self.between_s(machine)
    }
}

/// The parts of a rank's iteration, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Parts {
    pub(super) dense: f64,
    pub(super) memory: f64,
    pub(super) exchange_within: f64,
    pub(super) exchange_between: f64,
    pub(super) reduce_within: f64,
    pub(super) reduce_between: f64,
    pub(super) matmul_latency: f64,
    pub(super) link_latency: f64,
}

impl Parts {
    /// Time spent computing, and time spent communicating.
    fn sides(&self) -> (f64, f64) {
        let links = self.exchange_within + self.exchange_between + self.reduce_within + self.reduce_between;
        (self.dense + self.matmul_latency + self.memory, links + self.link_latency)
    }

    /// Time that overlaps with something longer.
    pub(super) fn hidden(&self, machine: &Machine) -> f64 {
        let (compute, communicate) = self.sides();
        machine.overlap * compute.min(communicate)
    }

    pub(super) fn total(&self, machine: &Machine) -> f64 {
        let (compute, communicate) = self.sides();
        compute + communicate - self.hidden(machine)
    }
}

impl Load {
    /// The load of no table.
    pub(super) fn none(context: &Context<'_>) -> Self {
        Self { ranks: vec![RankLoad::default(); context.topology.ranks()], ..Self::default() }
    }

    /// The part of the time that is the same for all ranks, to which a rank's flows and memory traffic are added.
    pub(super) fn common(&self, context: &Context<'_>) -> Parts {
        let Context { machine, topology, rest, .. } = context;
        let elements = self.reduced_elements + rest.reduced_elements as f64;
        let reduction = Reduction::new(*topology, machine, elements);
        let links = [
            (topology.ranks_per_node() > 1, machine.within_nodes),
            (topology.nodes() > 1, machine.between_nodes),
        ];
        // Keys, vectors and gradients, and squares; an all-reduce scatters and gathers.
        let exchanges = if self.shards > 0 { 3.0 } else { 0.0 };
        let exchanges = exchanges + if self.sharing_squares > 0 { 1.0 } else { 0.0 };
        let latencies = links.iter().filter(|(there, _)| *there);
        Parts {
            dense: rest.flops / machine.flops,
            memory: rest.memory_traffic_bytes / machine.memory_bytes_per_s,
            matmul_latency: rest.matmuls as f64 * machine.matmul_latency_s,
            reduce_within: reduction.within_s(machine),
            reduce_between: reduction.between_s(machine),
            link_latency: latencies
                .map(|(_, link)| exchanges * link.latency_s + link.reduction_latency_s)
                .sum::<f64>()
                + self.shards as f64 * machine.shard_latency_s,
            exchange_within: 0.0,
            exchange_between: 0.0,
        }
    }

    /// The parts of a rank's time.
    pub(super) fn parts(&self, rank: Rank, common: &Parts, machine: &Machine) -> Parts {
        let load = &self.ranks[rank.0];
        Parts {
            memory: common.memory + load.memory_traffic / machine.memory_bytes_per_s,
            exchange_within: load.within.asked.max(load.within.served) / machine.within_nodes.bytes_per_s,
            exchange_between: load.between.asked.max(load.between.served) / machine.between_nodes.bytes_per_s,
            ..*common
        }
    }

    /// Bytes that a rank needs, for tables and everything else.
    pub(super) fn memory_of(&self, rank: Rank, context: &Context<'_>) -> f64 {
        let load = &self.ranks[rank.0];
        load.table_bytes + load.buffer_bytes + context.rest.memory.bytes() as f64
    }

    /// Bytes that ranks need beyond what they have.
    pub(super) fn excess(&self, context: &Context<'_>) -> f64 {
        let memory = context.machine.memory_bytes as f64;
        Rank::first(self.ranks.len()).map(|rank| (self.memory_of(rank, context) - memory).max(0.0)).sum()
    }
}

impl AddAssign for RankLoad {
    fn add_assign(&mut self, other: Self) {
        self.table_bytes += other.table_bytes;
        self.buffer_bytes += other.buffer_bytes;
        self.memory_traffic += other.memory_traffic;
        self.within += other.within;
        self.between += other.between;
    }
}

impl AddAssign for Flow {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.asked += other.asked;
        self.served += other.served;
    }
}

impl AddAssign<&Load> for Load {
    fn add_assign(&mut self, other: &Self) {
        self.ranks.iter_mut().zip(&other.ranks).for_each(|(own, other)| *own += *other);
        self.reduced_elements += other.reduced_elements;
        self.shards += other.shards;
        self.sharing_squares += other.sharing_squares;
    }
}

impl SubAssign<&Load> for Load {
    fn sub_assign(&mut self, other: &Self) {
        for (own, other) in self.ranks.iter_mut().zip(&other.ranks) {
            own.table_bytes -= other.table_bytes;
            own.buffer_bytes -= other.buffer_bytes;
            own.memory_traffic -= other.memory_traffic;
            for (own, other) in [(&mut own.within, other.within), (&mut own.between, other.between)] {
                own.rows -= other.rows;
                own.asked -= other.asked;
                own.served -= other.served;
            }
        }
        self.reduced_elements -= other.reduced_elements;
        self.shards -= other.shards;
        self.sharing_squares -= other.sharing_squares;
    }
}

#[cfg(test)]
mod tests;
