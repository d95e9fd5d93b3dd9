//! The class `Trainer`.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyMapping};
use rankine::job::JobFile;
use rankine_base::Stop;
use rankine_engine::ranker::RawColumnError;
use rankine_engine::trainer::{Features, TrainerError, TrainerOptions, TrainingRows};
use rankine_reader::Schema;
use serde_json::Value;

use crate::error::{Given, check_callable, job_error, of_package, row_error, train_error, trainer_error};
use crate::job::job_file;
use crate::mapped::{Mapped, numbers_of};
use crate::table::joined_rows_of;
use crate::train::{Events, start_of, summary_of};
use crate::value::{python_value, to_python};
use crate::worker;

/// Trains the model of a job on rows that the program gives it: each call of ``step`` is a step.
///
/// ``job`` is the path of a job file, or a mapping with the contents of one; further keywords replace values of it.
/// ``data`` is a dataset, or the folder of a run or of an export, whose columns and vocabularies the rows have; or the
/// job's settings of data, as a mapping. By default, it is ``data.dir`` of the job. The evaluation part of a dataset is
/// evaluated as the job says; its training part is not read.
///
/// The steps run on a thread of their own, and up to 4 of them wait. ``run_dir``, ``resume``, ``restart`` and
/// ``on_event`` are those of :func:`train`; events arrive during the calls of methods. A trainer that is dropped before
/// ``finish`` saves a checkpoint.
///
/// Raises JobError, DataError, ModelError or TrainError.
#[pyclass(module = "rankine", frozen)]
pub(crate) struct Trainer {
    file: JobFile,
    /// `None` once it has finished.
    trainer: Mutex<Option<rankine_engine::trainer::Trainer>>,
    stop: Stop,
    events: Mutex<Receiver<Value>>,
    on_event: Option<Py<PyAny>>,
    run_dir: PathBuf,
    schema: Schema,
    /// The names of categorical columns.
    categorical: Vec<String>,
    /// The columns that raw rows need; `None` if there are no raw rows.
    raw_columns: Option<Vec<String>>,
}

