//! What a rank exchanges with others in training, counted on its GPU.
//!
//! One small kernel per step counts the rows in the rank's lists; kernels that send parts of bags or squares count
//! these themselves. Rows are counted at the rank that looks them up, both what it sends and what it receives for
//! them. So a rank's numbers say little, but their sum over all ranks is what the ranks have sent.

use std::sync::Arc;

use rankine_cuda::kernels::{LinkCounts, RowRange, RowTraffic};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_topology::{LocalRank, Node, Rank};

use crate::cuda::error::Result;
use crate::cuda::exchange::rails::ElementBytes;
use crate::cuda::exchange::route::NodeRoute;
use crate::cuda::layout::Layout;
use crate::cuda::layout::parts::Part;
use crate::traffic::{LinkTraffic, RankTraffic, Traffic};

/// Bytes of a key in a list.
const KEY_BYTES: usize = size_of::<u32>();

/// The counters of a rank, and what they depend on.
#[derive(Debug)]
pub(crate) struct TrafficCounts {
    /// Of the links within the node and between nodes.
    counts: Buffer<LinkCounts>,
    within: Buffer<RowRange>,
    /// Empty with one node.
    between: Buffer<RowRange>,
    /// Bytes per element that travels.
    pub(crate) bytes: ElementBytes,
}

/// Bytes of the messages of fixed size that a rank sends for a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageBytes {
    /// Lengths and vectors of parts of bags.
    pub(crate) within: u64,
    /// All messages; `None` with one node.
    pub(crate) between: Option<u64>,
}

impl TrafficCounts {
    /// Zeros.
    pub(crate) fn new(
        device: &Arc<Device>,
        layout: &Layout,
        rank: Rank,
        bytes: ElementBytes,
    ) -> Result<Self> {
        let topology = layout.topology();
        let within = layout.ranges_within(topology.local_rank(rank), bytes);
        let between = layout.ranges_between(topology.node_of(rank), bytes);
        Ok(Self {
            counts: Buffer::of(device, &[LinkCounts::default(); 2])?,
            within: Buffer::of(device, &within)?,
            between: Buffer::of(device, &between)?,
            bytes,
        })
    }

    /// The counters, for kernels that send something else than rows.
    pub(crate) fn pointer(&self) -> Pointer<LinkCounts> {
        self.counts.pointer()
    }

    /// Enqueues counting what a batch with a route exchanges, except for parts of bags and squares.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::count_traffic`].
    pub(crate) unsafe fn add(&self, lane: &Lane, route: &NodeRoute, messages: MessageBytes) -> Result<()> {
        let within = RowTraffic {
            rows: route.list.pointer(),
            starts: route.starts.pointer(),
            ranges: self.within.pointer(),
            counts: self.counts.pointer(),
            messages: messages.within,
            ranges_count: self.within.len() as u32,
            contained: 0,
        };
        // SAFETY: ranges name lists of the route, which the layout gives as many owners; the caller vouches for the
        // rest.
        unsafe { lane.launch(&within, (1, 1)) }?;
        let Some(messages) = messages.between else { return Ok(()) };
        let between = RowTraffic {
            rows: route.union.pointer(),
            starts: route.union_starts.pointer(),
            ranges: self.between.pointer(),
            counts: self.counts.pointer().element(1),
            messages,
            ranges_count: self.between.len() as u32,
            contained: 1,
        };
        // SAFETY: as above, for the nodes of the union.
        Ok(unsafe { lane.launch(&between, (1, 1)) }?)
    }

    /// Sets all counters to zero, once the lane has finished all enqueued work.
    pub(crate) fn clear(&self, lane: &Lane) -> Result<()> {
        Ok(self.counts.write(lane, &[LinkCounts::default(); 2])?)
    }

    /// Reads the counters, once the lane has finished all enqueued work.
    pub(crate) fn read(&self, lane: &Lane) -> Result<RankTraffic> {
        let counts = self.counts.read(lane)?;
        let exchanged =
            |LinkCounts { rows, bytes, padding, .. }| LinkTraffic { rows, bytes, padding_bytes: padding };
        let reduced = |LinkCounts { reduced, .. }| LinkTraffic { bytes: reduced, ..LinkTraffic::default() };
        let traffic = |of: &dyn Fn(LinkCounts) -> LinkTraffic| Traffic {
            within_nodes: of(counts[0]),
            between_nodes: of(counts[1]),
        };
        Ok(RankTraffic { exchange: traffic(&exchanged), reduction: traffic(&reduced) })
    }
}

