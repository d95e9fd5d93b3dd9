//! How blocks get from the host to GPUs.

/// How blocks reach the GPUs of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Each GPU gets the blocks of its samples. The first one that needs a block is its home.
    Needed,
    /// Each GPU gets all blocks of every batch. The GPUs take turns at being home.
    Broadcast,
    /// As `Needed`, but the GPUs take turns at being home, and keep their blocks.
    Kept,
}
