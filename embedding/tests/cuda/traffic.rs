//! What ranks send each other in a step, counted from the ids of their batches and the placement of the tables.

use std::collections::BTreeSet;

use rankine_embedding::cuda::{Feature, Layout};
use rankine_embedding::{
    EmbeddingPlan, Exchange, LinkTraffic, Optimizer, RankTraffic, Shard, TablePlan, UpdateRule,
};
use rankine_topology::{LocalRank, Node, Rank};

use super::local::Column;

/// Bytes of a key, of the factor of an id, of the length of a part of a bag, and of a square.
const WORD: u64 = 4;

/// Tables over ranks.
pub(crate) struct Placed<'a> {
    pub(crate) plan: &'a EmbeddingPlan,
    pub(crate) layout: &'a Layout,
    pub(crate) optimizers: &'a [Optimizer],
    /// Bytes per element of rows, and of sums of gradients.
    pub(crate) row_bytes: u64,
    pub(crate) sum_bytes: u64,
}

/// Elements of a row as it is sent.
fn elements(columns: usize) -> u64 {
    columns.next_multiple_of(4) as u64
}

impl Placed<'_> {
    /// What the ranks send each other in a step over a batch, in total. Messages between nodes count without padding.
    /// Without an update, `learns` is false.
    pub(crate) fn traffic(&self, columns: &[Vec<Column>], learns: bool) -> RankTraffic {
        let mut all = RankTraffic::default();
        for (table, plan) in self.plan.tables.iter().enumerate() {
            let is_whole = plan.frequent.len() == self.layout.tables()[table].rows;
            if plan.exchange == Exchange::Pooled && !is_whole {
                self.add_bags(&mut all, columns, (table, plan));
                continue;
            }
            let named = self.named(columns, table);
            let shards: &[Shard] = if is_whole { &[] } else { &plan.shards };
            for shard in shards {
                self.add_rows(&mut all, (plan, shard), &named);
            }
            self.add_frequent(&mut all, (table, plan), &named);
            let rowwise = matches!(self.optimizers[table].rule, UpdateRule::RowwiseAdagrad { .. });
            if rowwise && shards.len() > 1 && learns {
                let rows = named.iter().flatten().collect::<BTreeSet<_>>().len();
                self.add_squares(&mut all, shards, rows as u64);
            }
        }
        all
    }

    /// The distinct rows of a table that each rank looks up.
    fn named(&self, columns: &[Vec<Column>], table: usize) -> Vec<BTreeSet<u64>> {
        let of_rank = |columns: &Vec<Column>| {
            self.features_of(table).flat_map(|feature| columns[feature.column].ids.iter().copied()).collect()
        };
        columns.iter().map(of_rank).collect()
    }

    fn features_of(&self, table: usize) -> impl Iterator<Item = &Feature> {
        self.layout.features().iter().filter(move |feature| feature.table == table)
    }

    /// Rows go from the owner along its rail, once per node, then to the ranks that look them up.
    fn add_rows(&self, all: &mut RankTraffic, (plan, shard): (&TablePlan, &Shard), named: &[BTreeSet<u64>]) {
        let topology = self.plan.topology;
        let bytes = WORD + elements(shard.columns.len()) * (self.row_bytes + self.sum_bytes);
        let one = LinkTraffic { rows: 1, bytes, padding_bytes: 0 };
        let owned = |row: &&u64| plan.frequent.index(**row).is_none();
        for (node, ranks) in named.chunks(topology.ranks_per_node()).enumerate() {
            for (local_rank, rows) in ranks.iter().enumerate() {
                for &row in rows.iter().filter(owned) {
                    if topology.local_rank(shard.owner.of(row, topology)) != LocalRank(local_rank) {
                        all.exchange.within_nodes += one;
                    }
                }
            }
            let of_node: BTreeSet<_> = ranks.iter().flatten().collect();
            for &row in of_node.into_iter().filter(owned) {
                if topology.node_of(shard.owner.of(row, topology)) != Node(node) {
                    all.exchange.between_nodes += one;
                }
            }
        }
    }

    /// Each rank sends its sums to all ranks of its node; then each of these sends those of the node to all nodes.
    fn add_frequent(
        &self,
        all: &mut RankTraffic,
        (table, plan): (usize, &TablePlan),
        named: &[BTreeSet<u64>],
    ) {
        let (local_ranks, nodes) = (self.plan.topology.ranks_per_node() as u64, self.plan.topology.nodes());
        let bytes = WORD + elements(self.layout.tables()[table].dim) * self.sum_bytes;
        let frequent = |row: &&u64| plan.frequent.index(**row).is_some();
        for ranks in named.chunks(local_ranks as usize) {
            let rows = ranks.iter().flatten().filter(frequent).count() as u64;
            all.reduction.within_nodes.bytes += (local_ranks - 1) * rows * bytes;
            let rows = ranks.iter().flatten().filter(frequent).collect::<BTreeSet<_>>().len() as u64;
            all.reduction.between_nodes.bytes += (nodes as u64 - 1) * local_ranks * rows * bytes;
        }
    }

    /// Each owner of a row's columns sends one square to the other owners; over several nodes to all ranks of its
    /// node, each of which sends it along its rail.
    fn add_squares(&self, all: &mut RankTraffic, shards: &[Shard], rows: u64) {
        let (local_ranks, nodes) =
            (self.plan.topology.ranks_per_node() as u64, self.plan.topology.nodes() as u64);
        for shard in shards {
            let owners = shards.iter().filter(|other| other.owner != shard.owner).count() as u64;
            let others = if nodes == 1 { owners } else { local_ranks - 1 };
            all.exchange.within_nodes.bytes += others * rows * WORD;
            all.exchange.between_nodes.bytes += (nodes - 1) * local_ranks * rows * WORD;
        }
    }

    /// Parts of bags go along the rail to each node that owns some of their rows, and there to the owners. A vector
    /// comes back for each part, and the bag's gradient follows. Within a node, lengths and vectors are sent for each
    /// sample that there is room for.
    fn add_bags(&self, all: &mut RankTraffic, columns: &[Vec<Column>], (table, plan): (usize, &TablePlan)) {
        let (topology, samples) = (self.plan.topology, self.layout.samples() as u64);
        let (ranks, nodes) = (topology.ranks() as u64, topology.nodes() as u64);
        let others = topology.ranks_per_node() as u64 - 1;
        for feature in self.features_of(table) {
            for shard in &plan.shards {
                let vector = elements(shard.columns.len()) * self.row_bytes;
                let within = &mut all.exchange.within_nodes;
                within.padding_bytes +=
                    ranks * others * ((nodes * samples + 1) * WORD + nodes * samples * vector);
                for (rank, columns) in columns.iter().enumerate() {
                    let (own, local_rank) = (topology.node_of(Rank(rank)), topology.local_rank(Rank(rank)));
                    let Column { offsets, ids, weights } = &columns[feature.column];
                    let id_bytes = WORD + if weights.is_some() { WORD } else { 0 };
                    for bag in offsets.windows(2) {
                        let ids = &ids[bag[0] as usize..bag[1] as usize];
                        let owners: Vec<_> = ids.iter().map(|&row| shard.owner.of(row, topology)).collect();
                        let abroad = owners.iter().map(|&owner| topology.node_of(owner));
                        let abroad: Vec<_> = abroad.filter(|&node| node != own).collect();
                        let forwarded: Vec<_> = owners
                            .iter()
                            .filter(|&&owner| topology.local_rank(owner) != local_rank)
                            .collect();
                        let parts = |sent: usize, parts: usize| {
                            let parts = parts as u64;
                            let bytes = sent as u64 * id_bytes + parts * (WORD + 2 * vector);
                            LinkTraffic { rows: parts, bytes, padding_bytes: 0 }
                        };
                        let nodes = abroad.iter().collect::<BTreeSet<_>>().len();
                        all.exchange.between_nodes += parts(abroad.len(), nodes);
                        let ranks = forwarded.iter().collect::<BTreeSet<_>>().len();
                        all.exchange.within_nodes += parts(forwarded.len(), ranks);
                        all.exchange.within_nodes.padding_bytes -= ranks as u64 * (WORD + vector);
                    }
                }
            }
        }
    }
}
