//! [`Job::train`], for programs that need no more than a summary.

use super::{Summary, TrainError, TrainOptions, train};
use crate::job::Job;

impl Job {
    /// Trains the job into a fresh run folder below `runs`. [`train`] has options and observers.
    ///
    /// # Errors
    /// See [`TrainError`].
    pub fn train(&self) -> Result<Summary, TrainError> {
        Ok(train(self, TrainOptions::default(), &mut ())?.0)
    }
}
