//! Training as a whole: from a job to a run folder with a model, metrics and a summary.
//!
//! Nothing here prints: an [`Observer`] receives events, and the log gets what readers of logs need.

mod alive;
mod assignment;
mod backend;
mod bench;
mod checkpoints;
mod contents;
mod copies;
mod data;
mod evaluate;
mod finished;
mod fit;
mod guard;
mod here;
mod identity;
pub(crate) mod ids;
mod losses;
mod memory;
mod phases;
mod recorded;
mod resume;
mod run_dir;
mod starter;
mod summary;
mod translate;

use std::path::PathBuf;

use crate::blame::Blame;
use crate::checkpoint::{CheckpointError, Skipped};
use crate::guard::NonFinite;
use crate::job::Conflict;
use crate::launch::MeetError;
use crate::model::ModelSpec;
use crate::planning::PlacementError;
use crate::saved::SavedModelError;

pub use bench::{
    EvalBench, EvalBenchOptions, Input, Reading, Times, TraceSummary, TrainBench, TrainBenchOptions,
    bench_eval, bench_train,
};
pub use data::{Columns, JobData, Preview, find_data, open_or_generate, preview, raw_format};
pub use evaluate::{EvaluationOptions, Scorer, evaluate};
pub use fit::{Start, TrainOptions, thread_pool, train};
pub use here::{Feasibility, feasibility};
pub use identity::is_of;
pub use ids::{IdCounts, ids_of, with_ids};
pub use memory::{DeviceMemory, MemoryPart};
pub use phases::{Ceilings, Phase};
pub use rankine_reader::{Stop, StopCause};
pub use run_dir::RunDir;
pub use starter::{StarterData, starter_job};
pub use summary::{
    ByLink, DataSummary, DeviceSummary, ExchangeSummary, ModelSummary, Stopped, Summary, TrainSummary,
};
pub use translate::translate;

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
    Started {
        /// The model.
        spec: &'a ModelSpec,
        /// The device, in words.
        device: &'a str,
        /// The device memory that the job uses, if the device has its own.
        memory: Option<&'a DeviceMemory>,
        /// The ranks that train.
        topology: rankine_embedding::Topology,
        /// How blocks are read.
        rung: rankine_reader::io::Rung,
        /// Samples that the whole run will train on, unless it is stopped before.
        samples: u64,
    },
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
        path: &'a std::path::Path,
        /// Its bytes.
        bytes: u64,
    },
    /// A damaged checkpoint that was set aside still exists.
    Damaged {
        /// The folder.
        path: &'a std::path::Path,
        /// Its bytes.
        bytes: u64,
    },
    /// The results of an earlier attempt in the run folder were moved to this folder.
    Kept {
        /// The folder.
        path: &'a std::path::Path,
    },
    /// Training resumes from a checkpoint.
    Resumed {
        /// Steps completed at the checkpoint.
        step: u64,
        /// The checkpoint.
        path: &'a std::path::Path,
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
        heads: &'a [crate::evaluation::HeadMetrics],
    },
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