impl Layout {
    /// The rows that a rank looks up at other ranks of its node, which may be on the way to their owners; and those
    /// that every rank stores, whose gradients go to all ranks of the node. By owner in keys.
    fn ranges_within(&self, local_rank: LocalRank, bytes: ElementBytes) -> Vec<RowRange> {
        let others = (0..self.ranks).filter(move |&owner| owner != local_rank.0);
        let each_node = |owner| (0..self.nodes).map(move |node| (owner, node * self.span));
        let owned = others.flat_map(each_node).flat_map(|(owner, first)| self.owned(owner, first, bytes));
        merged(owned.chain(self.of_all(self.ranks, self.ranks - 1, bytes)))
    }

    /// The rows that a node looks up at other nodes; and those that every rank stores, whose gradients go to all
    /// nodes. By node.
    fn ranges_between(&self, node: Node, bytes: ElementBytes) -> Vec<RowRange> {
        let others = (0..self.nodes).filter(move |&other| other != node.0);
        let owned = others.flat_map(|other| self.owned(other, 0, bytes));
        merged(owned.chain(self.of_all(self.nodes, self.nodes - 1, bytes)))
    }

    /// The rows of a list with owners, part by part: a key is sent to the owner, a vector comes back, and a sum of
    /// gradients follows the key.
    fn owned(&self, list: usize, first: usize, bytes: ElementBytes) -> impl Iterator<Item = RowRange> {
        let of_row = move |elements: usize| KEY_BYTES + elements * (bytes.row + bytes.sum);
        let is_owned = |part: &Part| !part.is_everywhere();
        self.ranges(is_owned, move |begin, elements| RowRange {
            list: list as u32,
            begin: first as u32 + begin,
            bytes: of_row(elements) as u32,
            ..RowRange::default()
        })
    }

    /// The rows of a list that every rank stores, part by part: a key and a sum of gradients go to each of `others`.
    fn of_all(&self, list: usize, others: usize, bytes: ElementBytes) -> impl Iterator<Item = RowRange> {
        let of_row = move |elements: usize| others * (KEY_BYTES + elements * bytes.sum);
        self.ranges(Part::is_everywhere, move |begin, elements| RowRange {
            list: list as u32,
            begin,
            bytes: of_row(elements) as u32,
            of_all: 1,
            ..RowRange::default()
        })
    }

    /// The ranges of some parts, from where each begins and the elements of its rows.
    fn ranges(
        &self,
        is_one: impl Fn(&Part) -> bool,
        range: impl Fn(u32, usize) -> RowRange,
    ) -> impl Iterator<Item = RowRange> {
        let parts = (0..self.parts.len()).filter(move |&part| is_one(&self.parts[part]));
        parts.map(move |part| {
            let range = range(self.bases[part] as u32, self.filled_dim(part));
            RowRange { end: range.begin + (self.bases[part + 1] - self.bases[part]) as u32, ..range }
        })
    }
}

