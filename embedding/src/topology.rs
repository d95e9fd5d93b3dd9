//! How many ranks there are, and which of them share a node.

use std::ops::Range;

/// Ranks, numbered node by node: ranks `0..p` are on node 0, `p..2p` on node 1, and so on.
///
/// Two groups of ranks matter to a rank: those of its own node, and those with its place in all nodes, its *rail*.
/// Whatever goes to a rank of another node goes along a rail, and changes ranks within a node only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    ranks: usize,
    nodes: usize,
}

/// Why ranks and nodes make no topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// There is no rank, or no node.
    #[error("there must be at least one rank and one node")]
    Empty,
    /// Nodes would have unequal numbers of ranks.
    #[error(
        "{nodes} nodes cannot have equal parts of {ranks} {}, and rows go between nodes along rails of ranks with the \
         same place in each: use a multiple of {nodes} ranks",
        if *ranks == 1 { "rank" } else { "ranks" }
    )]
    Uneven {
        /// Ranks in all.
        ranks: usize,
        /// Nodes.
        nodes: usize,
    },
}

impl Topology {
    /// One rank, which has no peers.
    pub const ONE: Self = Self { ranks: 1, nodes: 1 };

    /// `ranks` in all, equally many on each of `nodes`.
    ///
    /// # Errors
    /// [`TopologyError`] where that cannot be.
    pub fn new(ranks: usize, nodes: usize) -> Result<Self, TopologyError> {
        if ranks == 0 || nodes == 0 {
            return Err(TopologyError::Empty);
        }
        if !ranks.is_multiple_of(nodes) {
            return Err(TopologyError::Uneven { ranks, nodes });
        }
        Ok(Self { ranks, nodes })
    }

    /// Ranks in all.
    pub fn ranks(self) -> usize {
        self.ranks
    }

    /// Nodes.
    pub fn nodes(self) -> usize {
        self.nodes
    }

    /// Ranks of each node.
    pub fn ranks_per_node(self) -> usize {
        self.ranks / self.nodes
    }

    /// The node of a rank.
    pub fn node_of(self, rank: usize) -> usize {
        rank / self.ranks_per_node()
    }

    /// A rank's place within its node.
    pub fn place_of(self, rank: usize) -> usize {
        rank % self.ranks_per_node()
    }

    /// The rank with a place in a node.
    pub fn rank(self, node: usize, place: usize) -> usize {
        node * self.ranks_per_node() + place
    }

    /// The ranks of a rank's node, itself among them, in order of their places.
    pub fn node_group(self, rank: usize) -> Vec<usize> {
        (0..self.ranks_per_node()).map(|place| self.rank(self.node_of(rank), place)).collect()
    }

    /// The ranks of a rank's rail, itself among them, in order of their nodes.
    pub fn rail_group(self, rank: usize) -> Vec<usize> {
        (0..self.nodes).map(|node| self.rank(node, self.place_of(rank))).collect()
    }

    /// The part of `len` things that belongs to a rank: one run of them each, as even as can be, some empty where there
    /// are fewer things than ranks.
    pub fn share(self, len: usize, rank: usize) -> Range<usize> {
        cut(0..len, self.ranks, rank)
    }

    /// The part of `len` elements that the ranks of a rank's rail, and no others, come to share when every node sums
    /// them: one run a place.
    pub fn rail_part(self, len: usize, rank: usize) -> Range<usize> {
        cut(0..len, self.ranks_per_node(), self.place_of(rank))
    }

    /// Of `len` elements that all ranks of a rank's rail have, those that it speaks for.
    pub fn share_of_rail(self, len: usize, rank: usize) -> Range<usize> {
        cut(0..len, self.nodes, self.node_of(rank))
    }

    /// The part of `len` elements whose sum over all ranks a rank computes: a piece of its [`Topology::rail_part`].
    pub fn part(self, len: usize, rank: usize) -> Range<usize> {
        cut(self.rail_part(len, rank), self.nodes, self.node_of(rank))
    }
}

/// One of `pieces` pieces of a range, as even as can be.
pub(crate) fn cut(range: Range<usize>, pieces: usize, piece: usize) -> Range<usize> {
    let at = |piece: usize| range.start + (range.len() as u128 * piece as u128 / pieces as u128) as usize;
    at(piece)..at(piece + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbered_node_by_node() {
        let topology = Topology::new(6, 2).unwrap();
        assert_eq!((topology.node_of(4), topology.place_of(4)), (1, 1));
        assert_eq!(topology.node_group(4), [3, 4, 5]);
        assert_eq!(topology.rail_group(4), [1, 4]);
        assert_eq!((0..6).map(|rank| topology.share(8, rank).len()).collect::<Vec<_>>(), [1, 1, 2, 1, 1, 2]);
        assert_eq!((0..6).map(|rank| topology.share(2, rank).len()).sum::<usize>(), 2);
    }

    #[test]
    fn parts_of_ranks_are_runs_that_cover_everything_once() {
        let topology = Topology::new(6, 3).unwrap();
        let runs = |of: &dyn Fn(usize) -> Range<usize>| -> Vec<_> { (0..6).map(of).collect() };
        // Ranks 0, 2 and 4 have place 0, ranks 1, 3 and 5 place 1.
        assert_eq!(runs(&|rank| topology.rail_part(9, rank)), [0..4, 4..9, 0..4, 4..9, 0..4, 4..9]);
        assert_eq!(runs(&|rank| topology.part(9, rank)), [0..1, 4..5, 1..2, 5..7, 2..4, 7..9]);
        assert_eq!(runs(&|rank| topology.share_of_rail(7, rank)), [0..2, 0..2, 2..4, 2..4, 4..7, 4..7]);
        assert_eq!(runs(&|rank| topology.share(9, rank)), [0..1, 1..3, 3..4, 4..6, 6..7, 7..9]);
    }

    #[test]
    fn uneven_nodes_are_refused_with_the_reason() {
        let error = Topology::new(8, 3).unwrap_err();
        assert_eq!(error, TopologyError::Uneven { ranks: 8, nodes: 3 });
        assert!(error.to_string().contains("a multiple of 3"));
        assert_eq!(Topology::new(0, 1), Err(TopologyError::Empty));
    }
}
