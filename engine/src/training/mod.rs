//! Training as a whole: from a job to a run folder with a model, metrics and a summary.
//!
//! Nothing here prints: what happens is told to an [`Observer`], and logged where it matters to whoever reads logs.

mod alive;
mod batches;
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
mod learner;
mod losses;
mod memory;
mod phases;
mod recorded;
mod resume;
mod run_dir;
mod seats;
mod starter;
mod state;
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
pub use data::{Columns, Outlook, Prospect, open_or_generate, outlook, prospect, raw_format};
pub use evaluate::{EvaluationOptions, Scorer, evaluate};
pub use fit::{Start, TrainOptions, thread_pool, train};
pub use here::{Here, here};
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

/// What happens, for whoever watches. The last one told is the state of affairs.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// The job's dataset is being made: so many samples of so many.
    Generating {
        /// Samples written.
        samples: u64,
        /// Samples to write.
        total: u64,
    },
    /// The job's dataset is made, and complete.
    Generated,
    /// Raw files that may have changed since they were last read are being checksummed.
    Checksumming {
        /// Bytes read.
        bytes: u64,
        /// Bytes to read.
        total: u64,
    },
    /// Training is about to begin.
    Started {
        /// What is trained.
        spec: &'a ModelSpec,
        /// What trains it, in words.
        device: &'a str,
        /// What it takes of the device's memory, where that is not the host's.
        memory: Option<&'a DeviceMemory>,
        /// The ranks that it is spread over.
        topology: rankine_embedding::Topology,
        /// How blocks are read.
        rung: rankine_reader::io::Rung,
        /// How many samples the whole run will see, if it is not stopped before.
        samples: u64,
    },
    /// A step is done.
    Step(Progress),
    /// A step is done at which the job wants the loss reported, and with it the ids that were no rows so far.
    Report(Progress, &'a IdCounts),
    /// The model is being judged: so many samples of so many.
    Evaluating {
        /// Samples scored.
        samples: u64,
        /// Samples to score.
        total: u64,
    },
    /// A damaged checkpoint was passed over, and set aside.
    Skipped(&'a Skipped),
    /// What processes left that ended while they wrote or removed a checkpoint is gone.
    Removed {
        /// The folder.
        path: &'a std::path::Path,
        /// Its bytes.
        bytes: u64,
    },
    /// A damaged checkpoint that was set aside is still there.
    Damaged {
        /// The folder.
        path: &'a std::path::Path,
        /// Its bytes.
        bytes: u64,
    },
    /// What an earlier attempt left in the run's folder was moved to this folder.
    Kept {
        /// The folder.
        path: &'a std::path::Path,
    },
    /// Training goes on from a checkpoint.
    Resumed {
        /// Steps of training behind it.
        step: u64,
        /// The checkpoint.
        path: &'a std::path::Path,
    },
    /// Training begins at step 0 in a folder that was given to resume or restart in.
    Anew {
        /// Whether that was asked for; otherwise there is no checkpoint.
        restarted: bool,
    },
    /// The host's memory holds no copy of the state, so that training waits until a checkpoint is written.
    CheckpointPauses {
        /// Steps of training behind it.
        step: u64,
        /// Bytes that a copy would take.
        bytes: u64,
    },
    /// A checkpoint is there, and durable.
    Checkpointed {
        /// Steps of training behind it.
        step: u64,
        /// Its bytes.
        bytes: u64,
        /// How long that took, most of it beside training.
        seconds: f64,
        /// How long training waited until it was begun.
        waited_seconds: f64,
    },
    /// A checkpoint could not be saved, and training goes on.
    CheckpointFailed {
        /// Steps of training behind it.
        step: u64,
        /// Why.
        error: &'a CheckpointError,
    },
    /// The model was judged.
    Evaluated {
        /// Steps of training behind it.
        step: u64,
        /// How good each of its heads is.
        heads: &'a [crate::evaluation::HeadMetrics],
    },
}

/// How far training has come.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Epochs done before this one.
    pub epoch: u64,
    /// Samples learnt from.
    pub samples: u64,
    /// The mean loss since the last report, of the steps that were not skipped; none, or NaN, where all were.
    pub loss: f64,
    /// Steps that were skipped so far since something was no finite number.
    pub non_finite_steps: u64,
    /// The learning rate of the MLPs at this step.
    pub dense_learning_rate: f64,
    /// The learning rate of the embeddings at this step.
    pub sparse_learning_rate: f64,
    /// Seconds of training so far: the wall-clock time of steps, with reading and with waiting for checkpoints, without
    /// evaluations and without what comes before the first step. After a resume they go on from the checkpoint's.
    /// `samples / seconds` is the rate of the run so far, which the summary has of the whole run.
    pub seconds: f64,
    /// The same rate since the last report, or since a resume.
    pub samples_per_second: f64,
}

