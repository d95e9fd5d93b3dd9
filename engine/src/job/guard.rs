//! What becomes of steps that cannot be learnt from.

use serde::Deserialize;

use super::values::Count;

/// `[guard]`: what becomes of a training in which something is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Guard {
    /// What becomes of a training whose loss or gradients are no finite numbers in a step. No weight, no row and no
    /// optimizer state changes in that step, on any rank.
    pub non_finite: NonFinite,
    /// Steps in a row that are skipped at most: one more ends the training.
    pub skipped_in_a_row_max: Count,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            non_finite: NonFinite::default(),
            skipped_in_a_row_max: Count::new(10).expect("a constant in range"),
        }
    }
}

/// What becomes of a training whose loss or gradients are no finite numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum NonFinite {
    /// It ends, with an error that says at which step, on which rank, and what was wrong.
    #[default]
    Stop,
    /// It goes on with the next batch; the step is told and counted.
    Skip,
}

impl NonFinite {
    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Skip => "skip",
        }
    }
}
