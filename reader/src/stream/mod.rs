//! From a part of a dataset to batches of samples: the order of blocks and rows, checked and unpacked.
//!
//! Three layers, each usable on its own. A [`Plan`] is arithmetic: it determines the blocks of every window and the
//! order of their rows, and can start anywhere. A [`BlockStream`] reads the blocks of a plan and yields them checked
//! and packed. A [`BatchStream`] unpacks them into batches of any size; a [`PackedStream`] forms the same batches but
//! leaves them packed, for GPUs that unpack them.
//!
//! Rows are shuffled within a *window*: several consecutive blocks in reading order. This decides which rows a batch
//! gets; within the batch, those of a window are in reading order. In file order each block is a window.

mod batches;
mod blocks;
mod division;
mod packed;
mod plan;
mod row_window;
mod rows;
mod windows;

use std::ops::Range;

use crate::io::IoOptions;

pub use batches::{Batch, BatchStream};
pub use blocks::{BlockStream, PackedBlock};
pub(crate) use blocks::{bytes_before, check_block, decode_records};
pub use packed::{PackedBatch, PackedItem, PackedStream};
pub use plan::{Plan, Window};
pub use rows::BlockRow;

/// The order of samples in an epoch. In either order every sample comes exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The order in which they were written.
    File,
    /// Shuffled; the order depends only on seed and epoch.
    Shuffled {
        /// The seed of the order.
        seed: u64,
        /// The number of blocks per window: blocks come in random order, and batches get random rows of this number of
        /// consecutive blocks. More mixes better and takes more memory: that many blocks, unpacked.
        window_blocks: u32,
    },
}

impl Order {
    /// Returns the blocks per window.
    pub(crate) fn window_blocks(self) -> usize {
        match self {
            Self::File => 1,
            Self::Shuffled { window_blocks, .. } => window_blocks as usize,
        }
    }
}

/// A position in a stream: what comes next. With the stream's order it is all that is needed to resume.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Number of complete epochs before this position.
    pub epoch: u64,
    /// Samples of this epoch that have been delivered. If all were, the next epoch comes next.
    pub sample: u64,
}

/// The samples of every batch that one of several processes takes: the batch is divided into contiguous parts, as even
/// as possible, one per process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The number of the process.
    pub process: usize,
    /// The number of processes, at least 1.
    pub processes: usize,
}

impl Share {
    /// All samples: there is one process.
    pub const ALL: Self = Self { process: 0, processes: 1 };

    /// Returns the positions in a batch of `len` samples that belong to the share.
    pub fn of(self, len: usize) -> Range<usize> {
        let at = |process| (len as u128 * process as u128 / self.processes as u128) as usize;
        at(self.process)..at(self.process + 1)
    }
}

/// Options of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamOptions {
    /// Samples of every batch except an epoch's last: batches span blocks and windows, but not epochs.
    pub batch_size: usize,
    /// The number of the epoch before which the stream ends; `None` for never.
    pub epochs: Option<u64>,
    /// The order of samples.
    pub order: Order,
    /// The start: the stream yields what an uninterrupted stream would have yielded from there.
    pub start: Position,
    /// The samples of every batch that are needed. Only blocks that may hold some of them are read. If some batch
    /// might have none of them, all are read.
    pub share: Share,
    /// How to read.
    pub io: IoOptions,
    /// Batches that may wait for the consumer, at least 1.
    pub prefetch: usize,
}

impl StreamOptions {
    /// Returns options for one epoch in file order from its start, as an evaluation needs.
    pub fn one_epoch(batch_size: usize) -> Self {
        Self {
            batch_size,
            epochs: Some(1),
            order: Order::File,
            start: Position::default(),
            share: Share::ALL,
            io: IoOptions::default(),
            prefetch: 2,
        }
    }
}

#[cfg(test)]
mod tests;
