//! Why this machine's memory does not hold a model.

use bytesize::ByteSize;

use crate::planning::SMALLER_TABLES;

/// What of a model the free memory does not hold. All sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The tables.
    #[error(
        "the tables and their optimizer state take {}, but {} of memory are free. The largest table is {largest}. To \
         need less, use fewer rows (a higher --min-count, or hashing, at conversion), a smaller model.embedding_dim, \
         or optimizer.sparse.kind = \"rowwise-adagrad\" (one number of state per row) or \"sgd\" (no state)",
        ByteSize(*tables),
        ByteSize(*free)
    )]
    Tables {
        /// The tables, with their optimizer state.
        tables: u64,
        /// Free memory.
        free: u64,
        /// The name of the largest table.
        largest: String,
    },
    /// The rows of tables that a GPU does not store.
    #[error(
        "the rows in host memory take {}, and copies of a batch's rows {}, but {} of memory are free. Raise \
         embedding.device_memory, or {SMALLER_TABLES}",
        ByteSize(*rows),
        ByteSize(*staging),
        ByteSize(*free)
    )]
    ColdRows {
        /// The rows, with their optimizer state.
        rows: u64,
        /// The regions through which rows are copied.
        staging: u64,
        /// Free memory.
        free: u64,
    },
    /// The dense layers beside the tables.
    #[error(
        "the dense layers take {} with their gradients and optimizer state, the tables {}, and {} of memory are \
         free. To need less, use narrower layers in model.bottom_mlp and model.top_mlp, a smaller model.cross_rank, \
         or fewer device.ranks",
        ByteSize(*layers),
        ByteSize(*tables),
        ByteSize(*free)
    )]
    Layers {
        /// The layers, with gradients and optimizer state.
        layers: u64,
        /// The tables, with their optimizer state.
        tables: u64,
        /// Free memory.
        free: u64,
    },
    /// A batch of training or evaluation beside the model.
    #[error(
        "a batch takes {} for activations and interactions, the model {}, and {} of memory are free. {way_out}",
        ByteSize(*batch),
        ByteSize(*model),
        ByteSize(*free)
    )]
    Batch {
        /// The buffers of a step and of an evaluation.
        batch: u64,
        /// Tables and layers.
        model: u64,
        /// Free memory.
        free: u64,
        /// How to need less.
        way_out: String,
    },
    /// A batch that is scored.
    #[error(
        "scoring a batch takes {} for activations and interactions, and {} of memory are free. {way_out}",
        ByteSize(*batch),
        ByteSize(*free)
    )]
    Scoring {
        /// The buffers of an evaluation.
        batch: u64,
        /// Free memory.
        free: u64,
        /// How to need less.
        way_out: String,
    },
}