/// Merges ranges that follow each other in a list and count alike, and extends the outer ones of each list to all
/// numbers, so that the kernel searches for as few ends as possible. `ranges` ascend within each list and have all its
/// rows.
fn merged(ranges: impl Iterator<Item = RowRange>) -> Vec<RowRange> {
    let mut merged = Vec::<RowRange>::new();
    for range in ranges {
        match merged.last_mut().filter(|last| last.list == range.list) {
            Some(last) if (last.bytes, last.of_all) == (range.bytes, range.of_all) => last.end = range.end,
            Some(_) => merged.push(range),
            None => {
                merged.last_mut().into_iter().for_each(|last| last.end = u32::MAX);
                merged.push(RowRange { begin: 0, ..range });
            }
        }
    }
    merged.last_mut().into_iter().for_each(|last| last.end = u32::MAX);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::layout::{Feature, Hotness};
    use crate::dtype::Dtype;
    use crate::placement::{EmbeddingPlan, Exchange, FrequentRows, TablePlan};
    use crate::table::{Pooling, TableSpec};
    use rankine_topology::Topology;

    const BYTES: ElementBytes = ElementBytes { row: 2, sum: 4 };

    fn layout(topology: Topology) -> Layout {
        let table =
            |(rows, dim)| TableSpec { name: "t".into(), rows, dim, dtype: Dtype::Fp32, dynamic: None };
        let tables: Vec<_> = [(50, 8), (30, 1), (21, 13), (40, 4), (6, 16)].map(table).into();
        let feature = |table| Feature { column: 0, table, vector_offset: 0, pooling: Pooling::Sum };
        let features: Vec<_> = (0..tables.len()).map(feature).collect();
        let (ranks, columns) = (topology.ranks(), [Hotness::Fixed(1)]);
        let layout = Layout::new(ranks, 3, 16, &tables, &columns, &features).unwrap();
        let plans = vec![
            TablePlan::row_wise(&tables[0], Exchange::Rows),
            TablePlan::table_wise(&tables[1], Exchange::Rows, Rank(ranks - 1)),
            TablePlan::column_wise(&tables[2], Exchange::Rows, &[0, ranks - 1].map(Rank)),
            TablePlan::hybrid(&tables[3], Exchange::Rows, FrequentRows::listed(vec![2, 0, 39])),
            TablePlan::replicated(&tables[4]),
        ];
        let layout = layout.with_nodes(topology.nodes()).unwrap();
        layout.with_plan(&EmbeddingPlan { topology, tables: plans }).unwrap()
    }

    /// The only range with a row of a list, if there is one.
    fn range_of(ranges: &[RowRange], list: usize, number: u64) -> Option<RowRange> {
        let has = |range: &&RowRange| {
            range.list as usize == list && (range.begin..range.end).contains(&(number as u32))
        };
        let mut found = ranges.iter().filter(has).copied();
        let first = found.next();
        assert_eq!(found.next(), None, "row {number} of list {list} has two ranges");
        first
    }

    #[test]
    fn each_row_that_crosses_a_link_is_in_one_range() {
        for (ranks, nodes) in [(2, 1), (3, 1), (4, 2), (2, 2), (6, 3)] {
            let topology = Topology::new(ranks, nodes).unwrap();
            let (layout, of_node) = (layout(topology), topology.ranks_per_node());
            for rank in topology.all_ranks() {
                let (node, local_rank) = (topology.node_of(rank), topology.local_rank(rank));
                let within = layout.ranges_within(local_rank, BYTES);
                let between = layout.ranges_between(node, BYTES);
                for &(feature, part) in layout.looked_up() {
                    for row in 0..layout.tables()[layout.features()[feature].table].rows {
                        let (owner, number) = layout.locate(part, row);
                        let found = range_of(&within, owner, number).map(|range| (range.of_all, range.bytes));
                        let (at, own) = (number as usize / layout.span(), number % layout.span() as u64);
                        let dim = layout.parts[part].columns.len().next_multiple_of(4) as u32;
                        if owner == of_node {
                            let bytes = |others: usize| others as u32 * (4 + dim * 4);
                            assert_eq!(found, Some((1, bytes(of_node - 1))));
                            let found = range_of(&between, nodes, own).map(|range| range.bytes);
                            assert_eq!(found, Some(bytes(nodes - 1)));
                            continue;
                        }
                        let crosses = Some((0, 4 + dim * (2 + 4)));
                        assert_eq!(found, crosses.filter(|_| owner != local_rank.0));
                        let found = range_of(&between, at, own).map(|range| (range.of_all, range.bytes));
                        assert_eq!(found, crosses.filter(|_| at != node.0));
                    }
                }
            }
        }
    }

    /// Only a change of bytes within a list needs an end to search for.
    #[test]
    fn ranges_that_count_alike_are_one() {
        let range = |list, begin, end, bytes| RowRange { list, begin, end, bytes, of_all: 0 };
        let ranges = [
            range(1, 3, 7, 8),
            range(1, 9, 12, 8),
            range(2, 3, 7, 8),
            range(2, 7, 9, 4),
            range(2, 11, 12, 8),
            range(4, 0, 2, 4),
        ];
        let expected = [
            range(1, 0, u32::MAX, 8),
            range(2, 0, 7, 8),
            range(2, 7, 9, 4),
            range(2, 11, u32::MAX, 8),
            range(4, 0, u32::MAX, 4),
        ];
        assert_eq!(merged(ranges.into_iter()), expected);
        assert_eq!(merged([].into_iter()), []);
    }
}
