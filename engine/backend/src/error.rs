//! Why a device could not do what training asked of it.

use std::error::Error;

use rankine_base::StopCause;
use rankine_embedding::membership::FullTable;
use rankine_launch::MeetError;

/// The error of a device's library or driver.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Why a device could not do what training asked of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The dataset cannot be read, or does not match its schema.
    #[error(transparent)]
    Data(#[from] rankine_base::Error),
    /// Other processes of the job are missing, or have ended.
    #[error(transparent)]
    Processes(#[from] MeetError),
    /// The evaluation was asked to stop.
    #[error("stopped by {0}")]
    Stopped(StopCause),
    /// A rank waited for another one until the time limit.
    #[error(transparent)]
    Missed(Cause),
    /// An operation of the device failed.
    #[error(transparent)]
    Failed(Cause),
    /// A table has no row for a new id, and the job says that training fails then.
    #[error(transparent)]
    FullTable(Cause),
    /// Batches cannot be staged in host or device memory.
    #[error(
        "not enough memory to stage batches for the GPU: {0}. A smaller train.shuffle_window_blocks or \
         train.batch_size needs less"
    )]
    Staging(#[source] Cause),
    /// A part has more samples than the device can evaluate.
    #[error("a GPU cannot score {samples} samples at once")]
    TooManySamples {
        /// Samples of the part.
        samples: u64,
    },
    /// The device's activity cannot be traced.
    #[error(transparent)]
    Trace(Cause),
}

impl BackendError {
    /// Returns the error of a table without a free row.
    pub fn full_table(table: FullTable) -> Self {
        Self::FullTable(Box::new(table))
    }
}
