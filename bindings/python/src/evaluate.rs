//! `evaluate`: the quality of a model's predictions.

use std::path::PathBuf;

use pyo3::prelude::*;
use rankine::model_evaluation::{ModelEvaluation, ModelEvaluationError};

use crate::dataset::part_named;
use crate::error::{data_error, model_error, train_error};
use crate::value::{paths, thread_count, to_python};

/// Evaluates a trained model on a part of a dataset, by default that of its job.
///
/// Returns what ``rankine eval --json`` prints. Raises ModelError, DataError or TrainError.
#[pyfunction]
#[pyo3(signature = (run, data=None, *, part="eval", raw=None, threads=None))]
pub(crate) fn evaluate<'py>(
    py: Python<'py>,
    run: PathBuf,
    data: Option<PathBuf>,
    part: &str,
    raw: Option<&Bound<'py, PyAny>>,
    threads: Option<u32>,
) -> PyResult<Bound<'py, PyAny>> {
    let raw = raw.map(paths).transpose()?.unwrap_or_default();
    let threads = threads.map(thread_count).transpose()?;
    let part = part_named(part)?;
    let evaluation = ModelEvaluation { run: &run, data: data.as_deref(), raw: &raw, part, threads };
    let evaluated = py.detach(|| evaluation.run(&mut ())).map_err(|error| match error {
        ModelEvaluationError::Source(error) => model_error(error),
        ModelEvaluationError::Train(error) => train_error(error),
        error => data_error(error),
    });
    to_python(py, &evaluated?)
}
