//! Why a search has no result.

use std::path::PathBuf;

use rankine_base::StopCause;
use rankine_job::{JobError, StoppingMetric};

use crate::training::TrainError;

/// Why a search has no result.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The job, the space, or the two together are not valid.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The data cannot be read, or a trial failed for another reason than its settings.
    #[error(transparent)]
    Train(TrainError),
    /// The run of a trial cannot be resumed.
    #[error(
        "trial {number} cannot continue: {}. To train it again from the beginning, remove its folder {} and repeat the \
         command with --run-dir {} --resume",
        error.unresumable().unwrap_or_default(), trial.display(), dir.display()
    )]
    Trial {
        /// Its number.
        number: u64,
        /// Its folder.
        trial: PathBuf,
        /// The folder of the search.
        dir: PathBuf,
        /// Why, with options of `rankine train`, which a search does not have.
        error: Box<TrainError>,
    },
    /// The folder of the search cannot be used.
    #[error("{}: {what}", dir.display())]
    Dir {
        /// The folder.
        dir: PathBuf,
        /// Why, and the way out.
        what: String,
    },
    /// The search was asked to stop, and can be continued.
    #[error(
        "stopped by {cause}; the same command with --run-dir {} --resume continues the search",
        dir.display()
    )]
    Stopped {
        /// What asked.
        cause: StopCause,
        /// The folder of the search.
        dir: PathBuf,
    },
    /// Trials that cannot be continued were asked to stop.
    #[error("stopped by {0}: the trials have no result")]
    Ended(StopCause),
    /// No trial has a metric.
    #[error(
        "no trial has a defined {} on the validation set: every trial diverged, the time was too short for one \
         evaluation, or the labels of the validation set are all equal",
        .0.name()
    )]
    NoResult(StoppingMetric),
    /// The job itself learns nothing, so that it sets no target.
    #[error(
        "the job itself reaches no AUC above 0.5 on the validation set, so it sets no target: give one with \
         --target-auc, or train for longer"
    )]
    NoTarget,
}

impl From<rankine_base::Error> for TuneError {
    fn from(error: rankine_base::Error) -> Self {
        Self::Train(error.into())
    }
}
