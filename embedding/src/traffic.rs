//! What crosses between ranks, counted in one way by whoever predicts it and by whoever sends it.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Bytes of a key: a row that is asked for.
pub const KEY_BYTES: u64 = 8;
/// Bytes of the number of ids in a part of a bag; only [`crate::placement::Exchange::Pooled`] sends it.
pub const LENGTH_BYTES: u64 = 4;

/// What crosses between ranks in one iteration of training, over all ranks. What a rank keeps to itself does not count.
///
/// Something that goes to a rank of another node and is passed on there is counted on both ways.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Between ranks of one node.
    pub within_nodes: LinkTraffic,
    /// Between ranks of different nodes.
    pub between_nodes: LinkTraffic,
}

/// What crosses links of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTraffic {
    /// Vectors that owners send, rows or pooled bags; the gradients that come back are as many.
    pub rows: u64,
    /// Bytes of keys, of vectors and of their gradients.
    pub bytes: u64,
    /// Bytes that would be sent beside them, where messages are of fixed size.
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
