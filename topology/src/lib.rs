//! The processes, nodes and ranks of a job. Each is numbered from 0 and has a type, so that none is taken for another.
//! A number of them, such as how many ranks there are, is a `usize`.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The most ranks, and processes, of a job.
pub const RANKS_MAX: usize = 4096;

/// Declares the type of a number.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub usize);

        impl $name {
            /// The first `count` of them, from 0 on.
            pub fn first(count: usize) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
                (0..count).map(Self)
            }

            /// The one that is `count` after this.
            pub fn plus(self, count: usize) -> Self {
                Self(self.0 + count)
            }
        }

        /// The number alone.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

numbered! {
    /// An operating-system process of a job; it has one rank or several. Launchers call this number a rank.
    Process
}

numbered! {
    /// A process's number among the processes of its host. Launchers call it a local rank.
    LocalProcess
}

numbered! {
    /// A computer, or a part of one that a job treats as a node. Its ranks access each other's memory.
    Node
}

numbered! {
    /// A worker of a job: one GPU, or one share of a CPU's threads.
    Rank
}

numbered! {
    /// A rank's number within its node.
    LocalRank
}

/// Ranks, numbered node by node: ranks `0..p` are on node 0, `p..2p` on node 1, and so on.
///
/// Two groups of ranks matter to a rank: those of its own node, and those with its local rank on all nodes, its
/// *rail*. Data for a rank of another node is sent along a rail, and changes local ranks only within a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    ranks: usize,
    nodes: usize,
}

/// Why ranks and nodes cannot form a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// There is no rank, or no node.
    #[error("there must be at least one rank and one node")]
    Empty,
    /// Nodes would have unequal numbers of ranks.
    #[error(
        "{ranks} {} cannot be divided evenly among {nodes} nodes: use a multiple of {nodes} ranks",
        if *ranks == 1 { "rank" } else { "ranks" }
    )]
    Uneven {
        /// Number of ranks.
        ranks: usize,
        /// Nodes.
        nodes: usize,
    },
}

impl Topology {
    /// One rank, which has no peers.
    pub const ONE: Self = Self { ranks: 1, nodes: 1 };

    /// `ranks` ranks in all, equally many on each of `nodes` nodes.
    ///
    /// # Errors
    /// [`TopologyError`] if that is impossible.
    pub fn new(ranks: usize, nodes: usize) -> Result<Self, TopologyError> {
        if ranks == 0 || nodes == 0 {
            return Err(TopologyError::Empty);
        }
        if !ranks.is_multiple_of(nodes) {
            return Err(TopologyError::Uneven { ranks, nodes });
        }
        Ok(Self { ranks, nodes })
    }

    /// Number of ranks.
    pub fn ranks(self) -> usize {
        self.ranks
    }

    /// Number of nodes.
    pub fn nodes(self) -> usize {
        self.nodes
    }

    /// Number of ranks per node.
    pub fn ranks_per_node(self) -> usize {
        self.ranks / self.nodes
    }

    /// All ranks, in order.
    pub fn all_ranks(self) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator + Clone {
        Rank::first(self.ranks)
    }

    /// All nodes, in order.
    pub fn all_nodes(self) -> impl DoubleEndedIterator<Item = Node> + ExactSizeIterator + Clone {
        Node::first(self.nodes)
    }

    /// The local ranks of each node, in order.
    pub fn local_ranks(self) -> impl DoubleEndedIterator<Item = LocalRank> + ExactSizeIterator + Clone {
        LocalRank::first(self.ranks_per_node())
    }

    /// The node of a rank.
    pub fn node_of(self, rank: Rank) -> Node {
        Node(rank.0 / self.ranks_per_node())
    }

    /// A rank's number within its node.
    pub fn local_rank(self, rank: Rank) -> LocalRank {
        LocalRank(rank.0 % self.ranks_per_node())
    }

    /// The rank with a given local rank on a node.
    pub fn rank(self, node: Node, local_rank: LocalRank) -> Rank {
        NodeRanks { node, count: self.ranks_per_node() }.rank(local_rank)
    }

    /// The ranks of a rank's node, including itself, in the order of local ranks.
    pub fn node_group(self, rank: Rank) -> Vec<Rank> {
        self.local_ranks().map(|local_rank| self.rank(self.node_of(rank), local_rank)).collect()
    }

