//! The average of the weights of several checkpoints (`train.average`).

use std::collections::BTreeMap;
use std::sync::Arc;

use rankine_checkpoint::{Checkpoint, CheckpointError, DenseState, DeviceState, StateSource, StoredRows};
use rankine_embedding::Membership;
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

    /// The same for some rows of a table, `[row][dim]`: a row that its id has only from checkpoint `first` on begins
    /// there.
    fn add_rows(&self, number: usize, first: &[u32], (dim, mean): (usize, &mut [f32]), next: &[f32]) {
        let rows = mean.chunks_exact_mut(dim).zip(next.chunks_exact(dim));
        for ((mean, next), &first) in rows.zip(first) {
            match number.saturating_sub(first as usize) {
                0 => mean.copy_from_slice(next),
                since => self.add(since, mean, next),
            }
        }
    }

    /// Returns, for each dynamic table of the spec, the first checkpoint from which on
    /// each row belonged to the id that has it in the latest one.
    fn first_checkpoints(&self) -> Result<BTreeMap<usize, Vec<u32>>, CheckpointError> {
        let mut first = BTreeMap::new();
        let mut before: Vec<(usize, Membership)> = Vec::new();
        for (number, checkpoint) in self.checkpoints.iter().enumerate() {
            let memberships = checkpoint.memberships()?;
            for (at, (table, membership)) in memberships.iter().enumerate() {
                let first = first.entry(*table).or_insert_with(|| vec![0; self.rows[*table] as usize]);
                let Some((_, earlier)) = before.get(at) else { continue };
                let keys = earlier.keys_of_rows().zip(membership.keys_of_rows());
                first.iter_mut().zip(keys).for_each(|(first, (earlier, key))| {
                    if earlier != key {
                        *first = number as u32;
                    }
                });
            }
            before = memberships;
        }
        Ok(first)
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
        let first = self.first_checkpoints()?;
        let spec = &self.model.spec;
        let mut next = Vec::new();
        fresh_state::load_rows(&self.model, &self.rows, rows, &mut |table, range, (dim, mean)| {
            gather(&stored[0], table, range.clone(), false, (dim, &mut *mean))?;
            next.resize(mean.len(), 0.0);
            for (number, stored) in stored.iter().enumerate().skip(1) {
                gather(stored, table, range.clone(), false, (dim, &mut next))?;
                // First-order terms have the rows of the table of their column.
                let shared = table.checked_sub(spec.tables.len()).map(|column| spec.features[column].table);
                match first.get(&shared.unwrap_or(table)) {
                    Some(first) => {
                        let first = &first[range.start as usize..range.end as usize];
                        self.add_rows(number, first, (dim, &mut *mean), &next);
                    }
                    None => self.add(number, mean, &next),
                }
            }
            Ok(())
        })
    }

    fn memberships(&self) -> Result<Vec<(usize, Membership)>, CheckpointError> {
        self.latest().memberships()
    }

    fn device(&self) -> Option<&DeviceState> {
        self.latest().manifest().device.as_ref()
    }
}
