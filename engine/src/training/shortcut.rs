//! `job.train()`, for programs that need no more than a summary.

use rankine_job::Job;

use super::error::TrainError;
use super::run::{TrainOptions, train};
use super::summary::Summary;

/// What a [`Job`] can do.
pub trait JobExt {
    /// Trains the job into a fresh run folder below `runs`. [`train`] has options and observers.
    ///
    /// # Errors
    /// See [`TrainError`].
    fn train(&self) -> Result<Summary, TrainError>;
}

impl JobExt for Job {
    fn train(&self) -> Result<Summary, TrainError> {
        Ok(train(self, TrainOptions::default(), &mut ())?.0)
    }
}
