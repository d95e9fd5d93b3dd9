//! Traffic between ranks, counted in the same way by the code that predicts it and the code that sends it.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Bytes of a key: a requested row.
pub const KEY_BYTES: u64 = 8;
/// Bytes of the number of ids in a part of a bag; sent only with [`crate::placement::Exchange::Pooled`].
pub const LENGTH_BYTES: u64 = 4;

/// Traffic between ranks in one iteration of training, over all ranks. What a rank keeps to itself is not counted.
///
/// Data that is sent to a rank of another node and forwarded there is counted on both links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Between ranks of one node.
    pub within_nodes: LinkTraffic,
    /// Between ranks of different nodes.
    pub between_nodes: LinkTraffic,
}

/// Traffic over links of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTraffic {
    /// Vectors that owners send, rows or pooled bags; the same number of gradients is sent back.
    pub rows: u64,
    /// Bytes of keys, vectors and gradients.
    pub bytes: u64,
    /// Additional bytes if messages have a fixed size.
    pub padding_bytes: u64,
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
        self.padding_bytes += other.padding_bytes;
    }
}
