//! The events of a run, and who observes them.

use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;
use rankine_backend::ReportDetails;
use rankine_base::sealed::Checksum;
use rankine_checkpoint::{CheckpointError, DamagedCheckpoint};
use rankine_embedding::TierTraffic;
use rankine_job::{DeviceKind, Job, Precision, StoppingMetric};
use rankine_model::ModelSpec;
use rankine_model::evaluation::HeadMetrics;
use rankine_model::guard::SkippedSteps;
use rankine_reader::io::Rung;
use rankine_reader::{Dataset, Part};
use serde::{Deserialize, Serialize};

use super::devices::RunDevices;
use super::ids::IdCounts;
use super::power::PowerSummary;
use super::summary::{EndReason, Summary};

/// Events of a run, for an observer. Each one replaces the state that the one before described.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
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
    Step(Progress, StepDetails),
    /// A step is complete at which the job reports the loss.
    Report(Report<'a>),
    /// Progress of evaluating the model.
    Evaluating {
        /// Samples scored.
        samples: u64,
        /// Samples to score; an estimate for raw files, and 0 if that is unknown, as for a pipe.
        total: u64,
        /// Bytes read so far.
        bytes_read: u64,
    },
    /// A damaged checkpoint was skipped, and set aside.
    SetAside(&'a DamagedCheckpoint),
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
    /// A finished run goes on from its last checkpoint.
    Continues {
        /// Why.
        why: &'a str,
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
    /// The model was evaluated. With `eval.beside_training`, later steps may have been completed since.
    Evaluated {
        /// Steps completed at the evaluation.
        step: u64,
        /// The part of the dataset.
        part: Part,
        /// The `[[eval.set]]` of the job that it was evaluated on; `None` for the dataset that is trained on.
        set: Option<&'a str>,
        /// Identifies the samples: evaluations with equal checksums scored the same ones. Only the first process of a
        /// training knows it.
        samples: Option<Checksum>,
        /// Whether its weights are those of `train.average`.
        averaged: bool,
        /// Seconds that training waited for it.
        seconds: f64,
        /// The metrics of each head.
        heads: &'a [HeadMetrics],
    },
    /// Early stopping compared the evaluation after a step with the best one.
    Judged(StoppingProgress),
    /// The run is finished: its model and summary are saved.
    Finished {
        /// Steps completed.
        step: u64,
        /// Steps after which the saved model was trained.
        saved_step: u64,
        /// Why training ended.
        reason: EndReason,
    },
}

impl Event<'_> {
    /// What this event warns of.
    pub fn warning(&self) -> Option<String> {
        Some(match self {
            Self::SetAside(DamagedCheckpoint { path, why, .. }) => {
                format!("{} is unusable and was set aside: {why}", path.display())
            }
            Self::Damaged { path, bytes } => {
                let (path, size) = (path.display(), ByteSize(*bytes));
                format!("{path} ({size}) is a damaged checkpoint: delete it when you no longer need it")
            }
            Self::Kept { path } => {
                format!("the former contents of the run folder were moved to {}", path.display())
            }
            Self::Continues { why } => format!("{why}: resuming from its last checkpoint"),
            Self::CheckpointFailed { step, error } => {
                format!("step {step}: checkpoint not saved: {error}; training continues")
            }
            _ => return None,
        })
    }
}

/// A training that is about to start.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RunStart<'a> {
    /// The effective job.
    pub job: &'a Job,
    /// The run folder.
    pub run: &'a Path,
    /// The model.
    pub spec: &'a ModelSpec,
    /// The dataset.
    pub dataset: &'a Dataset,
    /// The kind of device.
    pub kind: DeviceKind,
    /// The precision of matrix products; `None` on a CPU that computes in fp32.
    pub precision: Option<Precision>,
    /// The devices, and the tables on them.
    pub devices: &'a RunDevices,
    /// How blocks are read; `None` if a program pushes batches.
    pub rung: Option<Rung>,
    /// Samples that the whole run will train on, unless it is stopped before; `None` if a program decides.
    pub samples: Option<u64>,
    /// Samples trained on before the start.
    pub samples_done: u64,
    /// Steps completed at the start: 0, or those of the checkpoint that training resumes from.
    pub step: u64,
    /// Ids outside their tables in those steps.
    pub ids_out_of_range: &'a IdCounts,
    /// Which of the two trainings of `train.early_stopping.refit` it is; `None` without.
    pub refit: Option<RefitStage<'a>>,
}

/// One of the two trainings of `train.early_stopping.refit`.
#[derive(Debug, Clone, Copy)]
pub enum RefitStage<'a> {
    /// The first, which holds samples out to find the number of steps.
    Search,
    /// The second, on all samples, whose model is the result; with the summary of the first.
    Refit(&'a Summary),
}

/// How the evaluation after a step compares with the best one, for early stopping.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoppingProgress {
    /// Steps completed at the evaluation.
    pub step: u64,
    /// The samples that are evaluated.
    pub part: Part,
    /// The metric that decides, of the first head.
    pub metric: StoppingMetric,
    /// Steps completed at the best evaluation.
    pub best_step: u64,
    /// The value of the metric there.
    pub best_value: f64,
    /// Evaluations since the best one.
    pub evaluations_since: u64,
    /// Evaluations without a better one after which training ends.
    pub patience: u64,
}

/// The progress of a training.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
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

/// Where the time of a step went, and the state of the reader after it. All counts are of this process, since it
/// started.
#[derive(Debug, Clone, Copy)]
pub struct StepDetails {
    /// Samples of the step, over all ranks.
    pub samples: u64,
    /// Where its time went.
    pub times: StepTimes,
    /// Bytes of the training part read so far.
    pub bytes_read: u64,
    /// Batches that are ready for the next steps.
    pub batches_ready: usize,
    /// Steps skipped so far.
    pub skipped: SkippedSteps,
}

/// Where the time of one or several steps went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Time waiting for the reader.
    pub reading: Duration,
    /// Time computing, or enqueueing on GPUs, which may first have to complete an earlier step.
    pub computing: Duration,
    /// Time waiting for the outcomes of steps: for GPUs, or for other ranks.
    pub awaiting: Duration,
}

impl StepTimes {
    /// Adds those of other steps.
    pub fn add(&mut self, other: &Self) {
        self.reading += other.reading;
        self.computing += other.computing;
        self.awaiting += other.awaiting;
    }

    /// The time of the steps.
    pub fn total(&self) -> Duration {
        self.reading + self.computing + self.awaiting
    }
}

/// What a report of the loss includes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Report<'a> {
    /// The progress.
    pub progress: Progress,
    /// Ids outside their tables, since step 0.
    pub ids_out_of_range: &'a IdCounts,
    /// What only reports find out, since it takes time.
    pub details: &'a ReportDetails,
    /// The power of the GPUs of this process so far; `None` on the CPU, or if it is unknown.
    pub power: Option<PowerSummary>,
    /// What was copied between the GPU and host memory since this process was started or the run was resumed; `None` if
    /// host memory has no rows.
    pub tier: Option<TierTraffic>,
}

impl<'a> Report<'a> {
    #[doc(hidden)]
    pub fn new(progress: Progress, ids_out_of_range: &'a IdCounts, details: &'a ReportDetails) -> Self {
        Self { progress, ids_out_of_range, details, power: None, tier: None }
    }
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
