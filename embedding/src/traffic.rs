//! Traffic between ranks, counted in the same way by the code that predicts it and the code that sends it.

use std::ops::{AddAssign, Mul};

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

/// Bytes of a key: a requested row.
pub const KEY_BYTES: u64 = 8;
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