/// Why a run did not complete.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The job does not suit the dataset or this machine.
    #[error("{}", list(.0))]
    Conflicts(Vec<Conflict>),
    /// The dataset cannot be read, or generated.
    #[error(transparent)]
    Data(#[from] rankine_reader::Error),
    /// The model cannot be saved or loaded.
    #[error(transparent)]
    Saved(#[from] SavedModelError),
    /// A checkpoint cannot be saved, or loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The training was asked to stop, and can be resumed.
    #[error(
        "stopped by {cause} after step {step}; the same command with --run-dir {} --resume continues from there",
        run.display()
    )]
    Interrupted {
        /// What asked.
        cause: StopCause,
        /// Steps completed at the last checkpoint.
        step: u64,
        /// The run's folder.
        run: PathBuf,
    },
    /// The training was asked to stop before there was anything to train on.
    #[error(
        "stopped by {cause} before training began: nothing was trained, and run the same command to try again"
    )]
    NotBegun {
        /// What asked.
        cause: StopCause,
    },
    /// The run folder cannot be used.
    #[error("{0}")]
    RunDir(String),
    /// The first process found a reason not to start; all others end with its message.
    #[error("{words}")]
    Refused {
        /// The first process's message.
        words: String,
        /// Who has to act.
        blame: Blame,
    },
    /// The run folder cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's message.
        source: std::io::Error,
    },
    /// The loss or a gradient is not finite.
    #[error(
        "training diverged at step {step}: non-finite values in {found}{}. The usual cause is a learning rate that is \
         too high, or a batch with extreme values; the model was not saved",
        after_skipped(*.skipped_in_a_row)
    )]
    Diverged {
        /// The step.
        step: u64,
        /// The values that were not finite.
        found: NonFinite,
        /// Number of skipped steps directly before it.
        skipped_in_a_row: u64,
    },
    /// The model's weights or predictions are not finite.
    #[error("{0}: training diverged, and the usual cause is a learning rate that is too high")]
    NotFinite(String),
    /// The replicas of the ranks differ.
    #[error(
        "the replicas of ranks {0:?} differ from that of rank 0: this is a defect of Rankine, or of this machine's \
         memory; the model was not saved"
    )]
    ReplicasDiffer(Vec<usize>),
    /// The job asks for a device that is not available.
    #[error("{0}")]
    Device(String),
    /// Other processes of the job are missing, or have ended.
    #[error(transparent)]
    Processes(#[from] MeetError),
    /// A rank waited for another one until the time limit.
    #[error("{}{words}; the model was not saved", at_step(*.step))]
    Missed {
        /// The step that was started last; 0 if none was.
        step: u64,
        /// Which rank waited for which one, and where.
        words: String,
    },
    /// A GPU operation failed.
    #[error("the GPU failed: {0}; the model was not saved")]
    Gpu(String),
}

impl TrainError {
    /// The same error, with the number of the step that was started last.
    pub(super) fn at_step(self, step: u64) -> Self {
        match self {
            Self::Missed { words, .. } => Self::Missed { step, words },
            error => error,
        }
    }

    /// Who has to act before training can start.
    pub(crate) fn blame(&self) -> Blame {
        match self {
            Self::Checkpoint(error) => error.blame(),
            Self::Refused { blame, .. } => *blame,
            Self::NotBegun { .. } => Blame::Nobody,
            Self::RunDir(_) | Self::Conflicts(_) | Self::Device(_) => Blame::Usage,
            Self::Data(rankine_reader::Error::Invalid(_)) => Blame::Usage,
            Self::Data(rankine_reader::Error::Damaged { .. } | rankine_reader::Error::BadRows(_)) => {
                Blame::Data
            }
            _ => Blame::System,
        }
    }

    /// Whether the only error is that another rank is missing: that rank knows the cause.
    pub fn misses_rank(&self) -> bool {
        let error = match self {
            Self::Missed { .. } => return true,
            Self::Processes(error) | Self::Saved(SavedModelError::Processes(error)) => error,
            _ => return false,
        };
        matches!(error, MeetError::Late { .. } | MeetError::Left { .. })
    }
}

impl From<PlacementError> for TrainError {
    fn from(error: PlacementError) -> Self {
        match error {
            PlacementError::Data(error) => Self::Data(error),
            PlacementError::Topology(_) | PlacementError::Memory(_) => Self::Device(error.to_string()),
        }
    }
}

fn after_skipped(steps: u64) -> String {
    match steps {
        0 => String::new(),
        _ => format!(", and {steps} steps before it were skipped already (guard.skipped_in_a_row_max)"),
    }
}

fn at_step(step: u64) -> String {
    if step == 0 { String::new() } else { format!("at step {step}: ") }
}

fn list(conflicts: &[Conflict]) -> String {
    let lines: Vec<_> = conflicts.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
