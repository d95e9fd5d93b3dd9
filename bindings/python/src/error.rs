//! The exceptions of the package. Their texts are those of the library's errors.

use pyo3::{PyErr, import_exception};
use rankine::job::JobFile;
use rankine_engine::evaluate::EvaluateError;
use rankine_engine::source::SourceError;
use rankine_engine::trainer::TrainerError;
use rankine_engine::training::TrainError;
use rankine_saved::SavedModelError;

mod exceptions {
    use super::import_exception;

    import_exception!(rankine, DataError);
    import_exception!(rankine, JobError);
    import_exception!(rankine, ModelError);
    import_exception!(rankine, RowError);
    import_exception!(rankine, TrainError);
}

pub(crate) fn data_error(error: impl ToString) -> PyErr {
    exceptions::DataError::new_err(error.to_string())
}

pub(crate) fn job_error(error: impl ToString) -> PyErr {
    exceptions::JobError::new_err(error.to_string())
}

pub(crate) fn model_error(error: impl ToString) -> PyErr {
    exceptions::ModelError::new_err(error.to_string())
}

pub(crate) fn row_error(error: impl ToString) -> PyErr {
    exceptions::RowError::new_err(error.to_string())
}

pub(crate) fn train_error(error: impl ToString) -> PyErr {
    exceptions::TrainError::new_err(error.to_string())
}

/// The error of a training: that of its data, of its job's file, or of the model that it starts from, if these are the
/// reason.
pub(crate) fn training_error(file: &JobFile, error: TrainError) -> PyErr {
    match error.cause() {
        TrainError::Data(_) => data_error(error),
        TrainError::Conflicts(conflicts) => job_error(file.error(conflicts)),
        TrainError::InitialModel(_) => model_error(error),
        _ => train_error(error),
    }
}

/// The error of a model that is evaluated on data: that of the data, if these are the reason.
pub(crate) fn source_error(error: SourceError) -> PyErr {
    match error {
        SourceError::Data(_)
        | SourceError::NoRawRows
        | SourceError::BadRow(_)
        | SourceError::Saved(SavedModelError::Mismatch { .. }) => data_error(error),
        error => model_error(error),
    }
}

/// The error of an evaluation: that of its model or data, or of scoring.
pub(crate) fn evaluate_error(error: EvaluateError) -> PyErr {
    match error {
        EvaluateError::Source(error) => source_error(error),
        EvaluateError::Train(TrainError::Data(error)) => data_error(error),
        EvaluateError::Train(error) => train_error(error),
        error => train_error(error),
    }
}

/// The error of a trainer: that of its rows, or of its training.
pub(crate) fn trainer_error(file: &JobFile, error: TrainerError) -> PyErr {
    match error {
        TrainerError::Rows(_) | TrainerError::TooManyRows { .. } => row_error(error),
        TrainerError::Train(error) => training_error(file, error),
        TrainerError::Source(error) => source_error(error),
        TrainerError::Setting { .. } => job_error(error),
        error => train_error(error),
    }
}
