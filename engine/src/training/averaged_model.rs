//! The average of the weights of several checkpoints (`train.average`).

use std::sync::Arc;

use rankine_checkpoint::{Checkpoint, CheckpointError, DenseState, DeviceState, StateSource, StoredRows};
use rankine_embedding::rows::{RowsMut, gather};
use rankine_job::Average;
use rankine_model::Model;

use super::fresh_state;

/// A model whose weights are the average of those of checkpoints.
///
/// A weight that is the same in all of them, as those of rows that were not looked up, keeps its value to the bit.
pub(super) struct AveragedModel {
    average: Average,
    /// The checkpoints, the latest last; at least one.
    checkpoints: Vec<Arc<Checkpoint>>,
    model: Model,
    /// Rows of each table, those of first-order terms last.
    rows: Vec<u64>,
}

impl AveragedModel {
    /// The average of checkpoints of a model, the latest last.
    ///
    /// # Panics
    /// If there are none.
    pub(super) fn new(average: Average, checkpoints: Vec<Arc<Checkpoint>>, model: &Model) -> Self {
        assert!(!checkpoints.is_empty(), "an average is that of something");
        let rows = model.all_tables().into_iter().map(|(table, _)| table.rows).collect();
        Self { average, checkpoints, model: model.clone(), rows }
    }

    /// The steps of the checkpoints.
    pub(super) fn steps(&self) -> Vec<u64> {
        self.checkpoints.iter().map(|checkpoint| checkpoint.manifest().train.step).collect()
    }

    /// The checkpoint that the others came before.
    fn latest(&self) -> &Checkpoint {
        self.checkpoints.last().expect("there is at least one")
    }

    /// Moves the mean of the first `number` checkpoints towards the weights of the next one.
    fn add(&self, number: usize, mean: &mut [f32], next: &[f32]) {
        let step_size = self.average.step_size(number);
        mean.iter_mut().zip(next).for_each(|(mean, next)| *mean += step_size * (next - *mean));
    }
}

impl StateSource for AveragedModel {
    fn optimizer_steps(&self) -> u64 {
        self.latest().optimizer_steps()
    }

    fn dense(&self) -> Result<DenseState, CheckpointError> {
        let mut mean = self.checkpoints[0].dense()?.parameters;
        for (number, checkpoint) in self.checkpoints.iter().enumerate().skip(1) {
            self.add(number, &mut mean, &checkpoint.dense()?.parameters);
        }
        Ok(fresh_state::dense(&self.model, mean))
    }

    fn load_rows(&self, rows: &mut dyn RowsMut) -> Result<(), CheckpointError> {
        let stored = self.checkpoints.iter().map(|checkpoint| StoredRows::new(checkpoint));
        let stored = stored.collect::<Result<Vec<_>, _>>()?;
        let mut next = Vec::new();
        fresh_state::load_rows(&self.model, &self.rows, rows, &mut |table, range, (dim, mean)| {
            gather(&stored[0], table, range.clone(), false, (dim, &mut *mean))?;
            next.resize(mean.len(), 0.0);
            for (number, stored) in stored.iter().enumerate().skip(1) {
                gather(stored, table, range.clone(), false, (dim, &mut next))?;
                self.add(number, mean, &next);
            }
            Ok(())
        })
    }

    fn device(&self) -> Option<&DeviceState> {
        self.latest().manifest().device.as_ref()
    }
}
