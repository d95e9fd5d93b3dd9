//! What a training that goes on takes from the checkpoint instead of finding it out again.

use rankine_embedding::Topology;

use crate::checkpoint::{Checkpoint, CheckpointError};

const TUNING_NAME: &str = "tuning.json";
const MACHINE_NAME: &str = "machine.toml";

/// What was found out by timing, and decides how results are rounded: a training that goes on takes it as it was.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorded {
    /// The algorithms of products.
    pub(super) tuning: Option<String>,
    /// What GPUs were taken to do in a second when tables were placed.
    pub(super) machine: Option<String>,
}

impl Recorded {
    /// What a checkpoint has of it; nothing where it was saved by other ranks, whose products and placements are
    /// others.
    pub(super) fn of(checkpoint: &Checkpoint, topology: Topology) -> Result<Self, CheckpointError> {
        let manifest = checkpoint.manifest();
        if (manifest.ranks, manifest.nodes) != (topology.ranks(), topology.nodes()) {
            return Ok(Self::default());
        }
        Ok(Self { tuning: checkpoint.text(TUNING_NAME)?, machine: checkpoint.text(MACHINE_NAME)? })
    }

    /// The files of a checkpoint that hold it, by their names.
    pub(super) fn files(self) -> [(&'static str, Option<String>); 2] {
        [(TUNING_NAME, self.tuning), (MACHINE_NAME, self.machine)]
    }
}
