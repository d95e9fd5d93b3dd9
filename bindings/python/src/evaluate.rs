//! `evaluate`: the quality of a model's predictions.

use std::path::PathBuf;

use pyo3::prelude::*;
use rankine_base::Stop;
use rankine_engine::evaluate::EvaluateOptions;

use crate::dataset::part_named;
use crate::error::{Given, evaluate_error};
use crate::value::{paths, thread_count, to_python};
use crate::worker;

/// Evaluates a trained model on a part of a dataset, by default that of its job.
///
/// With ``raw``, evaluates it on files of raw rows in the format of its training data instead.
///
/// Returns what ``rankine eval --json`` prints, and ``seconds``. Raises ModelError, DataError or TrainError.
#[pyfunction]
#[pyo3(
    signature = (run, data=None, *, part=Given("eval".to_owned()), raw=None, threads=None),
    text_signature = "(run, data=None, *, part='eval', raw=None, threads=None)"
)]
pub(crate) fn evaluate<'py>(
    py: Python<'py>,
    run: Given<PathBuf>,
    data: Option<Given<PathBuf>>,
    part: Given<String>,
    raw: Option<&Bound<'py, PyAny>>,
    threads: Option<Given<u32>>,
) -> PyResult<Bound<'py, PyAny>> {
    let raw = raw.map(paths).transpose()?.unwrap_or_default();
    let threads = threads.map(|threads| thread_count(threads.0)).transpose()?;
    let part = part_named(&part.0)?;
    let stop = &Stop::default();
    let options = EvaluateOptions {
        data: data.as_ref().map(|data| &*data.0),
        raw: &raw,
        part,
        threads,
        stop: Some(stop),
        ..EvaluateOptions::default()
    };
    let evaluate = || rankine_engine::evaluate::evaluate(&run.0, &options, &mut ()).map_err(evaluate_error);
    to_python(py, &worker::wait(py, stop, evaluate)?)
}
