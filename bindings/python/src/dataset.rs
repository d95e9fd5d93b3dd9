//! The class `Dataset`, and its batches.

use std::path::PathBuf;
use std::sync::Mutex;

use numpy::{IntoPyArray, PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rankine_reader::merge::open_all;
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Part, Samples};

use crate::error::{Given, argument_error, data_error};
use crate::value::{paths, to_python};

/// A dataset, as :func:`convert` writes it. A list of paths is opened as one dataset. Raises DataError if they
/// cannot be opened, or do not fit together.
#[pyclass(module = "rankine", frozen)]
pub(crate) struct Dataset(rankine_reader::Dataset);

#[pymethods]
impl Dataset {
    #[new]
    fn new(py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Self> {
        let dirs = paths(path)?;
        py.detach(|| open_all(&dirs)).map(Self).map_err(data_error)
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.0.dir().to_owned()
    }

    /// The columns, with their transforms, vocabularies and numbers of rows.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, self.0.schema())
    }

    /// The number of samples of each part: ``train`` and ``eval``.
    #[getter]
    fn samples<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let samples = PyDict::new(py);
        Part::STORED.into_iter().try_for_each(|part| samples.set_item(part.name(), self.0.samples(part)))?;
        Ok(samples)
    }

    /// Reads a part once, in the order of its files, while the caller uses earlier batches.
    #[pyo3(
        signature = (part=Given("eval".to_owned()), batch_size=Given(4096)),
        text_signature = "($self, part='eval', batch_size=4096)"
    )]
    fn batches(&self, py: Python<'_>, part: Given<String>, batch_size: Given<usize>) -> PyResult<Batches> {
        let (part, batch_size) = (part_named(&part.0)?, batch_size.0);
        let open = || BatchStream::open(self.0.part(part)?, &StreamOptions::one_epoch(batch_size));
        let columns = self.0.schema().categorical.iter();
        let columns = columns.map(|column| (column.name.clone(), column.weighted)).collect();
        Ok(Batches { stream: Mutex::new(py.detach(open).map_err(data_error)?), columns })
    }

    fn __repr__(&self) -> String {
        let [train, eval] = Part::STORED.map(|part| self.0.samples(part));
        format!(
            "<rankine.Dataset {} of {train} samples to train on and {eval} to evaluate on>",
            self.0.dir().display()
        )
    }
}

/// Returns the part with a name.
pub(crate) fn part_named(name: &str) -> PyResult<Part> {
    let part = Part::STORED.into_iter().find(|part| part.name() == name);
    part.ok_or_else(|| argument_error(format!("{name:?} is not a part of a dataset: choose train or eval")))
}

/// An iterator over the batches of a part. Raises DataError if a block is damaged.
#[pyclass(module = "rankine", frozen)]
pub(crate) struct Batches {
    stream: Mutex<BatchStream>,
    /// The names of the categorical columns, and whether their ids have weights.
    columns: Vec<(String, bool)>,
}

#[pymethods]
impl Batches {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let next = || self.stream.lock().expect("reading does not panic").next().transpose();
        let Some(mut batch) = py.detach(next).map_err(data_error)? else { return Ok(None) };
        Batch::new(py, std::mem::take(&mut batch.samples), &self.columns).map(Some)
    }
}

/// Samples of a dataset; ``len`` is their number.
#[pyclass(module = "rankine", frozen, get_all)]
pub(crate) struct Batch {
    /// 0, 1, or NaN where a label is missing: ``[rows]``, or ``[rows, labels]`` if there are several.
    labels: Py<PyAny>,
    /// ``[rows]``; ``None`` if samples have no weights.
    weights: Option<Py<PyArray1<f32>>>,
    /// ``[rows, columns]``, after the transforms.
    dense: Py<PyAny>,
    /// The offsets ``[rows + 1]`` and ids of each column, and their weights if they have some: row ``i`` has
    /// ``ids[offsets[i]:offsets[i + 1]]``.
    categorical: Py<PyDict>,
}

impl Batch {
    fn new(py: Python<'_>, samples: Samples, of_columns: &[(String, bool)]) -> PyResult<Self> {
        let Samples { len, labels, weights, dense, dense_columns, categorical } = samples;
        let labels = match &labels[..] {
            [_] => labels.concat().into_pyarray(py).into_any(),
            several => {
                let rows = (0..len).flat_map(|row| several.iter().map(move |label| label[row]));
                PyArray1::from_iter(py, rows).reshape([len, several.len()])?.into_any()
            }
        };
        let columns = PyDict::new(py);
        for ((name, weighted), bags) in of_columns.iter().zip(categorical) {
            let mut arrays =
                vec![bags.offsets.into_pyarray(py).into_any(), bags.ids.into_pyarray(py).into_any()];
            if *weighted {
                arrays.push(bags.weights.into_pyarray(py).into_any());
            }
            columns.set_item(name, PyTuple::new(py, arrays)?)?;
        }
        Ok(Self {
            labels: labels.unbind(),
            weights: (!weights.is_empty()).then(|| weights.into_pyarray(py).unbind()),
            dense: dense.into_pyarray(py).reshape([len, dense_columns])?.into_any().unbind(),
            categorical: columns.unbind(),
        })
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.labels.bind(py).len()
    }
}
