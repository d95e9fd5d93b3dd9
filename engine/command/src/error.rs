//! Errors of commands, with their exit codes.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use rankine_base::blame::Blame;
use rankine_checkpoint::CheckpointError;
use rankine_engine::delta::DeltaError;
use rankine_engine::evaluate::EvaluateError;
use rankine_engine::import::ImportError;
use rankine_engine::prediction::{PredictError, STANDARD_OUTPUT};
use rankine_engine::source::SourceError;
use rankine_engine::training::TrainError;
use rankine_engine::tuning::TuneError;
use rankine_job::JobError;
use rankine_saved::SavedModelError;

use super::Exit;

/// An error of a command. `Display` writes the message with all causes.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// The reader of stdout has left.
    OutputClosed,
    /// Anything else.
    Failed {
        /// The exit code of the process.
        exit: Exit,
        /// The error.
        cause: Box<dyn Error + Send + Sync>,
    },
}

impl CommandError {
    /// Creates an error with an exit code.
    pub(crate) fn new(exit: Exit, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed { exit, cause: cause.into() }
    }

    /// Returns the exit code.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::OutputClosed => Exit::Success,
            Self::Failed { exit, .. } => *exit,
        }
    }

    /// Converts an error of writing to stdout.
    pub(crate) fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::new(Exit::Failed, format!("cannot write to stdout: {error}")),
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Failed { cause, .. } = self else {
            return f.write_str("stdout is closed");
        };
        let mut previous = cause.to_string();
        f.write_str(&previous)?;
        let mut next = cause.source();
        while let Some(cause) = next {
            let words = cause.to_string();
            // Many errors already end with the message of their cause.
            if !previous.ends_with(&words) {
                write!(f, "\n  caused by: {words}")?;
            }
            previous = words;
            next = cause.source();
        }
        Ok(())
    }
}

impl From<JobError> for CommandError {
    fn from(error: JobError) -> Self {
        Self::new(Exit::Usage, error)
    }
}

impl From<rankine_base::Error> for CommandError {
    fn from(error: rankine_base::Error) -> Self {
        let exit = match &error {
            rankine_base::Error::Stopped(cause) => Exit::of_stop(*cause),
            error => Blame::of_data(error).into(),
        };
        Self::new(exit, error)
    }
}

impl From<SavedModelError> for CommandError {
    fn from(error: SavedModelError) -> Self {
        match error {
            SavedModelError::Write(error) => error.into(),
            SavedModelError::Processes(error) => error.into(),
            error => Self::new(error.blame().into(), error),
        }
    }
}

impl From<EvaluateError> for CommandError {
    fn from(error: EvaluateError) -> Self {
        match error {
            EvaluateError::Source(error) => error.into(),
            EvaluateError::Train(error) => error.into(),
            _ => Self::new(Exit::Failed, error),
        }
    }
}

impl From<ImportError> for CommandError {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Data(error) => error.into(),
            ImportError::Saved(error) => error.into(),
            error => Self::new(error.blame().into(), error),
        }
    }
}

impl From<SourceError> for CommandError {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Saved(error) => error.into(),
            SourceError::Checkpoint(error) => error.into(),
            SourceError::Job(error) => error.into(),
            SourceError::Data(error) => error.into(),
            error => Self::new(error.blame().into(), error),
        }
    }
}

impl From<DeltaError> for CommandError {
    fn from(error: DeltaError) -> Self {
        match error {
            DeltaError::Source(error) => error.into(),
            error => Self::new(error.blame().into(), error),
        }
    }
}

impl From<CheckpointError> for CommandError {
    fn from(error: CheckpointError) -> Self {
        Self::new(error.blame().into(), error)
    }
}

impl From<Blame> for Exit {
    fn from(blame: Blame) -> Self {
        match blame {
            Blame::System => Self::Failed,
            Blame::Data => Self::BadData,
            Blame::Usage => Self::Usage,
            Blame::Nobody => Self::Resumable,
        }
    }
}

impl From<TrainError> for CommandError {
    fn from(error: TrainError) -> Self {
        let words = error.to_string();
        match error {
            TrainError::Data(error) => error.into(),
            TrainError::Saved(error) => error.into(),
            TrainError::Checkpoint(error) => error.into(),
            TrainError::Interrupted { .. } | TrainError::NotBegun { .. } => Self::new(Exit::Resumable, error),
            TrainError::Processes(error) => error.into(),
            TrainError::Ended { error, .. } => Self::new(Self::from(*error).exit(), words),
            TrainError::Missed { .. } => Self::new(Exit::Lost, error),
            error => Self::new(error.blame().into(), error),
        }
    }
}

