//! The state of a model's training, saved and restored rank by rank.

use std::sync::Arc;

use rankine_checkpoint::{CheckpointError, DenseState, DeviceState, RankState, StateSource};
use rankine_topology::Rank;

use super::CudaModel;
use crate::cuda::error::Error;

impl CudaModel {
    /// Calls `visit` with the state of each rank of this process, for all ranks in parallel, after all steps are done;
    /// returns the results in the order of ranks.
    ///
    /// # Errors
    /// The first error that `visit` returns; [`CheckpointError::State`] if an operation of a GPU failed.
    pub fn on_each_rank<V: Send + 'static>(
        &self,
        visit: impl Fn(Rank, RankState<'_>) -> Result<V, CheckpointError> + Clone + Send + 'static,
    ) -> Result<Vec<V>, CheckpointError> {
        let topology = self.ranks.topology();
        let found = self.ranks.call_each(move |rank, model| {
            let dense = model.dense_state(topology, rank)?;
            let rows = model.rows();
            Ok(visit(rank, RankState { dense, rows: &*rows }))
        });
        found.map_err(unreachable)?.into_iter().collect()
    }

    /// Returns the device's state besides parameters, from the first GPU: all are equal.
    ///
    /// # Errors
    /// [`CheckpointError::State`].
    pub fn device_state(&self) -> Result<DeviceState, CheckpointError> {
        self.ranks.call_first(|rank| rank.device_state()).map_err(unreachable)
    }

    /// Starts to record which rows are updated.
    ///
    /// # Errors
    /// [`CheckpointError::State`], also if the model was not made for it.
    pub fn begin_tracking(&mut self) -> Result<(), CheckpointError> {
        let begun = self.ranks.call_all_mut(|rank| rank.rows().begin_tracking().map_err(Error::State));
        begun.map(drop).map_err(unreachable)
    }

    /// Restores the state of a source, whose dense parameters are `dense`.
    ///
    /// # Errors
    /// [`CheckpointError`]; the model is then unusable.
    pub fn restore(
        &mut self,
        from: &Arc<dyn StateSource>,
        dense: &Arc<DenseState>,
    ) -> Result<(), CheckpointError> {
        self.steps = from.optimizer_steps();
        let (from, dense) = (Arc::clone(from), Arc::clone(dense));
        let loaded = self.ranks.call_all_mut(move |rank| {
            rank.restore(&dense, from.device())?;
            let mut rows = rank.rows();
            Ok(from.load_rows(&mut *rows))
        });
        loaded.map_err(unreachable)?.into_iter().collect()
    }
}

fn unreachable(error: Error) -> CheckpointError {
    CheckpointError::State(error.to_string())
}
