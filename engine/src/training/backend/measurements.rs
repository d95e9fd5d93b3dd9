//! What was measured on GPUs, which a resumed training takes from the checkpoint instead of measuring again.

use rankine_topology::Topology;

use rankine_checkpoint::{Checkpoint, CheckpointError};

const TUNING_NAME: &str = "tuning.json";
const MACHINE_NAME: &str = "machine.toml";

/// What was measured, and affects how results are rounded: a resumed training uses it unchanged.
#[derive(Debug, Clone, Default)]
pub(in crate::training) struct Measurements {
    /// The algorithms of matrix products.
    pub(in crate::training) tuning: Option<String>,
    /// The GPU performance that tables were placed by.
    pub(in crate::training) machine: Option<String>,
}

impl Measurements {
    /// Those of a checkpoint; empty if other ranks saved it, whose products and placements differ.
    pub(in crate::training) fn of(
        checkpoint: &Checkpoint,
        topology: Topology,
    ) -> Result<Self, CheckpointError> {
        let manifest = checkpoint.manifest();
        if (manifest.ranks, manifest.nodes) != (topology.ranks(), topology.nodes()) {
            return Ok(Self::default());
        }
        Ok(Self { tuning: checkpoint.text(TUNING_NAME)?, machine: checkpoint.text(MACHINE_NAME)? })
    }

    /// The files of a checkpoint that hold them, by their names.
    pub(in crate::training) fn files(self) -> [(&'static str, Option<String>); 2] {
        [(TUNING_NAME, self.tuning), (MACHINE_NAME, self.machine)]
    }
}
