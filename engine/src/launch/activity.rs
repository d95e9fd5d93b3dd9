//! What a process does, as reported to the others and in errors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A part of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Opening or generating data, allocating memory, capturing graphs.
    #[default]
    Preparing,
    /// Steps.
    Training,
    /// Evaluating the model.
    Evaluating,
    /// Saving the model.
    Saving,
    /// Timing steps.
    Measuring,
}

impl Phase {
    /// Whether each piece of the work is short, so that no progress for long means that the process hangs.
    pub fn goes_by_small_steps(self) -> bool {
        matches!(self, Self::Training | Self::Evaluating | Self::Saving)
    }
}

/// What a process is doing within a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Nothing that can take long.
    #[default]
    Working,
    /// Taking the next batch from the reader.
    Reading,
    /// Computing a step, or enqueuing it on the GPUs, which may first have to complete an earlier one.
    Computing,
    /// Waiting for the GPUs to complete all started steps.
    Awaiting,
}

/// What a process does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// The part of the run.
    pub phase: Phase,
    /// Steps of training started.
    pub step: u64,
    /// The stage within it, if it can take long.
    pub stage: Stage,
    /// What it waits for, if it waits for other processes.
    pub waits_for: Option<String>,
    /// Number of reports so far.
    pub(super) signs: u64,
}

/// `in training, at step 1203, waiting for the judgement`
impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.phase {
            Phase::Preparing => "while it prepared",
            Phase::Training => "in training",
            Phase::Evaluating => "in an evaluation",
            Phase::Saving => "while the model was saved",
            Phase::Measuring => "while steps were timed",
        })?;
        if self.step > 0 {
            write!(f, ", at step {}", self.step)?;
        }
        match (&self.waits_for, self.stage) {
            (Some(what), _) => write!(f, ", waiting for {what}"),
            (None, Stage::Working) => Ok(()),
            (None, Stage::Reading) => f.write_str(", waiting for the reader's next batch"),
            (None, Stage::Computing) => f.write_str(", computing it"),
            (None, Stage::Awaiting) => f.write_str(", waiting for the device to finish the steps in flight"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_did_is_said_with_the_step_and_what_it_waited_for() {
        let told = |phase, step, stage, waits_for: Option<&str>| {
            Activity { phase, step, stage, waits_for: waits_for.map(str::to_owned), signs: 0 }.to_string()
        };
        use {Phase as P, Stage as S};
        for (found, expected) in [
            (told(P::Preparing, 0, S::Working, None), "while it prepared"),
            (told(P::Training, 1203, S::Working, None), "in training, at step 1203"),
            (
                told(P::Training, 1, S::Reading, None),
                "in training, at step 1, waiting for the reader's next batch",
            ),
            (told(P::Evaluating, 2, S::Computing, None), "in an evaluation, at step 2, computing it"),
            (
                told(P::Saving, 3, S::Awaiting, None),
                "while the model was saved, at step 3, waiting for the device to finish the steps in flight",
            ),
            (
                told(P::Measuring, 4, S::Reading, Some("all")),
                "while steps were timed, at step 4, waiting for all",
            ),
        ] {
            assert_eq!(found, expected);
        }
        // What takes long by itself is no hang.
        let hangs =
            [P::Preparing, P::Training, P::Evaluating, P::Saving, P::Measuring].map(P::goes_by_small_steps);
        assert_eq!(hangs, [false, true, true, true, false]);
    }
}