/// Watches a run.
pub trait Observer: Send {
    /// Something happened.
    fn observe(&mut self, event: Event<'_>);
}

/// Watches nothing.
impl Observer for () {
    fn observe(&mut self, _: Event<'_>) {}
}

/// Why a run did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The job does not suit the dataset or this machine.
    #[error("{}", list(.0))]
    Conflicts(Vec<Conflict>),
    /// The dataset cannot be read, or made.
    #[error(transparent)]
    Data(#[from] rankine_reader::Error),
    /// The model cannot be saved or loaded.
    #[error(transparent)]
    Saved(#[from] SavedModelError),
    /// A checkpoint cannot be saved, or loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Somebody asked it to stop, and it can go on later.
    #[error(
        "stopped by {cause} after step {step}; the same command with --run-dir {} --resume goes on from there",
        run.display()
    )]
    Interrupted {
        /// Who asked.
        cause: StopCause,
        /// Steps that the last checkpoint has behind it.
        step: u64,
        /// The run's folder.
        run: PathBuf,
    },
    /// Somebody asked it to stop before there was anything to train on.
    #[error(
        "stopped by {cause} before training began: nothing was trained, and the same command tries again"
    )]
    NotBegun {
        /// Who asked.
        cause: StopCause,
    },
    /// The run folder cannot be used.
    #[error("{0}")]
    RunDir(String),
    /// The first process found a reason not to begin; all others end with its words.
    #[error("{words}")]
    Refused {
        /// The first process's words.
        words: String,
        /// Who has to act.
        blame: Blame,
    },
    /// The run folder cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's words.
        source: std::io::Error,
    },
    /// The loss is no longer a number, or a gradient is none.
    #[error(
        "at step {step} no finite number is {found}{}: training diverged. The usual cause is a learning rate that is \
         too high, or a batch with values far out of the ordinary; the model was not saved",
        after_skipped(*.skipped_in_a_row)
    )]
    Diverged {
        /// The step.
        step: u64,
        /// What was no number.
        found: NonFinite,
        /// Steps right before it that were skipped.
        skipped_in_a_row: u64,
    },
    /// The model's weights or predictions are no longer numbers.
    #[error("{0}: training diverged, and the usual cause is a learning rate that is too high")]
    NotFinite(String),
    /// What all ranks have is no longer the same.
    #[error(
        "the replicas of ranks {0:?} are not those of rank 0: this is a defect of Rankine, or of this machine's \
         memory; the model was not saved"
    )]
    ReplicasDiffer(Vec<usize>),
    /// The job asks for a device that cannot be had.
    #[error("{0}")]
    Device(String),
    /// Other processes of the job did not come, or have ended.
    #[error(transparent)]
    Processes(#[from] MeetError),
    /// A rank waited in vain for another one.
    #[error("{}{words}; the model was not saved", at_step(*.step))]
    Missed {
        /// The step that had been begun last; 0 where none had.
        step: u64,
        /// Which rank waited for which one, and where.
        words: String,
    },
    /// Something of the GPU's failed.
    #[error("the GPU failed: {0}; the model was not saved")]
    Gpu(String),
}

impl TrainError {
    /// The same, where steps up to this one had been begun.
    pub(super) fn at_step(self, step: u64) -> Self {
        match self {
            Self::Missed { words, .. } => Self::Missed { step, words },
            error => error,
        }
    }

    /// Who has to act before training can begin.
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

    /// Whether all that went wrong is that another rank did not come: then that one knows more.
    pub fn misses_rank(&self) -> bool {
        let error = match self {
            Self::Missed { .. } => return true,
            Self::Processes(error) | Self::Saved(SavedModelError::Processes(error)) => error,
            _ => return false,
        };
        matches!(error, MeetError::Late { .. } | MeetError::Left { .. })
    }
}

#[cfg(feature = "cuda")]
impl From<crate::cuda::Error> for TrainError {
    fn from(error: crate::cuda::Error) -> Self {
        match error {
            crate::cuda::Error::Data(error) => Self::Data(error),
            crate::cuda::Error::Processes(error) => Self::Processes(error),
            error if error.misses_rank() => Self::Missed { step: 0, words: error.to_string() },
            error => Self::Gpu(error.to_string()),
        }
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
