//! What can go wrong while GPUs train.

/// An error of a GPU, or of what it is fed with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something of the GPU's failed.
    #[error(transparent)]
    Gpu(#[from] rankine_embedding::cuda::Error),
    /// Something of one GPU's failed, where there are several.
    #[error("rank {rank} (GPU {device}): {error}")]
    Rank {
        /// The rank.
        rank: usize,
        /// Its GPU, as the driver numbers them.
        device: usize,
        /// What failed.
        error: rankine_embedding::cuda::Error,
    },
    /// Rows cannot be read, or set, where they lie.
    #[error(transparent)]
    State(#[from] rankine_embedding::rows::RowsError),
    /// What processes hand each other did not come.
    #[error(transparent)]
    Processes(#[from] crate::launch::MeetError),
    /// The dataset cannot be read, or is not what its schema says.
    #[error(transparent)]
    Data(#[from] rankine_reader::Error),
}

impl Error {
    /// The same as one of several ranks has it. What is wrong with data is so on any of them.
    pub(super) fn of_rank(self, rank: usize, device: usize) -> Self {
        match self {
            Self::Gpu(error) => Self::Rank { rank, device, error },
            other => other,
        }
    }

    /// Whether it is only that a rank did not come to what all ranks do together.
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

    /// What failed of a GPU's; none where it is the data.
    pub fn gpu(&self) -> Option<&rankine_embedding::cuda::Error> {
        match self {
            Self::Gpu(error) | Self::Rank { error, .. } => Some(error),
            Self::State(_) | Self::Processes(_) | Self::Data(_) => None,
        }
    }
}

impl From<rankine_cuda::Error> for Error {
    fn from(error: rankine_cuda::Error) -> Self {
        Self::Gpu(error.into())
    }
}

/// What calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
