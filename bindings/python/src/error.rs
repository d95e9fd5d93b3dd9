//! The exceptions of the package. Their texts are those of the library's errors.

use pyo3::exceptions::PyException;
use pyo3::import_exception;
use pyo3::prelude::*;
use rankine::job::JobFile;
use rankine_engine::evaluate::EvaluateError;
use rankine_engine::source::SourceError;
use rankine_engine::trainer::TrainerError;
use rankine_engine::training::TrainError;
use rankine_saved::SavedModelError;

mod exceptions {
    use super::import_exception;

    import_exception!(rankine, ArgumentError);
    import_exception!(rankine, DataError);
    import_exception!(rankine, Error);
    import_exception!(rankine, JobError);
    import_exception!(rankine, ModelError);
    import_exception!(rankine, RowError);
    import_exception!(rankine, TrainError);
}

/// An argument that is converted with an [`argument_error`] in place of Python's TypeError or OverflowError.
pub(crate) struct Given<T>(pub(crate) T);

impl<'a, 'py, T: FromPyObject<'a, 'py>> FromPyObject<'a, 'py> for Given<T> {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        given.extract().map(Self).map_err(|error: T::Error| {
            let (error, shown) = (error.into(), shown(&given));
            let why = error.value(given.py()).to_string();
            with_cause(given.py(), argument_error(format!("{shown} cannot be given here: {why}")), error)
        })
    }
}

/// Returns an argument as Python shows it.
fn shown(given: &Bound<'_, PyAny>) -> String {
    given.repr().map_or_else(|_| "an argument".into(), |text| text.to_string())
}

fn with_cause(py: Python<'_>, error: PyErr, cause: PyErr) -> PyErr {
    error.set_cause(py, Some(cause));
    error
}

/// Returns an error of the package for one that reading the caller's objects has raised. Errors of the package stay as
/// they are, and so do KeyboardInterrupt and others that are no errors.
pub(crate) fn of_package(py: Python<'_>, error: PyErr, make: fn(String) -> PyErr) -> PyErr {
    if !error.is_instance_of::<PyException>(py) || error.is_instance_of::<exceptions::Error>(py) {
        return error;
    }
    let why = error.value(py).to_string();
    let name = error.get_type(py).name().map_or_else(|_| String::new(), |name| format!("{name}: "));
    with_cause(py, make(format!("{name}{why}")), error)
}

/// Checks what is called with events.
pub(crate) fn check_callable(on_event: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    match on_event {
        Some(given) if !given.is_callable() => {
            Err(argument_error(format!("on_event is {}, which cannot be called", shown(given))))
        }
        _ => Ok(()),
    }
}

pub(crate) fn argument_error(error: impl ToString) -> PyErr {
    exceptions::ArgumentError::new_err(error.to_string())
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
