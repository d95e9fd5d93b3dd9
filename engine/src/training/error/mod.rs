//! Why a run did not complete.

mod bench;
mod device;
mod memory;
mod processes;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rankine_backend::{BackendError, Cause};
use rankine_base::StopCause;
use rankine_base::blame::Blame;
use rankine_checkpoint::CheckpointError;
use rankine_job::{Conflict, conflict_lines};
use rankine_launch::MeetError;
use rankine_model::guard::NonFinite;
use rankine_saved::SavedModelError;
use rankine_topology::Rank;

use super::start::Start;
use crate::planning::{PlacementError, TierError};
use crate::source::SourceError;

pub use bench::BenchError;
pub(super) use device::gpus_of;
pub use device::{DeviceError, UnusableGpus};
pub use memory::MemoryError;
pub use processes::{AssignmentError, Disagreement};

/// Why a run did not complete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The job does not suit the dataset or this machine.
    #[error("{}", conflict_lines(.0))]
    Conflicts(Vec<Conflict>),
    /// The dataset cannot be read, or generated.
    #[error(transparent)]
    Data(#[from] rankine_base::Error),
    /// The model cannot be saved or loaded.
    #[error(transparent)]
    Saved(#[from] SavedModelError),
    /// The model that the training is to start from is damaged, or cannot be read.
    #[error("train.init_from: {0}")]
    InitialModel(Box<SourceError>),
    /// A checkpoint cannot be saved, or loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The training was asked to stop, and can be resumed.
    #[error(
        "stopped by {cause} after step {step}; the same command with {} continues from there",
        resuming(run, *start)
    )]
    Interrupted {
        /// What asked.
        cause: StopCause,
        /// Steps completed at the last checkpoint.
        step: u64,
        /// The run's folder.
        run: PathBuf,
        /// Where the training started.
        start: Start,
    },
    /// An evaluation was asked to stop.
    #[error("stopped by {0}: the evaluation has no result")]
    EvaluationStopped(StopCause),
    /// The training was asked to stop before there was anything to train on.
    #[error(
        "stopped by {cause} before training began: nothing was trained; run the same command again to start"
    )]
    NotBegun {
        /// What asked.
        cause: StopCause,
    },
    /// A checkpoint that a program asked for was not saved, and `checkpoint.on_failure` is `continue`.
    #[error("no checkpoint of step {step}: {}", if *step == 0 { "nothing was trained" } else { "it was not saved" })]
    NoCheckpoint {
        /// The step.
        step: u64,
    },
    /// The run folder cannot be used.
    #[error("{what}")]
    RunDir {
        /// The folder, or a file in it.
        path: PathBuf,
        /// Why, and the way out.
        what: String,
    },
    /// The run in the folder cannot be resumed.
    #[error("{what}: {way_out}")]
    Unresumable {
        /// Why.
        what: String,
        /// What to do, with options of `rankine train`.
        way_out: &'static str,
    },
    /// The first process found a reason not to start; all others end with its message.
    #[error("{words}")]
    Refused {
        /// The first process's message.
        words: String,
        /// Who has to act.
        blame: Blame,
    },
    /// The run folder is no longer where training began: another run may be there now.
    #[error(
        "the run folder {} was removed, moved or replaced while the run trained, or its lock file was removed: \
         training stopped, and changed nothing that is there now. To continue the run, put its folder back and add \
         --resume to the same command; to train anew, choose another --run-dir",
        .0.display()
    )]
    FolderLost(PathBuf),
    /// An error ended the training, which left something to continue with.
    #[error("{}{left}", error.before(left))]
    Ended {
        /// The error.
        error: Box<Self>,
        /// What the training left.
        left: LeftResults,
    },
    /// The run folder cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's message.
        source: io::Error,
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
        "{}: this is a bug in Rankine or a memory fault of this machine; the model was not saved",
        replicas(.0)
    )]
    ReplicasDiffer(Vec<Rank>),
    /// The device that the job asks for cannot train it.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The memory of this machine does not hold the model.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Tables cannot be placed over the job's ranks.
    #[error(transparent)]
    Placement(PlacementError),
    /// The operating system refuses to start threads.
    #[error(
        "cannot start {what}: {source}; lower device.threads, or raise the limit of processes (ulimit -u)"
    )]
    Threads {
        /// Which threads.
        what: String,
        /// The operating system's message.
        source: Cause,
    },
    /// The ranks of the job do not suit the processes that were launched, or their GPUs.
    #[error(transparent)]
    Assignment(#[from] AssignmentError),
    /// Processes of the job were given different inputs.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    /// Nothing can be measured as asked.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// Other processes of the job are missing, or have ended.
    #[error(transparent)]
    Processes(#[from] MeetError),
    /// A rank waited for another one until the time limit.
    #[error("{}{source}; the model was not saved", at_step(*.step))]
    Missed {
        /// The step that was started last; 0 if none was.
        step: u64,
        /// Which rank waited for which one, and where.
        source: Cause,
    },
    /// A table has no row for a new id, and the job says that training fails then.
    #[error("{}{source}; the model was not saved", at_step(*.step))]
    FullTable {
        /// The step.
        step: u64,
        /// Which table, and what to change.
        source: Cause,
    },
    /// A GPU operation failed.
    #[error("the GPU failed: {0}; the model was not saved")]
    Gpu(#[source] Cause),
}

/// What a training leaves that an error ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftResults {
    /// The run's folder.
    pub run: PathBuf,
    /// Where the training started.
    pub start: Start,
    /// The step of the latest checkpoint, if there is one.
    pub checkpoint: Option<u64>,
    /// The folder of the trained model, if it was saved.
    pub model: Option<PathBuf>,
}

impl fmt::Display for LeftResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(model) = &self.model {
            write!(f, ". The trained model is saved in {}", model.display())?;
        }
        let Some(step) = self.checkpoint else { return Ok(()) };
        let resuming = resuming(&self.run, self.start);
        write!(
            f,
            ". The checkpoint of step {step} is saved: the same command with {resuming} continues from there"
        )
    }
}

