//! Checkpoints: everything needed to resume a training as if it had never stopped, on disk and checksummed.
//!
//! `docs/reference/checkpoint-format.md` describes the format. In short: a folder `step-N` appears, by a rename, once
//! every byte in it is durable; its `manifest.json` was written last and vouches for one index per shard, and each
//! index for the pieces of its shard. Pieces are named by table, rows and columns, so that any number of ranks, on CPU
//! or GPU, can find theirs.
//!
//! All file operations go through [`Files`], so that tests, and users who rehearse a failure, can make any one of
//! them fail. Nothing here decides when a checkpoint is due: that is up to the training.

#![forbid(unsafe_code)]

mod delta;
mod error;
mod faults;
pub mod files;
mod folder;
mod identity;
pub mod index;
mod keys;
pub mod manifest;
mod open;
mod piece;
mod publish;
mod shard;
mod source;
mod stored;
mod stripes;
mod writer;

use std::ops::Range;

use rankine_embedding::Membership;
use rankine_embedding::rows::Rows;

pub use delta::{DELTA_NAME, Delta, DeltaHeader, ModelChanges, ModelIdentity};
pub use error::CheckpointError;
pub use faults::{Fault, FaultyFiles};
pub use files::{Disk, Files, Input, Output};
pub use folder::{DamagedCheckpoint, Leftovers, Needs, latest, leftovers, list, prune};
pub use folder::{open_intact, set_aside};
pub use index::{PieceContents, PieceEntry, SavedRows, ShardIndex};
pub use keys::{Chosen, TableKeys};
pub use manifest::NAME as MANIFEST_NAME;
pub use manifest::{
    Base, BestState, DataIdentity, DeviceState, Fp8State, GuardState, InitialState, LossScale, LossState,
    Manifest, OrderState, ReachedTarget, RuleState, TableState, TrainState,
};
pub use open::{Checkpoint, Totals};
pub use publish::{Draft, PublishedCheckpoint, draft_path};
pub use shard::{ShardFiles, write_shard, write_shards};
pub use source::StateSource;
pub use stored::StoredRows;
pub use stripes::{STRIPE_BYTES, checksum_of_stripes, striped_checksum};
pub use writer::Writer;

/// The name of a step's checkpoint.
pub fn step_name(step: u64) -> String {
    format!("step-{step}")
}

/// Consecutive dense parameters with their optimizer state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DenseState {
    /// The index of the first one among all dense parameters.
    pub first: usize,
    /// The parameters, laid out as in [`rankine_model::DenseLayout::named_layers`].
    pub parameters: Vec<f32>,
    /// For each kind of state, one value per parameter.
    pub state: Vec<Vec<f32>>,
}

impl DenseState {
    /// A range of these parameters.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(&self, range: Range<usize>) -> Self {
        Self {
            first: self.first + range.start,
            parameters: self.parameters[range.clone()].to_vec(),
            state: self.state.iter().map(|kind| kind[range.clone()].to_vec()).collect(),
        }
    }
}

/// The state of one rank, to be saved.
pub struct RankState<'a> {
    /// The dense parameters that it saves; consecutive ones are together.
    pub dense: Vec<DenseState>,
    /// Its rows.
    pub rows: &'a dyn Rows,
    /// The memberships that it saves, with the numbers of their tables: all of them if it is the first rank.
    pub memberships: Vec<(usize, &'a Membership)>,
}

impl std::fmt::Debug for RankState<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RankState").field("parts", &self.rows.parts().len()).finish_non_exhaustive()
    }
}
