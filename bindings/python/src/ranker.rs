//! The class `Ranker`.

use std::io::ErrorKind;
use std::path::PathBuf;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use rankine_engine::ranker::{ArrowRows, Features, RawColumnError};

use crate::error::{Given, argument_error, model_error, of_package, row_error};
use crate::mapped::Mapped;
use crate::table::rows_of;
use crate::value::to_python;

/// From this number of rows, other Python threads run while rows are scored. Scoring fewer takes about as long as
/// getting the interpreter back from a busy thread.
const ROWS_TO_RELEASE: usize = 32;

/// A trained model that scores rows. Any number of threads may use it at the same time.
#[pyclass(module = "rankine", frozen)]
pub(crate) struct Ranker {
    ranker: rankine_engine::ranker::Ranker,
    labels: Vec<String>,
    /// The names of categorical columns. Models that replace this one have the same.
    categorical: Vec<String>,
    /// The columns that raw rows need; `None` if the model has no raw rows.
    raw_columns: Option<Vec<String>>,
}

#[pymethods]
impl Ranker {
    /// Loads the model of a finished run, of a checkpoint, or of an export.
    ///
    /// Calls with more than 64 rows are divided among ``threads`` threads, which all calls share; 1 is best if as many
    /// threads of Python score at a time as there are processors. Scores do not depend on it.
    ///
    /// Compares every file with its checksum. Raises ModelError if there is no model, or it is damaged.
    #[staticmethod]
    #[pyo3(signature = (path, *, threads=Given(1)), text_signature = "(path, *, threads=1)")]
    fn load(py: Python<'_>, path: Given<PathBuf>, threads: Given<usize>) -> PyResult<Self> {
        let ranker = py.detach(|| rankine_engine::ranker::Ranker::load(path.0)).map_err(model_error)?;
        let ranker = ranker.with_threads(threads.0).map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => argument_error(error),
            _ => model_error(error),
        })?;
        let categorical =
            ranker.schema().stored_categorical().iter().map(|column| column.name.clone()).collect();
        Ok(Self { labels: ranker.labels(), raw_columns: ranker.raw_columns(), categorical, ranker })
    }

    /// Scores raw rows, as the files have them that the model's dataset was converted from.
    ///
    /// ``data`` is a pandas or Polars data frame, a PyArrow table or record batch, or a mapping from the names of
    /// columns to their values. Values are NumPy arrays ``[rows]`` or lists with an entry per row. A column with any
    /// number of categories per row is a list of lists, or a tuple ``(offsets, values)``: row ``i`` has
    /// ``values[offsets[i]:offsets[i + 1]]``. ``None``, NaN and nulls of Arrow are missing numbers.
    ///
    /// Columns that the model does not need are ignored. Applies the transforms and vocabularies of training;
    /// categories that training did not see share a row.
    ///
    /// Returns the probability of each row, float32 ``[rows]``, or ``[rows, heads]`` if the model has several heads.
    /// Raises RowError, which names column and row, if the columns do not fit the model.
    fn score<'py>(&self, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = data.py();
        let needed = self.raw_columns.as_ref().ok_or_else(|| row_error(RawColumnError::NoRawRows))?;
        let pieces = rows_of(data, needed).map_err(|error| of_package(py, error, row_error))?;
        let rows = pieces.iter().map(ArrowRows::len).sum::<usize>();
        let mut scores = vec![0.0; rows * self.labels.len()];
        let mut score = || self.ranker.score_arrow(&pieces, &mut scores);
        let scored = if rows < ROWS_TO_RELEASE { score() } else { py.detach(score) };
        scored.map_err(row_error)?;
        self.array(py, &scores)
    }

    /// Scores mapped features, as a dataset has them; the only way to score with models of generated data.
    ///
    /// ``dense`` is float32 ``[rows, columns]``, after the transforms of training. ``categorical`` has a column per
    /// categorical column of the model, in its order or by name: uint64 or int64 ``[rows]`` or ``[rows, ids per row]``,
    /// or a tuple ``(offsets, ids)``, or ``(offsets, ids, weights)`` if ids have weights. Arrays of these types with
    /// consecutive values are not copied. At most 65536 rows.
    ///
    /// Returns the probability of each row, float32 ``[rows]``, or ``[rows, heads]`` if the model has several heads.
    /// Raises RowError, which names column and row, if the features do not fit the model.
    #[pyo3(signature = (dense, categorical))]
    fn score_mapped<'py>(
        &self,
        py: Python<'py>,
        dense: &Bound<'py, PyAny>,
        categorical: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mapped = Mapped::new(dense, categorical, &self.categorical);
        let mapped = mapped.map_err(|error| of_package(py, error, row_error))?;
        let ids = mapped.ids();
        let features = Features { rows: mapped.rows, dense: mapped.dense(), categorical: &ids };
        let mut scores = vec![0.0; mapped.rows * self.labels.len()];
        let mut score = || self.ranker.score(&features, &mut scores);
        let scored = if mapped.rows < ROWS_TO_RELEASE { score() } else { py.detach(score) };
        scored.map_err(row_error)?;
        self.array(py, &scores)
    }

    /// Replaces the model by another one with the same columns and labels.
    ///
    /// Other threads score with the old model until the new one is loaded. Raises ModelError if that cannot be loaded
    /// or has other columns; the old model then stays.
    fn swap(&self, py: Python<'_>, path: Given<PathBuf>) -> PyResult<()> {
        py.detach(|| self.ranker.swap(path.0)).map_err(model_error)
    }

    /// Changes the model by a delta, which ``rankine ckpt delta`` writes, into the later model that the delta leads to.
    ///
    /// Other threads score with the old model meanwhile. Only what the delta has is read. Raises ModelError if it is
    /// damaged, or changes another model than this one; the old model then stays.
    fn apply(&self, py: Python<'_>, path: Given<PathBuf>) -> PyResult<()> {
        py.detach(|| self.ranker.apply(path.0)).map_err(model_error)
    }

    /// The labels that are predicted, one per head, in the order of scores.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.labels.clone()
    }

    /// The columns of the model, with their transforms, vocabularies and numbers of rows.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.ranker.schema())
    }

    /// The raw columns that ``score`` reads; ``None`` for models of generated data.
    #[getter]
    fn columns(&self) -> Option<Vec<String>> {
        self.raw_columns.clone()
    }

    /// The number of steps that the model was trained for.
    #[getter]
    fn steps(&self) -> u64 {
        self.ranker.steps()
    }

    fn __repr__(&self) -> String {
        format!("<rankine.Ranker of {} after {} steps>", self.labels.join(", "), self.ranker.steps())
    }
}

impl Ranker {
    /// Returns scores in single precision: `[rows]`, or `[rows, heads]` if there are several heads.
    fn array<'py>(&self, py: Python<'py>, scores: &[f64]) -> PyResult<Bound<'py, PyAny>> {
        let scores = PyArray1::from_iter(py, scores.iter().map(|&score| score as f32));
        match self.labels.len() {
            1 => Ok(scores.into_any()),
            heads => Ok(scores.reshape([scores.len()? / heads, heads])?.into_any()),
        }
    }
}
