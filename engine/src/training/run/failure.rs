//! The end of a training that fails: it leaves a checkpoint of its last step, as after a signal.

use super::agreement::{SharedFailure, all_succeed};
use super::training_loop::TrainingLoop;
use crate::run_paths;
use crate::training::error::LeftResults;
use crate::training::error::TrainError;

impl TrainingLoop<'_> {
    /// Saves a checkpoint of the last completed step, if the error leaves its state. Returns the error, with what the
    /// training leaves.
    ///
    /// If only some of several processes fail, the others may be within a step: then no checkpoint is saved.
    pub(super) fn fail(&mut self, error: TrainError) -> TrainError {
        if matches!(error, TrainError::Interrupted { .. }) {
            return error;
        }
        if error.spoils_state() {
            self.discard_model();
            return error;
        }
        if let Some(lost) = self.lost_folder() {
            return lost;
        }
        let together = self.state.all_fail || self.context.processes.size() == 1;
        if together
            && self.state.is_complete
            && error.leaves_state()
            && let Err(second) = self.save_now()
        {
            if let Some(lost) = self.lost_folder() {
                return lost;
            }
            tracing::warn!("no checkpoint of step {} was saved: {second}", self.state.step());
        }
        let run = self.folder.path().to_owned();
        let model = self.state.is_saved.then(|| run_paths::model(&run));
        match (self.checkpoints.saved(), model) {
            (None, None) => error,
            (checkpoint, model) => TrainError::Ended {
                error: Box::new(error),
                left: LeftResults { run, start: self.context.start, checkpoint, model },
            },
        }
    }

    /// Exchanges with the other processes whether all succeeded. If one of them failed, all fail, and save a checkpoint
    /// together.
    ///
    /// # Errors
    /// The own error, or [`TrainError::Refused`] with that of another process; [`TrainError::Processes`].
    pub(super) fn together(&mut self, what: &str, own: Result<(), TrainError>) -> Result<(), TrainError> {
        let shared = all_succeed(self.context.processes, what, own)?;
        shared.map_err(|SharedFailure { error, leaves_state }| {
            self.state.all_fail = leaves_state;
            error
        })
    }

    fn lost_folder(&self) -> Option<TrainError> {
        self.folder.check().err().filter(|error| matches!(error, TrainError::FolderLost(_)))
    }

    /// Removes the saved model: its evaluation showed that training diverged.
    fn discard_model(&mut self) {
        let Some(run) = self.run.as_ref().filter(|_| self.state.is_saved) else { return };
        if let Err(error) = run.discard_model() {
            tracing::warn!("the model of a training that diverged was not removed: {error}");
        }
    }
}
