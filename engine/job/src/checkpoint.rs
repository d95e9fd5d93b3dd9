//! `[checkpoint]`: when checkpoints are saved.

use serde::Deserialize;

use super::values::{Count, Positive};

/// `[checkpoint]`: when checkpoints are saved, in the folder `checkpoints` of the run. A checkpoint holds everything
/// needed to resume. Without `every_steps` and `every_minutes`, one is saved only if a signal stops the run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Checkpoint {
    /// Steps between two checkpoints.
    pub every_steps: Option<Count>,
    /// Minutes between two checkpoints. With `every_steps`, whichever is due first.
    pub every_minutes: Option<Positive>,
    /// Number of latest checkpoints to keep. Full checkpoints on which incremental ones build, the checkpoint of the
    /// best model (`train.early_stopping`) and snapshots (`train.average`) are kept as well.
    pub keep: Count,
    /// Whether checkpoints are incremental: they store only the table rows that were updated since the last full
    /// checkpoint, and everything else in full.
    pub incremental: bool,
    /// With `incremental`, every `full_every`-th checkpoint is a full one.
    pub full_every: Count,
    /// What to do if a checkpoint cannot be saved. Earlier checkpoints are not changed.
    pub on_failure: OnFailure,
}

impl Default for Checkpoint {
    fn default() -> Self {
        let count = |count| Count::new(count).expect("a constant in range");
        Self {
            every_steps: None,
            every_minutes: None,
            keep: count(3),
            incremental: false,
            full_every: count(10),
            on_failure: OnFailure::default(),
        }
    }
}

/// What to do if a checkpoint cannot be saved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// Stop with the error. `--resume` continues from the last checkpoint that was saved.
    #[default]
    Stop,
    /// Report the error and continue; the next checkpoint is saved when it is due.
    Continue,
}

impl OnFailure {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Continue => "continue",
        }
    }
}
