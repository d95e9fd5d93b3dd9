//! The ids that have rows of tables, as a checkpoint has them, and what is chosen of a rank's state.

use std::sync::Arc;

use rankine_embedding::Membership;
use rankine_embedding::membership::SavedMembership;
use rankine_embedding::rows::RowSelection;

use super::piece::Piece;
use super::{Checkpoint, CheckpointError, RankState};

/// Which ids have rows of a table, and the counts of others: all, or what was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableKeys {
    /// The number of the table.
    pub table: usize,
    /// The ids and the counts.
    pub saved: SavedMembership,
}

/// What a shard saves of its rank's state, besides the dense parameters.
#[derive(Debug, Clone, Default)]
pub struct Chosen {
    /// The rows.
    pub rows: Vec<RowSelection>,
    /// The ids.
    pub keys: Arc<Vec<TableKeys>>,
}

impl Chosen {
    /// Returns everything.
    pub fn all(state: &RankState<'_>) -> Self {
        let keys = state.memberships.iter();
        let keys = keys.map(|&(table, membership)| TableKeys { table, saved: membership.saved() });
        Self { rows: RowSelection::all(state.rows), keys: Arc::new(keys.collect()) }
    }

    /// Returns what was changed since tracking began.
    ///
    /// # Errors
    /// [`CheckpointError::State`] if changes are not tracked, or rows cannot be reached.
    pub fn changed(state: &RankState<'_>) -> Result<Self, CheckpointError> {
        let untracked = || CheckpointError::State("updated rows were not tracked".into());
        let rows = RowSelection::touched(state.rows)?.ok_or_else(untracked)?;
        let keys = state.memberships.iter().map(|&(table, membership)| {
            Ok(TableKeys { table, saved: membership.changed().ok_or_else(untracked)? })
        });
        Ok(Self { rows, keys: Arc::new(keys.collect::<Result<_, CheckpointError>>()?) })
    }
}

impl Checkpoint {
    /// Returns the memberships of all dynamic tables, with the tables' numbers.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::Io`].
    pub fn memberships(&self) -> Result<Vec<(usize, Membership)>, CheckpointError> {
        let tables = self.manifest().tables.iter().enumerate();
        let dynamic = tables.filter_map(|(number, table)| Some((number, table.table.dynamic?)));
        let mut memberships: Vec<_> = dynamic.map(|(number, rows)| (number, Membership::new(rows))).collect();
        if memberships.is_empty() {
            return Ok(memberships);
        }
        for checkpoint in self.base().into_iter().chain([self]) {
            let numbers: Vec<_> = memberships.iter().map(|(number, _)| *number).collect();
            let saved = checkpoint.saved_memberships(&numbers)?;
            for ((table, membership), saved) in memberships.iter_mut().zip(saved) {
                membership.restore(&saved).map_err(|wrong| {
                    let tensor = &self.manifest().tables[*table].tensor;
                    CheckpointError::damaged(checkpoint.path(), format!("the ids of {tensor}: {wrong}"))
                })?;
            }
        }
        let steps = self.manifest().train.optimizer_steps();
        memberships.iter_mut().for_each(|(_, membership)| membership.continue_from(steps));
        Ok(memberships)
    }

    /// Reads what this checkpoint alone says of some tables. Keys may have changed their rows, so that all pieces are
    /// read before any is applied.
    pub(super) fn saved_memberships(
        &self,
        tables: &[usize],
    ) -> Result<Vec<SavedMembership>, CheckpointError> {
        let mut all = vec![SavedMembership::default(); tables.len()];
        let at = |table: usize| tables.iter().position(|number| *number == table);
        self.for_each_own_piece(&|contents, _| contents.is_of_keys(), &mut |piece| {
            match piece {
                Piece::Keys(table, piece) => {
                    let Some(at) = at(table) else { return Ok(()) };
                    let keys = &mut all[at].keys;
                    keys.rows.extend(piece.rows);
                    keys.keys.extend(piece.keys);
                    keys.scores.extend(piece.scores);
                    keys.freed.extend(piece.freed);
                }
                Piece::Counts(table, piece) => {
                    let Some(at) = at(table) else { return Ok(()) };
                    let sketches = &mut all[at].sketches;
                    sketches.shards.extend(piece.shards);
                    sketches.added.extend(piece.added);
                    sketches.counters.extend(piece.counters);
                }
                Piece::Dense(..) | Piece::Rows(_) => {}
            }
            Ok(())
        })?;
        Ok(all)
    }
}