impl TrainError {
    /// Makes the error of a file or folder that cannot be written.
    pub(super) fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { path: path.into(), source }
    }

    /// Makes the error of a file of a run folder that cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &dyn fmt::Display) -> Self {
        Self::RunDir { path: path.to_owned(), what: format!("cannot read {}: {error}", path.display()) }
    }

    /// Makes the error of a run folder and its lock.
    pub(super) fn of_folder(error: rankine_base::Error) -> Self {
        match error {
            rankine_base::Error::Lost { path } => Self::FolderLost(path),
            error => error.into(),
        }
    }

    /// The error of a run that can only be started over.
    pub(super) fn unresumable_here(what: String) -> Self {
        Self::Unresumable { what, way_out: "train in another --run-dir, or start over here with --restart" }
    }

    /// The same error, with the number of the step that was started last.
    pub(super) fn at_step(self, step: u64) -> Self {
        match self {
            Self::Missed { source, .. } => Self::Missed { step, source },
            Self::FullTable { source, .. } => Self::FullTable { step, source },
            error => error,
        }
    }

    /// Who has to act before training can start.
    #[doc(hidden)]
    pub fn blame(&self) -> Blame {
        match self {
            Self::Checkpoint(error) => error.blame(),
            Self::Ended { error, .. } => error.blame(),
            Self::Refused { blame, .. } => *blame,
            Self::NotBegun { .. } => Blame::Nobody,
            error if error.is_device() => Blame::Usage,
            Self::RunDir { .. } | Self::Unresumable { .. } | Self::Conflicts(_) | Self::FullTable { .. } => {
                Blame::Usage
            }
            Self::Data(error) => Blame::of_data(error),
            Self::Saved(error) => error.blame(),
            Self::InitialModel(error) => error.blame(),
            _ => Blame::System,
        }
    }

    /// Whether the job does not suit this build, this machine or the processes that were launched.
    pub(super) fn is_device(&self) -> bool {
        matches!(
            self,
            Self::Device(_)
                | Self::Memory(_)
                | Self::Placement(_)
                | Self::Threads { .. }
                | Self::Assignment(_)
                | Self::Disagreement(_)
                | Self::Bench(_)
        )
    }

    /// Why the run in a folder cannot be resumed, without the options of `rankine train`; `None` if this is another
    /// error.
    pub(crate) fn unresumable(&self) -> Option<String> {
        match self {
            Self::Unresumable { what, .. } => Some(what.clone()),
            Self::Checkpoint(error) => error.unresumable(),
            _ => None,
        }
    }

    /// Whether the only error is that another process, or a rank of it, is missing: that process knows the cause.
    #[doc(hidden)]
    pub fn misses_process(&self) -> bool {
        let error = match self.cause() {
            Self::Missed { .. } => return true,
            Self::Processes(error) | Self::Saved(SavedModelError::Processes(error)) => error,
            _ => return false,
        };
        matches!(error, MeetError::Late { .. } | MeetError::Left { .. })
    }

    /// The error that ended the training, whatever it left.
    pub fn cause(&self) -> &Self {
        match self {
            Self::Ended { error, .. } => error,
            error => error,
        }
    }

    /// The message before what the training left, which may be its model.
    fn before(&self, left: &LeftResults) -> String {
        match self {
            Self::Missed { step, source } if left.model.is_some() => format!("{}{source}", at_step(*step)),
            Self::Gpu(error) if left.model.is_some() => format!("the GPU failed: {error}"),
            error => error.to_string(),
        }
    }

    /// Whether the training diverged: its loss, gradients, weights or predictions are not finite.
    pub(crate) fn is_divergence(&self) -> bool {
        matches!(
            self,
            Self::Diverged { .. }
                | Self::NotFinite(_)
                | Self::Saved(SavedModelError::NotFinite { .. })
                | Self::Checkpoint(CheckpointError::NotFinite { .. })
        )
    }

    /// Whether the state of training is not worth saving: it diverged, its replicas differ, or a step is half done.
    pub(super) fn spoils_state(&self) -> bool {
        self.is_divergence() || matches!(self, Self::ReplicasDiffer(_) | Self::FullTable { .. })
    }

    /// Whether another process or a device is lost.
    pub(super) fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Processes(_)
                | Self::Missed { .. }
                | Self::Gpu(_)
                | Self::Saved(SavedModelError::Processes(_) | SavedModelError::Gpu(_))
        )
    }

    /// Whether the state of training can still be read, and written to a checkpoint.
    pub(super) fn leaves_state(&self) -> bool {
        !self.is_loss() && !self.spoils_state() && !matches!(self, Self::Checkpoint(_))
    }
}