#[pymethods]
impl Trainer {
    #[new]
    #[pyo3(
        signature = (
            job=None, data=None, run_dir=None, *, resume=Given(false), restart=Given(false), on_event=None, **settings
        ),
        text_signature = "(job=None, data=None, run_dir=None, *, resume=False, restart=False, on_event=None, \
                          **settings)"
    )]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        py: Python<'_>,
        job: Option<&Bound<'_, PyAny>>,
        data: Option<&Bound<'_, PyAny>>,
        run_dir: Option<Given<PathBuf>>,
        resume: Given<bool>,
        restart: Given<bool>,
        on_event: Option<&Bound<'_, PyAny>>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let run_dir = run_dir.map(|run_dir| run_dir.0);
        let start = start_of(resume.0, restart.0, run_dir.as_deref())?;
        check_callable(on_event)?;
        let on_event = on_event.map(|on_event| on_event.clone().unbind());
        let settings = match (data, settings) {
            (Some(data), settings) => Some(with_data(data, settings)?),
            (None, settings) => settings.cloned(),
        };
        let file = job_file(job, settings.as_ref())?;
        let job = file.job().map_err(job_error)?;
        let stop = Stop::default();
        let options = TrainerOptions { run_dir, start, stop: Some(stop.clone()) };
        let (sender, events) = channel();
        let sender = on_event.is_some().then_some(sender);
        // The receiver is gone once the trainer is.
        let observer = Events(move |event| drop(sender.as_ref().map(|sender| sender.send(event))));
        let start = || rankine_engine::trainer::Trainer::start(&job, options, observer);
        let trainer = worker::wait(py, &stop, || start().map_err(|error| trainer_error(&file, error)))?;
        let (run_dir, schema) = (trainer.run_dir().to_owned(), trainer.schema().clone());
        let categorical = schema.stored_categorical().iter().map(|column| column.name.clone()).collect();
        let raw_columns = trainer.raw_columns();
        let (trainer, events) = (Mutex::new(Some(trainer)), Mutex::new(events));
        Ok(Self { file, trainer, stop, events, on_event, run_dir, schema, categorical, raw_columns })
    }

    /// Trains a step on raw rows with their labels, as the files have them that the dataset was converted from.
    ///
    /// ``data`` is that of :meth:`Ranker.score`, with the columns of labels, and of weights if the dataset has them. At
    /// most ``train.batch_size`` rows; no rows are no step. Returns once the rows are checked and queued; waits while 4
    /// steps wait.
    ///
    /// Raises RowError, which names column and row, if the rows do not fit: nothing has changed then. Raises TrainError
    /// if an earlier step failed.
    fn step(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = data.py();
        let needed = self.raw_columns.as_ref().ok_or_else(|| row_error(RawColumnError::NoRawRows))?;
        let rows = joined_rows_of(data, needed).map_err(|error| of_package(py, error, row_error))?;
        py.detach(|| self.with(|trainer| trainer.push_arrow(&rows)))?;
        self.deliver(py)
    }

    /// Trains a step on mapped features with their labels, as a dataset has them.
    ///
    /// ``dense`` and ``categorical`` are those of :meth:`Ranker.score_mapped`. ``labels`` are 0, 1, or NaN where one is
    /// missing: ``[rows]``, or ``[rows, labels]`` if there are several. ``weights`` are ``[rows]``, if the dataset has
    /// them. The attributes of a :class:`Batch` fit.
    ///
    /// Raises RowError and TrainError, as ``step`` does.
    #[pyo3(signature = (dense, categorical, labels, weights=None))]
    fn step_mapped(
        &self,
        py: Python<'_>,
        dense: &Bound<'_, PyAny>,
        categorical: &Bound<'_, PyAny>,
        labels: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let wrong = |error| of_package(py, error, row_error);
        let mapped = Mapped::new(dense, categorical, &self.categorical).map_err(wrong)?;
        let labels = numbers_of("labels", labels).map_err(wrong)?;
        let labels: Vec<_> = labels.iter().map(Vec::as_slice).collect();
        let weights = weights.map(|weights| numbers_of("weights", weights)).transpose().map_err(wrong)?;
        let weights = weights.map(|all| all.concat());
        let ids = mapped.ids();
        let features = Features { rows: mapped.rows, dense: mapped.dense(), categorical: &ids };
        let rows = TrainingRows { features, labels: &labels, weights: weights.as_deref() };
        py.detach(|| self.with(|trainer| trainer.push(&rows)))?;
        self.deliver(py)
    }

    /// Waits for all steps, and evaluates the model on the dataset's evaluation part.
    ///
    /// Returns what ``rankine eval --json`` prints, and ``seconds``; ``None`` if there is no evaluation part. Raises
    /// TrainError. Ctrl-C ends the training after a checkpoint, also in the methods below.
    fn evaluate<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let evaluated = self.wait(py, rankine_engine::trainer::Trainer::evaluate)?;
        evaluated.map(|evaluated| to_python(py, &evaluated)).transpose()
    }

    /// Waits for all steps, and saves a checkpoint. Returns its folder. Raises TrainError.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<PathBuf> {
        self.wait(py, rankine_engine::trainer::Trainer::checkpoint)
    }

    /// Waits for all steps, and saves the model as an export in a folder that must not exist, which :class:`Ranker`
    /// loads. Raises TrainError.
    fn save(&self, py: Python<'_>, path: Given<PathBuf>) -> PyResult<()> {
        self.wait(py, |trainer| trainer.save(path.0))
    }

    /// Waits for all steps, evaluates the model, and saves it in the run folder.
    ///
    /// Returns the contents of the run's ``summary.json``, and ``run_dir``. The trainer cannot be used any more. Raises
    /// TrainError.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let finish = || {
            let trainer = self.lock().take().ok_or_else(finished)?;
            trainer.finish().map_err(|error| trainer_error(&self.file, error))
        };
        let summary = worker::wait(py, &self.stop, finish);
        self.deliver(py)?;
        summary_of(py, &summary?, &self.run_dir)
    }

    /// The number of steps, those before a resume included.
    #[getter]
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.with(|trainer| Ok(trainer.steps())))
    }

    /// The number of rows in these steps: after a resume, go on with the rows that follow them.
    #[getter]
    fn samples(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.with(|trainer| Ok(trainer.samples())))
    }

    /// The run folder.
    #[getter]
    fn run_dir(&self) -> PathBuf {
        self.run_dir.clone()
    }

    /// The columns of rows, with their transforms, vocabularies and numbers of rows.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.schema)
    }

    fn __repr__(&self) -> String {
        format!("<rankine.Trainer in {}>", self.run_dir.display())
    }
}

impl Trainer {
    fn lock(&self) -> MutexGuard<'_, Option<rankine_engine::trainer::Trainer>> {
        self.trainer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the trainer, unless it has finished.
    fn with<T>(
        &self,
        act: impl FnOnce(&mut rankine_engine::trainer::Trainer) -> Result<T, TrainerError>,
    ) -> PyResult<T> {
        let mut trainer = self.lock();
        act(trainer.as_mut().ok_or_else(finished)?).map_err(|error| trainer_error(&self.file, error))
    }

    /// Does something that takes long, while the calling thread looks for Ctrl-C.
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut rankine_engine::trainer::Trainer) -> Result<T, TrainerError> + Send,
    ) -> PyResult<T> {
        let acted = worker::wait(py, &self.stop, || self.with(act));
        self.deliver(py)?;
        acted
    }

    /// Gives the caller the events that have arrived.
    fn deliver(&self, py: Python<'_>) -> PyResult<()> {
        let Some(on_event) = &self.on_event else { return Ok(()) };
        loop {
            // Not held during the call, which may use the trainer.
            let event = self.events.lock().unwrap_or_else(PoisonError::into_inner).try_recv();
            let Ok(event) = event else { return Ok(()) };
            on_event.call1(py, (python_value(py, &event)?,))?;
        }
    }
}

fn finished() -> PyErr {
    train_error("the trainer has finished: create a new one")
}

/// Returns settings with those of the data: its folder, or a mapping of them.
fn with_data<'py>(
    data: &Bound<'py, PyAny>,
    settings: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let settings = settings.map_or_else(|| Ok(PyDict::new(data.py())), |settings| settings.copy())?;
    if data.cast::<PyMapping>().is_ok() {
        settings.set_item("data", data)?;
    } else {
        settings.set_item("data", [("dir", data.extract::<Given<PathBuf>>()?.0)].into_py_dict(data.py())?)?;
    }
    Ok(settings)
}