    /// The ranks of a rank's rail, including itself, in the order of nodes.
    pub fn rail_group(self, rank: Rank) -> Vec<Rank> {
        self.all_nodes().map(|node| self.rank(node, self.local_rank(rank))).collect()
    }

    /// The part of `len` items that belongs to a rank: one contiguous range each, as even as possible; some are empty
    /// if there are fewer items than ranks.
    pub fn share(self, len: usize, rank: Rank) -> Range<usize> {
        split_range(0..len, self.ranks, rank.0)
    }

    /// The part of `len` elements that only the ranks of a rank's rail share when every node sums them: one
    /// contiguous range per local rank.
    pub fn rail_part(self, len: usize, rank: Rank) -> Range<usize> {
        split_range(0..len, self.ranks_per_node(), self.local_rank(rank).0)
    }

    /// Out of `len` elements that all ranks of a rank's rail have, those that it is responsible for.
    pub fn share_of_rail(self, len: usize, rank: Rank) -> Range<usize> {
        split_range(0..len, self.nodes, self.node_of(rank).0)
    }

    /// The part of `len` elements whose sum over all ranks a rank computes: a piece of its [`Topology::rail_part`].
    pub fn part(self, len: usize, rank: Rank) -> Range<usize> {
        split_range(self.rail_part(len, rank), self.nodes, self.node_of(rank).0)
    }
}

/// The ranks of one node, which are numbered after those of the nodes before it; all nodes have equally many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRanks {
    /// The node.
    pub node: Node,
    /// The number of its ranks.
    pub count: usize,
}

impl NodeRanks {
    /// The rank with a local rank.
    pub fn rank(self, local_rank: LocalRank) -> Rank {
        Rank(self.node.0 * self.count + local_rank.0)
    }
}

/// One of `pieces` pieces of a range, as even as possible.
pub fn split_range(range: Range<usize>, pieces: usize, piece: usize) -> Range<usize> {
    let at = |piece: usize| range.start + (range.len() as u128 * piece as u128 / pieces as u128) as usize;
    at(piece)..at(piece + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbered_node_by_node() {
        let topology = Topology::new(6, 2).unwrap();
        assert_eq!((topology.node_of(Rank(4)), topology.local_rank(Rank(4))), (Node(1), LocalRank(1)));
        assert_eq!(topology.node_group(Rank(4)), [3, 4, 5].map(Rank));
        assert_eq!(topology.rail_group(Rank(4)), [1, 4].map(Rank));
        assert_eq!(
            topology.all_ranks().map(|rank| topology.share(8, rank).len()).collect::<Vec<_>>(),
            [1, 1, 2, 1, 1, 2]
        );
        assert_eq!(topology.all_ranks().map(|rank| topology.share(2, rank).len()).sum::<usize>(), 2);
    }

    #[test]
    fn parts_of_ranks_are_runs_that_cover_everything_once() {
        let topology = Topology::new(6, 3).unwrap();
        let runs = |of: &dyn Fn(Rank) -> Range<usize>| -> Vec<_> { topology.all_ranks().map(of).collect() };
        // Ranks 0, 2 and 4 have local rank 0, ranks 1, 3 and 5 local rank 1.
        assert_eq!(runs(&|rank| topology.rail_part(9, rank)), [0..4, 4..9, 0..4, 4..9, 0..4, 4..9]);
        assert_eq!(runs(&|rank| topology.part(9, rank)), [0..1, 4..5, 1..2, 5..7, 2..4, 7..9]);
        assert_eq!(runs(&|rank| topology.share_of_rail(7, rank)), [0..2, 0..2, 2..4, 2..4, 4..7, 4..7]);
        assert_eq!(runs(&|rank| topology.share(9, rank)), [0..1, 1..3, 3..4, 4..6, 6..7, 7..9]);
    }

    #[test]
    fn the_ranks_of_a_process_are_those_after_its_first() {
        assert_eq!(Rank::first(3).map(|rank| rank.plus(4)).collect::<Vec<_>>(), [4, 5, 6].map(Rank));
        assert_eq!(Process(2).plus(0), Process(2));
    }

    #[test]
    fn uneven_nodes_are_refused_with_the_reason() {
        let error = Topology::new(8, 3).unwrap_err();
        assert_eq!(error, TopologyError::Uneven { ranks: 8, nodes: 3 });
        assert!(error.to_string().contains("a multiple of 3"));
        assert_eq!(Topology::new(0, 1), Err(TopologyError::Empty));
    }
}
