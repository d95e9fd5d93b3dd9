//! Traffic between ranks, counted in the same way by the code that predicts it and the code that sends it.

use std::ops::{AddAssign, Mul};

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

/// Bytes of a key: a requested row.
pub const KEY_BYTES: u64 = 8;
/// Bytes of the factor of an id with a weight; sent only with [`crate::placement::Exchange::Pooled`].
pub const FACTOR_BYTES: u64 = 4;
/// Bytes of the number of ids in a part of a bag; sent only with [`crate::placement::Exchange::Pooled`].
pub const LENGTH_BYTES: u64 = 4;

/// Traffic between ranks in one iteration of training, over all ranks. What a rank keeps to itself is not counted.
///
/// Data that is sent to a rank of another node and forwarded there is counted on both links.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable, Serialize, Deserialize)]
pub struct Traffic {
    /// Between ranks of one node.
    pub within_nodes: LinkTraffic,
    /// Between ranks of different nodes.
    pub between_nodes: LinkTraffic,
}

/// Traffic over links of one kind.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable, Serialize, Deserialize)]
pub struct LinkTraffic {
    /// Vectors that owners send, rows or pooled bags; the same number of gradients is sent back.
    pub rows: u64,
    /// Bytes of keys, vectors and gradients.
    pub bytes: u64,
    /// Additional bytes of messages that have a fixed size.
    pub padding_bytes: u64,
}

/// What ranks have sent each other in training.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct RankTraffic {
    /// Keys, rows and gradients of sharded rows.
    pub exchange: Traffic,
    /// Gradients of replicated state, and parameters if their update is sharded. No rows are counted.
    pub reduction: Traffic,
}

impl AddAssign for RankTraffic {
    fn add_assign(&mut self, other: Self) {
        self.exchange += other.exchange;
        self.reduction += other.reduction;
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.within_nodes += other.within_nodes;
        self.between_nodes += other.between_nodes;
    }
}

impl AddAssign for LinkTraffic {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.bytes += other.bytes;
        // A rank on a GPU may count as contents of messages what another rank counts as padding. Then its own padding
        // is negative, modulo 2^64, but the sum over all ranks is not.
        self.padding_bytes = self.padding_bytes.wrapping_add(other.padding_bytes);
    }
}

impl Mul<u64> for Traffic {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        let of = |LinkTraffic { rows, bytes, padding_bytes }| LinkTraffic {
            rows: rows * times,
            bytes: bytes * times,
            padding_bytes: padding_bytes * times,
        };
        Self { within_nodes: of(self.within_nodes), between_nodes: of(self.between_nodes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link([rows, bytes, padding_bytes]: [u64; 3]) -> LinkTraffic {
        LinkTraffic { rows, bytes, padding_bytes }
    }

    fn traffic(within: [u64; 3], between: [u64; 3]) -> Traffic {
        Traffic { within_nodes: link(within), between_nodes: link(between) }
    }

    #[test]
    fn traffic_of_ranks_is_added_by_link_and_kind() {
        let mut sum = RankTraffic {
            exchange: traffic([1, 2, 3], [4, 5, 6]),
            reduction: traffic([0, 7, 8], [0, 9, 10]),
        };
        sum += RankTraffic {
            exchange: traffic([10, 20, 30], [40, 50, 60]),
            reduction: traffic([0, 70, 80], [0, 90, 100]),
        };
        assert_eq!(sum.exchange, traffic([11, 22, 33], [44, 55, 66]));
        assert_eq!(sum.reduction, traffic([0, 77, 88], [0, 99, 110]));
        // The padding of one rank may be negative, that of all is not.
        let mut padding = traffic([0; 3], [0, 0, 2_u64.wrapping_neg()]);
        padding += traffic([0; 3], [0, 0, 5]);
        assert_eq!(padding.between_nodes.padding_bytes, 3);
        assert_eq!(traffic([1, 2, 3], [4, 5, 6]) * 10, traffic([10, 20, 30], [40, 50, 60]));
    }
}
