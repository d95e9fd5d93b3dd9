//! The events of a run, and who observes them.

use std::path::Path;

use rankine_embedding::Topology;
use rankine_reader::io::Rung;

use super::backend::DeviceMemory;
use super::ids::IdCounts;
use crate::checkpoint::{CheckpointError, Skipped};
use crate::evaluation::HeadMetrics;
use crate::model::ModelSpec;

/// Events of a run, for an observer. Each one replaces the state that the one before described.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// Progress of generating the job's dataset.
    Generating {
        /// Samples written.
        samples: u64,
        /// Samples to write.
        total: u64,
    },
    /// The job's dataset is complete.
    Generated,
    /// Progress of checksumming raw files that may have changed since they were last read.
    Checksumming {
        /// Bytes read.
        bytes: u64,
        /// Bytes to read.
        total: u64,
    },
    /// Training is about to start.
    Started(RunStart<'a>),
    /// A step is complete.
    Step(Progress),
    /// A step is complete at which the job reports the loss, and the ids outside their tables so far.
    Report(Progress, &'a IdCounts),
    /// Progress of evaluating the model.
    Evaluating {
        /// Samples scored.
        samples: u64,
        /// Samples to score.
        total: u64,
    },
    /// A damaged checkpoint was skipped, and set aside.
    Skipped(&'a Skipped),
    /// A partial checkpoint, left by a process that ended while it wrote or removed it, was removed.
    Removed {
        /// The folder.
        path: &'a Path,
        /// Its bytes.
        bytes: u64,
    },
    /// A damaged checkpoint that was set aside still exists.
    Damaged {
        /// The folder.
        path: &'a Path,
        /// Its bytes.
        bytes: u64,
    },
    /// The results of an earlier attempt in the run folder were moved to this folder.
    Kept {
        /// The folder.
        path: &'a Path,
    },
    /// Training resumes from a checkpoint.
    Resumed {
        /// Steps completed at the checkpoint.
        step: u64,
        /// The checkpoint.
        path: &'a Path,
    },
    /// Training starts at step 0 in a folder that was given to resume or restart in.
    Anew {
        /// Whether that was requested; otherwise there is no checkpoint.
        restarted: bool,
    },
    /// Host memory cannot hold a copy of the state, so training waits until the checkpoint is written.
    CheckpointPauses {
        /// Steps completed at the checkpoint.
        step: u64,
        /// Bytes that a copy would take.
        bytes: u64,
    },
    /// A checkpoint is complete, and durable.
    Checkpointed {
        /// Steps completed at the checkpoint.
        step: u64,
        /// Bytes of the checkpoint.
        bytes: u64,
        /// Seconds that it took, most of it while training continued.
        seconds: f64,
        /// Seconds that training waited for the copy of its state.
        waited_seconds: f64,
    },
    /// A checkpoint could not be saved; training continues.
    CheckpointFailed {
        /// Steps completed at the checkpoint.
        step: u64,
        /// Why.
        error: &'a CheckpointError,
    },
    /// The model was evaluated.
    Evaluated {
        /// Steps completed at the evaluation.
        step: u64,
        /// The metrics of each head.
        heads: &'a [HeadMetrics],
    },
}

/// A training that is about to start.
#[derive(Debug, Clone, Copy)]
pub struct RunStart<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// The device, in words.
    pub device: &'a str,
    /// The device memory that the job uses, if the device has its own.
    pub memory: Option<&'a DeviceMemory>,
    /// The ranks that train.
    pub topology: Topology,
    /// How blocks are read.
    pub rung: Rung,
    /// Samples that the whole run will train on, unless it is stopped before.
    pub samples: u64,
}

/// The progress of a training.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Progress {
    /// Steps completed.
    pub step: u64,
    /// Epochs completed.
    pub epoch: u64,
    /// Samples trained on.
    pub samples: u64,
    /// The mean loss of the steps since the last report that were not skipped; NaN if all were.
    pub loss: f64,
    /// Steps skipped so far because a value was not finite.
    pub non_finite_steps: u64,
    /// The learning rate of the MLPs at this step.
    pub dense_learning_rate: f64,
    /// The learning rate of the embeddings at this step.
    pub sparse_learning_rate: f64,
    /// Seconds of training so far: the wall-clock time of steps, including reading and waiting for checkpoints, without
    /// evaluations and without the time before the first step. After a resume they continue from the checkpoint's.
    /// `samples / seconds` is the rate of the run so far; the summary has that of the whole run.
    pub seconds: f64,
    /// The same rate since the last report, or since a resume.
    pub samples_per_second: f64,
}

/// Observes a run.
pub trait Observer: Send {
    /// Receives an event.
    fn observe(&mut self, event: Event<'_>);
}

/// Ignores all events.
impl Observer for () {
    fn observe(&mut self, _: Event<'_>) {}
}
