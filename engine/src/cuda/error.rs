//! What can go wrong while a GPU trains.

/// An error of the GPU, or of what it is fed with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something of the GPU's failed.
    #[error(transparent)]
    Gpu(#[from] rankine_embedding::cuda::Error),
    /// The dataset cannot be read, or is not what its schema says.
    #[error(transparent)]
    Data(#[from] rankine_reader::Error),
}

impl From<rankine_cuda::Error> for Error {
    fn from(error: rankine_cuda::Error) -> Self {
        Self::Gpu(error.into())
    }
}

/// What calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
