//! What a process does, as reported to the others and in errors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a process does in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStage {
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

impl RunStage {
    /// Whether each piece of the work is short, so that no progress for long means that the process hangs.
    pub fn goes_by_small_steps(self) -> bool {
        matches!(self, Self::Training | Self::Evaluating | Self::Saving)
    }
}

/// What a process is doing within a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepStage {
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
    /// What the run does.
    pub stage: RunStage,
    /// Steps of training started.
    pub step: u64,
    /// What the step does, if it can take long.
    pub in_step: StepStage,
    /// What it waits for, if it waits for other processes.
    pub waits_for: Option<String>,
    /// Whether the trained model is saved.
    #[serde(default)]
    pub model_saved: bool,
    /// Number of reports so far.
    pub(super) signs: u64,
}

/// `in training, at step 1203, waiting for the judgement`
impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.stage {
            RunStage::Preparing => "while it prepared",
            RunStage::Training => "in training",
            RunStage::Evaluating => "in an evaluation",
            RunStage::Saving => "while the model was saved",
            RunStage::Measuring => "while steps were timed",
        })?;
        if self.step > 0 {
            write!(f, ", at step {}", self.step)?;
        }
        match (&self.waits_for, self.in_step) {
            (Some(what), _) => write!(f, ", waiting for {what}"),
            (None, StepStage::Working) => Ok(()),
            (None, StepStage::Reading) => f.write_str(", waiting for the reader's next batch"),
            (None, StepStage::Computing) => f.write_str(", computing it"),
            (None, StepStage::Awaiting) => {
                f.write_str(", waiting for the device to finish the steps in flight")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_did_is_said_with_the_step_and_what_it_waited_for() {
        let told = |stage, step, in_step, waits_for: Option<&str>| {
            let waits_for = waits_for.map(str::to_owned);
            Activity { stage, step, in_step, waits_for, ..Activity::default() }.to_string()
        };
        use {RunStage as R, StepStage as S};
        for (found, expected) in [
            (told(R::Preparing, 0, S::Working, None), "while it prepared"),
            (told(R::Training, 1203, S::Working, None), "in training, at step 1203"),
            (
                told(R::Training, 1, S::Reading, None),
                "in training, at step 1, waiting for the reader's next batch",
            ),
            (told(R::Evaluating, 2, S::Computing, None), "in an evaluation, at step 2, computing it"),
            (
                told(R::Saving, 3, S::Awaiting, None),
                "while the model was saved, at step 3, waiting for the device to finish the steps in flight",
            ),
            (
                told(R::Measuring, 4, S::Reading, Some("all")),
                "while steps were timed, at step 4, waiting for all",
            ),
        ] {
            assert_eq!(found, expected);
        }
        // What takes long by itself is no hang.
        let hangs =
            [R::Preparing, R::Training, R::Evaluating, R::Saving, R::Measuring].map(R::goes_by_small_steps);
        assert_eq!(hangs, [false, true, true, true, false]);
    }
}
