//! Errors of tables on GPUs.

/// An error of the GPUs, or an unsupported request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An error of the driver.
    #[error(transparent)]
    Cuda(#[from] rankine_cuda::Error),
    /// Tables or batches are too large for kernels to number.
    #[error("too many {what} for a GPU: {have}, the limit is {most}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        have: u64,
        /// The limit.
        most: u64,
    },
    /// A request that the exchange does not support.
    #[error("GPUs cannot exchange {0}: train on one GPU, on CPU ranks, or place tables row-wise")]
    NotExchanged(&'static str),
    /// A length that kernels cannot read in vectors of four.
    #[error("{what} is {have}: it must be a positive multiple of 4")]
    NotByFour {
        /// What the length is of.
        what: &'static str,
        /// The length.
        have: usize,
    },
    /// A batch has more cold rows of a table than its landing region.
    #[error(
        "a batch looks up {have} rows of table {table} that are in host memory; the GPU has room for {most}: the \
        statistics that the rows on the GPU were chosen by do not describe these batches; convert the data again, or \
        raise embedding.device_memory"
    )]
    LandingRegion {
        /// The table.
        table: String,
        /// How many the batch has.
        have: usize,
        /// The rows of a landing region.
        most: usize,
    },
    /// Ids are out of range for their tables.
    #[error("{count} ids are out of range for their tables: they must be checked when batches are filled")]
    Ids {
        /// How many, since the tables were created.
        count: u32,
    },
}

/// The result of this module's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns an error if ids were out of range.
pub(super) fn check_ids(count: u32) -> Result<()> {
    if count == 0 { Ok(()) } else { Err(Error::Ids { count }) }
}
