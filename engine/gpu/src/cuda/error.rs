//! Errors of training on GPUs.

use std::io;

use rankine_backend::BackendError;
use rankine_embedding::membership::FullTable;
use rankine_topology::Rank;

/// An error of a GPU, or of its input.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation of the GPU failed.
    #[error(transparent)]
    Gpu(#[from] rankine_embedding::cuda::Error),
    /// An operation of one of several GPUs failed.
    #[error("rank {rank} (GPU {device}): {error}")]
    Rank {
        /// The rank.
        rank: Rank,
        /// Its GPU, as the driver numbers them.
        device: usize,
        /// What failed.
        error: rankine_embedding::cuda::Error,
    },
    /// GPUs cannot score the number of samples that the job asks for at a time.
    #[error("eval.batch_size = {size} {why}: use a smaller number, or \"auto\"")]
    ScoreSize {
        /// The number of samples.
        size: usize,
        /// Why not.
        why: String,
    },
    /// Rows in the GPU's memory cannot be read or set.
    #[error(transparent)]
    State(#[from] rankine_embedding::rows::RowsError),
    /// Processes could not exchange data.
    #[error(transparent)]
    Processes(#[from] rankine_launch::MeetError),
    /// The dataset cannot be read, or does not match its schema.
    #[error(transparent)]
    Data(#[from] rankine_base::Error),
    /// A dynamic table has no row for a new id.
    #[error(transparent)]
    FullTable(#[from] FullTable),
    /// The operating system refuses to start the thread of a rank.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// A rank failed before, and its thread has ended.
    #[error("a rank has already failed")]
    RankEnded,
}

impl Error {
    /// The same error, with rank and device if it is the GPU's. Errors in the data would occur on any rank.
    pub(super) fn on_rank(self, rank: Rank, device: usize) -> Self {
        match self {
            Self::Gpu(error) => Self::Rank { rank, device, error },
            other => other,
        }
    }

    /// Whether the only error is that another rank did not take part in a collective operation.
    pub fn misses_rank(&self) -> bool {
        use rankine_cuda::Error as Cuda;
        let Some(rankine_embedding::cuda::Error::Cuda(error)) = self.gpu() else { return false };
        matches!(
            error,
            Cuda::PeersLate { .. }
                | Cuda::PeersLeft { .. }
                | Cuda::PeersStray { .. }
                | Cuda::PeerBarrier { .. }
                | Cuda::PeerGivenUp { .. }
                | Cuda::RailLate { .. }
                | Cuda::NcclLate { .. }
        )
    }

    /// Returns the GPU's error, if it is one.
    pub fn gpu(&self) -> Option<&rankine_embedding::cuda::Error> {
        match self {
            Self::Gpu(error) | Self::Rank { error, .. } => Some(error),
            Self::ScoreSize { .. }
            | Self::State(_)
            | Self::Processes(_)
            | Self::Data(_)
            | Self::FullTable(_)
            | Self::Thread(_)
            | Self::RankEnded => None,
        }
    }
}

impl From<Error> for BackendError {
    fn from(error: Error) -> Self {
        match error {
            Error::Data(error) => Self::Data(error),
            Error::Processes(error) => Self::Processes(error),
            Error::FullTable(table) => Self::full_table(table),
            error if error.misses_rank() => Self::Missed(error.into()),
            error => Self::Failed(error.into()),
        }
    }
}

impl From<rankine_cuda::Error> for Error {
    fn from(error: rankine_cuda::Error) -> Self {
        Self::Gpu(error.into())
    }
}

/// The result of calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;
