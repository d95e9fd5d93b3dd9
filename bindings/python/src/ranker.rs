//! The class `Ranker`.

use std::path::PathBuf;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use rankine::ranker::{Features, ROWS_MAX};

use crate::error::{model_error, score_error};
use crate::mapped::Mapped;
use crate::table::{Rows, rows_of};
use crate::value::to_python;

/// From this number of rows, other Python threads run while rows are scored. Scoring fewer takes about as long as
/// getting the interpreter back from a busy thread.
const ROWS_TO_RELEASE: usize = 32;

#[pyclass(module = "rankine", frozen)]
pub(crate) struct Ranker {
    ranker: rankine::ranker::Ranker,
    labels: Vec<String>,
    /// The names of categorical columns. Models that replace this one have the same.
    categorical: Vec<String>,
}

#[pymethods]
impl Ranker {
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let ranker = py.detach(|| rankine::ranker::Ranker::load(path)).map_err(model_error)?;
        let categorical = ranker.schema().categorical.into_iter().map(|column| column.name).collect();
        Ok(Self { labels: ranker.labels(), categorical, ranker })
    }

    fn score<'py>(&self, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, pieces) = (data.py(), rows_of(data)?);
        let rows = pieces.iter().map(|piece| piece.len).sum::<usize>();
        let scores = if rows < ROWS_TO_RELEASE {
            self.score_all(&pieces)
        } else {
            py.detach(|| self.score_all(&pieces))
        };
        self.array(py, &scores?)
    }

    #[pyo3(signature = (dense, categorical))]
    fn score_mapped<'py>(
        &self,
        py: Python<'py>,
        dense: &Bound<'py, PyAny>,
        categorical: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mapped = Mapped::new(dense, categorical, &self.categorical)?;
        let ids = mapped.ids();
        let features = Features { rows: mapped.rows, dense: mapped.dense(), categorical: &ids };
        let mut scores = vec![0.0; mapped.rows * self.labels.len()];
        let mut score = || self.ranker.score(&features, &mut scores);
        let scored = if mapped.rows < ROWS_TO_RELEASE { score() } else { py.detach(score) };
        scored.map_err(score_error)?;
        self.array(py, &scores)
    }

    fn swap(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.ranker.swap(path)).map_err(model_error)
    }

    #[getter]
    fn labels(&self) -> Vec<String> {
        self.labels.clone()
    }

    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.ranker.schema())
    }

    #[getter]
    fn columns(&self) -> Option<Vec<String>> {
        self.ranker.raw_columns()
    }

    #[getter]
    fn steps(&self) -> u64 {
        self.ranker.steps()
    }

    fn __repr__(&self) -> String {
        format!("<rankine.Ranker of {} after {} steps>", self.labels.join(", "), self.ranker.steps())
    }
}

impl Ranker {
    /// Scores raw rows: `[rows, heads]`.
    fn score_all(&self, pieces: &[Rows]) -> PyResult<Vec<f64>> {
        let (mut scores, mut done) = (Vec::new(), 0);
        for Rows { len, columns } in pieces {
            // At least once, so that columns are checked.
            for first in (0..(*len).max(1)).step_by(ROWS_MAX) {
                let rows = first..(first + ROWS_MAX).min(*len);
                let columns: Vec<_> = columns.iter().map(|column| column.slice(rows.clone())).collect();
                let texts: Vec<_> = columns.iter().map(|column| column.texts()).collect();
                let raw: Vec<_> =
                    columns.iter().zip(&texts).map(|(column, texts)| column.raw(texts)).collect();
                let from = scores.len();
                scores.resize(from + rows.len() * self.labels.len(), 0.0);
                let scored = self.ranker.score_raw(rows.len(), &raw, &mut scores[from..]);
                scored.map_err(|error| score_error(error.after_rows(done + first)))?;
            }
            done += len;
        }
        Ok(scores)
    }

    /// Returns scores in single precision: `[rows]`, or `[rows, heads]` if there are several heads.
    fn array<'py>(&self, py: Python<'py>, scores: &[f64]) -> PyResult<Bound<'py, PyAny>> {
        let scores = PyArray1::from_iter(py, scores.iter().map(|&score| score as f32));
        match self.labels.len() {
            1 => Ok(scores.into_any()),
            heads => Ok(scores.reshape([scores.len()? / heads, heads])?.into_any()),
        }
    }
}
