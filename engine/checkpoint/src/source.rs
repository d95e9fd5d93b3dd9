//! What the state of a training is restored from.

use rankine_embedding::Membership;
use rankine_embedding::rows::RowsMut;

use super::{Checkpoint, CheckpointError, DenseState, DeviceState};

/// State that each rank restores its part of: that of a checkpoint, or of a trained model that a training starts from.
pub trait StateSource: Send + Sync {
    /// The steps that the optimizers have taken.
    fn optimizer_steps(&self) -> u64;

    /// All dense parameters with their state.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::Io`].
    fn dense(&self) -> Result<DenseState, CheckpointError>;

    /// Restores the rows of all tables that a rank has. Rows that the source does not have stay as they are.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::Io`], and [`CheckpointError::State`] if rows cannot be
    /// reached; rows of tables are then partly set.
    fn load_rows(&self, rows: &mut dyn RowsMut) -> Result<(), CheckpointError>;

    /// The memberships of dynamic tables, with the tables' numbers, as far as the source has these tables.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::Io`].
    fn memberships(&self) -> Result<Vec<(usize, Membership)>, CheckpointError>;

    /// The state of GPUs besides parameters.
    fn device(&self) -> Option<&DeviceState>;
}

impl StateSource for Checkpoint {
    fn optimizer_steps(&self) -> u64 {
        self.manifest().train.optimizer_steps()
    }

    fn dense(&self) -> Result<DenseState, CheckpointError> {
        self.dense()
    }

    fn load_rows(&self, rows: &mut dyn RowsMut) -> Result<(), CheckpointError> {
        self.load_rows(rows)
    }

    fn memberships(&self) -> Result<Vec<(usize, Membership)>, CheckpointError> {
        self.memberships()
    }

    fn device(&self) -> Option<&DeviceState> {
        self.manifest().device.as_ref()
    }
}
