//! What can go wrong with tables on GPUs.

/// An error of the GPUs, or of what was asked of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The driver.
    #[error(transparent)]
    Cuda(#[from] rankine_cuda::Error),
    /// Tables or batches beyond what the exchange can number.
    #[error("{what}: {have}, and at most {most} can be numbered on a GPU")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        have: u64,
        /// How much there may be.
        most: u64,
    },
    /// What the exchange does not do.
    #[error("GPUs do not exchange {0}: train on one GPU, or on the CPU's ranks, or place tables row-wise")]
    NotExchanged(&'static str),
    /// A length that kernels cannot read by vectors of four.
    #[error("{what} is {have}: it must be a multiple of 4 and above 0")]
    NotByFour {
        /// What it is the length of.
        what: &'static str,
        /// The length.
        have: usize,
    },
    /// Ids that are not below their table's rows.
    #[error("{count} ids are not below the rows of their tables: what fills batches must have checked them")]
    Ids {
        /// How many, since the ranks were made.
        count: u32,
    },
}

/// What operations return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Tells whether ids were out of range.
pub(super) fn check_ids(count: u32) -> Result<()> {
    if count == 0 { Ok(()) } else { Err(Error::Ids { count }) }
}