impl From<TuneError> for CommandError {
    fn from(error: TuneError) -> Self {
        match error {
            TuneError::Job(error) => error.into(),
            TuneError::Train(error) => error.into(),
            TuneError::Trial { .. } => {
                let words = error.to_string();
                let TuneError::Trial { error, .. } = error else { unreachable!("it is that") };
                Self::new(Self::from(*error).exit(), words)
            }
            TuneError::Dir { .. } => Self::new(Exit::Usage, error),
            TuneError::Stopped { .. } => Self::new(Exit::Resumable, error),
            TuneError::Ended(cause) => Self::new(Exit::of_stop(cause), error),
            TuneError::NoResult(_) | TuneError::NoTarget => Self::new(Exit::Failed, error),
        }
    }
}

impl From<PredictError> for CommandError {
    fn from(error: PredictError) -> Self {
        match error {
            PredictError::Data(error) => error.into(),
            PredictError::Saved(error) => error.into(),
            PredictError::Unknown { .. } | PredictError::BadRow(_) => Self::new(Exit::BadData, error),
            PredictError::Column { .. } => Self::new(Exit::Usage, error),
            PredictError::Write { path, source } if path == Path::new(STANDARD_OUTPUT) => {
                Self::output(source)
            }
            PredictError::Write { .. } | PredictError::NotFinite { .. } => Self::new(Exit::Failed, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankine_engine::training::{BenchError, DeviceError, Disagreement, LeftResults};
    use rankine_reader::convert::BadName;
    use rankine_topology::Rank;

    #[derive(Debug, thiserror::Error)]
    #[error("the run failed")]
    struct Outer(#[source] rankine_base::Error);

    fn io() -> rankine_base::Error {
        let source = io::Error::other("gone");
        rankine_base::Error::Io { doing: "open", path: "a".into(), source }
    }

    /// Scripts rely on the codes.
    #[test]
    fn each_error_ends_with_its_code() {
        use rankine_base::Error as Data;
        let text = String::new;
        let damaged = || Data::Damaged { path: "a".into(), offset: None, what: text() };
        let (path, cause) = (|| "a".into(), rankine_engine::training::StopCause::Program);
        let bad_row = || BadName { file: text(), unit: "row", number: 1, column: None, why: text() };
        let (step, start, source) = (3, rankine_engine::training::Start::New, || io::Error::other("gone"));
        let left = LeftResults { run: path(), start, checkpoint: Some(3), model: None };
        let ended = |error| TrainError::Ended { error: Box::new(error), left: left.clone() };
        let trial = |error: CheckpointError| TuneError::Trial {
            number: 3,
            trial: path(),
            dir: path(),
            error: Box::new(error.into()),
        };
        let cases: Vec<(CommandError, Exit)> = vec![
            (io().into(), Exit::Failed),
            (damaged().into(), Exit::BadData),
            (Data::setting("depth", text()).into(), Exit::Usage),
            (Data::Stopped(rankine_engine::training::StopCause::Signal(15)).into(), Exit::Signal(15)),
            (Data::Stopped(cause).into(), Exit::Failed),
            (Data::bad_rows(None, None, text()).into(), Exit::BadData),
            (JobError::Invalid(Vec::new()).into(), Exit::Usage),
            (SavedModelError::Missing("a".into()).into(), Exit::Usage),
            (SavedModelError::Write(io()).into(), Exit::Failed),
            (SavedModelError::Read { path: path(), source: source() }.into(), Exit::Failed),
            (SavedModelError::NotFinite { tensor: text() }.into(), Exit::Failed),
            (SavedModelError::Damaged { path: path(), what: text() }.into(), Exit::BadData),
            (SavedModelError::Source(text()).into(), Exit::BadData),
            (SourceError::NoJob("a".into()).into(), Exit::Usage),
            (SourceError::NoRawRows.into(), Exit::Usage),
            (SourceError::BadRow(bad_row()).into(), Exit::BadData),
            (SourceError::Data(io()).into(), Exit::Failed),
            (SourceError::Read { path: path(), source: source() }.into(), Exit::Failed),
            (SourceError::NoVocabulary { path: path(), why: io() }.into(), Exit::Usage),
            (SourceError::Saved(SavedModelError::Missing("a".into())).into(), Exit::Usage),
            (TrainError::Data(io()).into(), Exit::Failed),
            (TrainError::Conflicts(Vec::new()).into(), Exit::Usage),
            (TrainError::RunDir { path: path(), what: text() }.into(), Exit::Usage),
            (TrainError::Unresumable { what: text(), way_out: "" }.into(), Exit::Usage),
            (TrainError::InitialModel(Box::new(SourceError::Data(damaged()))).into(), Exit::BadData),
            (TrainError::InitialModel(Box::new(SourceError::Data(io()))).into(), Exit::Failed),
            (TrainError::Device(DeviceError::NoCuda).into(), Exit::Usage),
            (TrainError::Bench(BenchError::NoPasses).into(), Exit::Usage),
            (TrainError::Disagreement(Disagreement::NoDataset(path())).into(), Exit::Usage),
            (TrainError::Threads { what: text(), source: text().into() }.into(), Exit::Usage),
            (TrainError::Refused { words: text(), blame: Blame::Data }.into(), Exit::BadData),
            (TrainError::Interrupted { cause, step, run: path(), start }.into(), Exit::Resumable),
            (TrainError::NotBegun { cause }.into(), Exit::Resumable),
            (TrainError::Missed { step, source: text().into() }.into(), Exit::Lost),
            (TrainError::FolderLost(path()).into(), Exit::Failed),
            (ended(TrainError::Data(damaged())).into(), Exit::BadData),
            (ended(TrainError::Missed { step, source: text().into() }).into(), Exit::Lost),
            (Data::Lost { path: path() }.into(), Exit::Failed),
            (TrainError::Write { path: path(), source: source() }.into(), Exit::Failed),
            (TrainError::NotFinite(text()).into(), Exit::Failed),
            (TrainError::ReplicasDiffer(vec![Rank(1)]).into(), Exit::Failed),
            (TuneError::Job(JobError::Invalid(Vec::new())).into(), Exit::Usage),
            (TuneError::Train(TrainError::Data(damaged())).into(), Exit::BadData),
            (TuneError::Dir { dir: path(), what: text() }.into(), Exit::Usage),
            (TuneError::Stopped { cause, dir: path() }.into(), Exit::Resumable),
            (TuneError::Ended(rankine_engine::training::StopCause::Signal(15)).into(), Exit::Signal(15)),
            (TuneError::NoResult(rankine_job::StoppingMetric::Auc).into(), Exit::Failed),
            (TuneError::NoTarget.into(), Exit::Failed),
            (trial(CheckpointError::NoneUsable { dir: path(), found: Vec::new() }).into(), Exit::BadData),
            (trial(CheckpointError::Mismatch { path: path(), what: text() }).into(), Exit::Usage),
            (PredictError::Data(damaged()).into(), Exit::BadData),
            (PredictError::BadRow(bad_row()).into(), Exit::BadData),
            (PredictError::Unknown { row: 1, column: text() }.into(), Exit::BadData),
            (PredictError::NotFinite { row: 1 }.into(), Exit::Failed),
            (PredictError::Write { path: path(), source: source() }.into(), Exit::Failed),
            (PredictError::Column { column: text() }.into(), Exit::Usage),
            (PredictError::Write { path: "-".into(), source: source() }.into(), Exit::Failed),
            (
                PredictError::Write { path: "-".into(), source: io::ErrorKind::BrokenPipe.into() }.into(),
                Exit::Success,
            ),
            (CommandError::output(io::ErrorKind::BrokenPipe.into()), Exit::Success),
            (CommandError::output(io::ErrorKind::StorageFull.into()), Exit::Failed),
        ];
        for (error, exit) in cases {
            assert_eq!(error.exit(), exit, "{error:?}");
        }
        let codes =
            [Blame::System, Blame::Data, Blame::Usage, Blame::Nobody].map(|blame| Exit::from(blame).code());
        assert_eq!(codes, [1, 3, 2, 75]);
    }

    #[test]
    fn causes_are_printed_once() {
        let inner = rankine_base::Error::Io {
            doing: "open",
            path: "train/a".into(),
            source: io::Error::other("the disk is gone"),
        };
        let error = CommandError::new(Exit::Failed, Outer(inner));
        let expected = "the run failed\n  caused by: cannot open train/a: the disk is gone";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = CommandError::output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(closed.exit(), Exit::Success);
        let full = CommandError::output(io::ErrorKind::StorageFull.into());
        assert_eq!(full.exit(), Exit::Failed);
    }
}
