//! `[guard]`: what happens when something goes wrong during training.

use serde::Deserialize;

use super::values::{Count, Seconds};

/// `[guard]`: what happens when something goes wrong during training.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Guard {
    /// What to do if the loss or the gradients of a step are not finite. Such a step changes no weight and no optimizer
    /// state on any rank.
    pub non_finite: NonFinite,
    /// Maximum number of consecutive skipped steps; one more ends the training.
    pub skipped_in_a_row_max: Count,
    /// Time limit of each step in seconds, including reading its batch, and of each batch of an evaluation. A step that
    /// exceeds it ends the job. Without it, 45 with several processes and 300 with one.
    pub step_timeout_s: Option<Seconds>,
    /// Seconds that GPUs wait for each other at a barrier or an all-reduce.
    pub barrier_timeout_s: Seconds,
    /// Seconds without a heartbeat after which a process is considered lost.
    pub silence_timeout_s: Seconds,
    /// What to do with an id outside of its table. A `[[table]]` can override it. All such ids are counted per column.
    pub ids_out_of_range: IdPolicy,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            non_finite: NonFinite::default(),
            skipped_in_a_row_max: Count::new(10).expect("a constant in range"),
            step_timeout_s: None,
            barrier_timeout_s: Seconds::new(30.0).expect("a constant in range"),
            silence_timeout_s: Seconds::new(40.0).expect("a constant in range"),
            ids_out_of_range: IdPolicy::default(),
        }
    }
}

/// What to do if the loss or the gradients of a step are not finite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum NonFinite {
    /// Stop with an error that names the step, the rank and the value.
    #[default]
    Stop,
    /// Report and count the step, and continue with the next batch.
    Skip,
}

impl NonFinite {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Skip => "skip",
        }
    }
}

/// What to do with an id outside of its table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum IdPolicy {
    /// Stop with an error that names the id and its sample.
    #[default]
    Fail,
    /// Replace it with the table's `oov_row`, by default row 0 if the column has an exact vocabulary.
    Oov,
    /// Remove it from its bag; a bag that is then empty has a zero vector.
    Skip,
}

impl IdPolicy {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Oov => "oov",
            Self::Skip => "skip",
        }
    }
}
