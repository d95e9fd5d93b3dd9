//! What a model has learnt, taken out rank by rank and put back.

use std::sync::Arc;

use super::{CudaModel, Error, Rank, Ranks};
use crate::checkpoint::{Checkpoint, CheckpointError, DenseState, DeviceState, RankState};

impl CudaModel {
    /// Lets `visit` see what each rank here has, all at once, once all steps are done; returns what it returns, in the
    /// order of ranks.
    ///
    /// # Errors
    /// The first that `visit` returns; [`CheckpointError::State`] where something of a GPU's failed.
    pub(crate) fn on_each_rank<V: Send + 'static>(
        &self,
        visit: impl Fn(usize, RankState<'_>) -> Result<V, CheckpointError> + Clone + Send + Sync + 'static,
    ) -> Result<Vec<V>, CheckpointError> {
        let topology = self.topology;
        let question = |number: usize| {
            let visit = visit.clone();
            move |rank: &dyn Rank| {
                let dense = rank.dense_state(topology, number)?;
                let rows = rank.rows();
                Ok(visit(number, RankState { dense, rows: &*rows }))
            }
        };
        let found = match &self.ranks {
            Ranks::One(rank) => question(self.here.start)(&**rank).map(|found| vec![found]),
            Ranks::Several { workers, .. } => {
                let questions = self.here.clone().map(question);
                workers.ask_each(questions.map(|question| move |rank: &mut dyn Rank| question(rank)))
            }
        };
        found.map_err(unreachable)?.into_iter().collect()
    }

    /// What is kept beside parameters, on the first GPU: all have the same.
    ///
    /// # Errors
    /// [`CheckpointError::State`].
    pub(crate) fn device_state(&self) -> Result<DeviceState, CheckpointError> {
        self.ask_first(|rank| rank.device_state()).map_err(unreachable)
    }

    /// Keeps book, from now on, of which rows are updated.
    ///
    /// # Errors
    /// [`CheckpointError::State`], also where the model was not made for it.
    pub(crate) fn begin_tracking(&mut self) -> Result<(), CheckpointError> {
        let begun = self.on_all(|rank| rank.rows().begin_tracking().map_err(Error::State));
        begun.map(drop).map_err(unreachable)
    }

    /// Goes on where a checkpoint was, which has these dense parameters.
    ///
    /// # Errors
    /// [`CheckpointError`]; the model is of no use then.
    pub(crate) fn restore(
        &mut self,
        from: &Arc<Checkpoint>,
        dense: &Arc<DenseState>,
    ) -> Result<(), CheckpointError> {
        self.steps = from.manifest().train.step;
        let (from, dense) = (Arc::clone(from), Arc::clone(dense));
        let loaded = self.on_all(move |rank| {
            rank.restore(&dense, from.manifest().device.as_ref())?;
            let mut rows = rank.rows();
            Ok(from.load_rows(&mut *rows))
        });
        loaded.map_err(unreachable)?.into_iter().collect()
    }
}

fn unreachable(error: Error) -> CheckpointError {
    CheckpointError::State(error.to_string())
}
