//! From a part of a dataset to batches of samples: which blocks and rows come when, checked and unpacked.
//!
//! Three layers, each of use by itself. A [`Plan`] is arithmetic: it names the blocks of every window and the order of
//! their rows, and can begin anywhere. A [`BlockStream`] reads what a plan names and yields checked, packed blocks. A
//! [`BatchStream`] unpacks them into batches of any size; a [`PackedStream`] cuts the same batches and leaves them
//! packed, for a GPU that unpacks by itself.
//!
//! A *window* is what rows are shuffled within: some blocks that follow each other in the order of reading. In file
//! order each block is a window and its rows stay as they are.

mod batches;
mod blocks;
mod checked;
mod packed;
mod plan;
mod rows;
mod window;

use crate::io::IoOptions;

pub use batches::{Batch, BatchStream};
pub use blocks::{BlockStream, PackedBlock};
pub(crate) use blocks::{bytes_before, check_block, decode_records};
pub use packed::{Packed, PackedBatch, PackedStream};
pub use plan::{Plan, Window};
pub use rows::BlockRow;

/// The order of samples in an epoch. Either way every sample comes exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As they were written.
    File,
    /// Shuffled, in an order that follows from seed and epoch alone.
    Shuffled {
        /// Another seed, another order.
        seed: u64,
        /// The blocks of an epoch come in random order, and rows are permuted within so many of them that follow each
        /// other. More mixes better and takes more memory: that many blocks, unpacked.
        window_blocks: u32,
    },
}

impl Order {
    /// Blocks of a window.
    pub(crate) fn window_blocks(self) -> usize {
        match self {
            Self::File => 1,
            Self::Shuffled { window_blocks, .. } => window_blocks as usize,
        }
    }
}

/// A place in a stream: what comes next there. It says all that is needed to go on, with the stream's order.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Whole epochs before this one.
    pub epoch: u64,
    /// Samples of this epoch that have been delivered. All of them: the next epoch comes next.
    pub sample: u64,
}

/// What to stream, and how.
#[derive(Debug, Clone, Copy)]
pub struct StreamOptions {
    /// Samples of every batch but an epoch's last: batches span blocks and windows, but not epochs.
    pub batch_size: usize,
    /// The stream ends before the epoch of this number; `None` for never.
    pub epochs: Option<u64>,
    /// The order of samples.
    pub order: Order,
    /// Where to begin: what follows is what an uninterrupted stream would have yielded from there on.
    pub start: Position,
    /// How to read.
    pub io: IoOptions,
    /// Batches that may wait for the consumer, at least 1.
    pub prefetch: usize,
}

impl StreamOptions {
    /// One epoch in file order from its beginning: what an evaluation wants.
    pub fn one_epoch(batch_size: usize) -> Self {
        Self {
            batch_size,
            epochs: Some(1),
            order: Order::File,
            start: Position::default(),
            io: IoOptions::default(),
            prefetch: 2,
        }
    }
}

#[cfg(test)]
mod tests;
