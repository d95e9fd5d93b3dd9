//! The exceptions of the package. Their texts are those of the library's errors.

use pyo3::{PyErr, import_exception};
use rankine::ranker::RawColumnError;
use rankine::saved::SavedModelError;
use rankine::source::SourceError;
use rankine::training::TrainError;

mod exceptions {
    use super::import_exception;

    import_exception!(rankine, DataError);
    import_exception!(rankine, JobError);
    import_exception!(rankine, ModelError);
    import_exception!(rankine, ScoreError);
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

pub(crate) fn score_error(error: impl ToString) -> PyErr {
    exceptions::ScoreError::new_err(error.to_string())
}

/// The error of a training or an evaluation: that of its data, if these are the reason.
pub(crate) fn train_error(error: TrainError) -> PyErr {
    match error {
        TrainError::Data(error) => data_error(error),
        error => exceptions::TrainError::new_err(error.to_string()),
    }
}

/// The error of a model that is evaluated on data: that of the data, if these are the reason.
pub(crate) fn source_error(error: SourceError) -> PyErr {
    match error {
        SourceError::Data(_) | SourceError::NoRecords | SourceError::Saved(SavedModelError::Mismatch { .. }) => {
            data_error(error)
        }
        SourceError::Train(error) => train_error(error),
        error => model_error(error),
    }
}

/// The error of columns that have different numbers of rows.
pub(crate) fn rows_differ(column: &str, found: usize, expected: usize) -> PyErr {
    score_error(RawColumnError::Rows { column: column.to_owned(), expected, found })
}
