//! What becomes of steps that cannot be learnt from.

use serde::Deserialize;

use super::values::{Count, Seconds};

/// `[guard]`: what becomes of a training in which something is wrong.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Guard {
    /// What becomes of a training whose loss or gradients are no finite numbers in a step. No weight, no row and no
    /// optimizer state changes in that step, on any rank.
    pub non_finite: NonFinite,
    /// Steps in a row that are skipped at most: one more ends the training.
    pub skipped_in_a_row_max: Count,
    /// Seconds within which each step must come to its end, reading its batch included, and so must each batch of an
    /// evaluation and each piece of a model or checkpoint that is saved; what does not ends the job. Without it, 45
    /// over several processes, and 300 in one.
    pub step_timeout_s: Option<Seconds>,
    /// Seconds that GPUs wait for each other at a barrier or a sum.
    pub barrier_timeout_s: Seconds,
    /// Seconds without a sign of life after which a process is taken to be lost.
    pub silence_timeout_s: Seconds,
    /// What becomes of an id that is no row of its table, where a `[[table]]` says nothing else. All such ids are
    /// counted, column by column.
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

/// What becomes of an id that is no row of its table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum IdPolicy {
    /// It ends the training, with an error that names it and its place.
    #[default]
    Fail,
    /// It stands for the row of all that is out of vocabulary: row 0 of a table whose columns have vocabularies, and of
    /// others the `oov_row` of their `[[table]]`.
    Oov,
    /// It is left out of its bag; the vector of a bag that is empty then is 0.
    Skip,
}

impl IdPolicy {
    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Oov => "oov",
            Self::Skip => "skip",
        }
    }
}
