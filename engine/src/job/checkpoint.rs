//! When the state of a training is saved.

use serde::Deserialize;

use super::values::{Count, Positive};

/// `[checkpoint]`: when all that a training needs to go on is saved, in the run's folder `checkpoints`. Without
/// `every_steps` and `every_minutes` that is done only where a signal asks the run to stop.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Checkpoint {
    /// Steps between two checkpoints.
    pub every_steps: Option<Count>,
    /// Minutes between two checkpoints. With `every_steps`, whatever comes first.
    pub every_minutes: Option<Positive>,
    /// Checkpoints that are kept, the latest ones; those that they are additions to are kept, too.
    pub keep: Count,
    /// Whether most checkpoints hold only the rows of tables that were updated since the last whole one, and all else.
    pub incremental: bool,
    /// Every so many checkpoints one is whole, where others are not.
    pub full_every: Count,
    /// What becomes of a training whose checkpoint cannot be saved. Earlier ones stay as they are.
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

/// What becomes of a training whose checkpoint cannot be saved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// It ends, with the error. `--resume` goes on from the last checkpoint that was saved.
    #[default]
    Stop,
    /// It goes on; the error is told, and the next checkpoint is tried when it is due.
    Continue,
}

impl OnFailure {
    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Continue => "continue",
        }
    }
}