impl From<TierError> for TrainError {
    fn from(error: TierError) -> Self {
        match error {
            TierError::Data(error) => Self::Data(error),
            TierError::Conflict(conflict) => Self::Conflicts(vec![conflict]),
        }
    }
}

impl From<PlacementError> for TrainError {
    fn from(error: PlacementError) -> Self {
        match error {
            PlacementError::Data(error) => Self::Data(error),
            error => Self::Placement(error),
        }
    }
}

impl From<BackendError> for TrainError {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Data(error) => Self::Data(error),
            BackendError::Processes(error) => Self::Processes(error),
            BackendError::Stopped(cause) => Self::EvaluationStopped(cause),
            BackendError::Missed(source) => Self::Missed { step: 0, source },
            BackendError::Failed(error) => Self::Gpu(error),
            BackendError::FullTable(source) => Self::FullTable { step: 0, source },
            error => Self::Device(DeviceError::Backend(error)),
        }
    }
}

/// The options with which the command of a run resumes it.
fn resuming(run: &Path, start: Start) -> String {
    match start {
        Start::New | Start::Resume => format!("--run-dir {} --resume", run.display()),
        Start::Restart => "--resume in place of --restart".into(),
    }
}

fn after_skipped(steps: u64) -> String {
    match steps {
        0 => String::new(),
        1 => ", and the step before it was skipped already (guard.skipped_in_a_row_max)".into(),
        _ => format!(", and {steps} steps before it were skipped already (guard.skipped_in_a_row_max)"),
    }
}

/// `the replica of rank 3 differs from that of rank 0`, or likewise of several ranks.
fn replicas(ranks: &[Rank]) -> String {
    let numbers: Vec<_> = ranks.iter().map(Rank::to_string).collect();
    let numbers = numbers.join(", ");
    if ranks.len() == 1 {
        format!("the replica of rank {numbers} differs from that of rank 0")
    } else {
        format!("the replicas of ranks {numbers} differ from that of rank 0")
    }
}

fn at_step(step: u64) -> String {
    if step == 0 { String::new() } else { format!("at step {step}: ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_step_and_the_ranks() {
        let missed = || TrainError::Missed { step: 0, source: "rank 1 left".into() };
        assert_eq!(missed().to_string(), "rank 1 left; the model was not saved");
        assert_eq!(missed().at_step(7).to_string(), "at step 7: rank 1 left; the model was not saved");
        let device = TrainError::from(DeviceError::NoFp8 { gpu: "A100".into() }).at_step(7);
        assert!(device.to_string().contains("this is A100") && !device.misses_process(), "{device}");
        assert!(missed().misses_process());
        for (ranks, words) in [
            (vec![Rank(2)], "the replica of rank 2 differs from that of rank 0: "),
            (vec![Rank(1), Rank(3)], "the replicas of ranks 1, 3 differ from that of rank 0: "),
        ] {
            let error = TrainError::ReplicasDiffer(ranks).to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
