//! The state of a learner, rank by rank: taken out and restored.

use std::sync::Arc;

use super::learner::Learner;
use crate::checkpoint::{Checkpoint, CheckpointError, DeviceState, RankState};

impl Learner {
    /// Calls `visit` with the state of each rank, all ranks at once, after all steps are complete; returns its
    /// results in the order of ranks.
    ///
    /// # Errors
    /// The first error that `visit` returns; [`CheckpointError::State`].
    pub(super) fn on_each_rank<T: Send + 'static>(
        &self,
        visit: impl Fn(usize, RankState<'_>) -> Result<T, CheckpointError> + Clone + Send + Sync + 'static,
    ) -> Result<Vec<T>, CheckpointError> {
        match self {
            Self::Cpu(model, _) => model.on_each_rank(visit),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => model.on_each_rank(visit),
        }
    }

    /// The state of a GPU besides parameters.
    ///
    /// # Errors
    /// [`CheckpointError::State`].
    pub(super) fn device_state(&self) -> Result<Option<DeviceState>, CheckpointError> {
        match self {
            Self::Cpu(..) => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => model.device_state().map(Some),
        }
    }

    /// Starts to record which rows are updated.
    ///
    /// # Errors
    /// [`CheckpointError::State`].
    pub(super) fn begin_tracking(&mut self) -> Result<(), CheckpointError> {
        match self {
            Self::Cpu(model, _) => model.begin_tracking(),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => model.begin_tracking()?,
        }
        Ok(())
    }

    /// Restores the state of a checkpoint, which must be one of this model.
    ///
    /// # Errors
    /// [`CheckpointError`]; the model is unusable then.
    pub(super) fn restore(&mut self, from: &Arc<Checkpoint>) -> Result<(), CheckpointError> {
        let (dense, step) = (from.dense()?, from.manifest().train.step);
        match self {
            Self::Cpu(model, _) => model.restore(step, &dense, |rows| from.load_rows(rows)),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => model.restore(from, &Arc::new(dense)),
        }
    }
}
