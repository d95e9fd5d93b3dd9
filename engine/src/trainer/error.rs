//! Why a trainer did not do what was asked.

use crate::features::FeatureError;
use crate::source::SourceError;
use crate::training::TrainError;

/// Why a trainer did not do what was asked. After [`TrainerError::Rows`] and [`TrainerError::TooManyRows`] it goes on
/// as if nothing had been pushed; after [`TrainerError::Train`] from a push it is over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainerError {
    /// The rows cannot be trained on.
    #[error(transparent)]
    Rows(#[from] FeatureError),
    /// There are more rows than a batch has.
    #[error(
        "a push has at most train.batch_size ({batch_size}) rows, not {rows}: push them in several calls"
    )]
    TooManyRows {
        /// Their number.
        rows: usize,
        /// The job's batch size.
        batch_size: usize,
    },
    /// The training cannot start, or has failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The columns of a run or an export cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The job sets a key that pushed rows cannot honour.
    #[error("{key} is set, but {why}: remove it")]
    Setting {
        /// The key.
        key: &'static str,
        /// Why it cannot be honoured.
        why: &'static str,
    },
    /// `train.max_steps` is reached.
    #[error(
        "training ended at train.max_steps, after {}: raise it to continue",
        if *.0 == 1 { "1 step".into() } else { format!("{} steps", .0) }
    )]
    MaxSteps(u64),
    /// Nothing was pushed.
    #[error("no rows were pushed, so there is no model to save")]
    NothingPushed,
    /// The training has failed before; the first error says why.
    #[error("training failed earlier: see the first error")]
    Over,
    /// The system has no thread to train on.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
