//! Where the time of a training goes.

use serde::Serialize;

use rankine_engine::training::StepTimes;

/// A part of the time of a training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    /// Waiting for the reader.
    Reading,
    /// Computing steps, or enqueueing them on GPUs.
    Computing,
    /// Waiting for the outcomes of steps.
    Awaiting,
    /// Evaluating the model.
    Evaluation,
    /// Waiting for the copy of the state.
    Checkpoint,
}

impl RunPhase {
    /// All phases, in the order in which they are shown.
    pub const ALL: [Self; 5] =
        [Self::Reading, Self::Computing, Self::Awaiting, Self::Evaluation, Self::Checkpoint];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Computing => "computing",
            Self::Awaiting => "awaiting",
            Self::Evaluation => "evaluation",
            Self::Checkpoint => "checkpoint",
        }
    }

    /// What happens in it.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Reading => "waits for the reader",
            Self::Computing => "computes steps, or enqueues them on GPUs",
            Self::Awaiting => "waits for the outcomes of steps: for GPUs, or for other ranks",
            Self::Evaluation => "evaluates the model",
            Self::Checkpoint => "waits for the copy of the state",
        }
    }
}

/// Seconds by phase. In JSON, a list of [`RunPhaseView`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunPhaseTimes([f64; RunPhase::ALL.len()]);

/// A phase, as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunPhaseView {
    /// Its name.
    pub name: &'static str,
    /// The seconds that it took.
    pub seconds: f64,
    /// What happens in it.
    pub meaning: &'static str,
}

impl RunPhaseTimes {
    /// The seconds of a phase.
    pub fn of(&self, phase: RunPhase) -> f64 {
        self.0[phase as usize]
    }

    /// Adds seconds to a phase.
    pub fn add(&mut self, phase: RunPhase, seconds: f64) {
        self.0[phase as usize] += seconds;
    }

    /// Adds the times of steps.
    pub fn add_steps(&mut self, times: &StepTimes) {
        self.add(RunPhase::Reading, times.reading.as_secs_f64());
        self.add(RunPhase::Computing, times.computing.as_secs_f64());
        self.add(RunPhase::Awaiting, times.awaiting.as_secs_f64());
    }

    /// Whether no phase took any time.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Serialize for RunPhaseTimes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let view = |phase: RunPhase| RunPhaseView {
            name: phase.name(),
            seconds: self.of(phase),
            meaning: phase.meaning(),
        };
        serializer.collect_seq(RunPhase::ALL.map(view))
    }
}
