//! `train`: a training from beginning to end.

use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rankine::prelude::EvalMetrics;
use rankine_base::Stop;
use rankine_engine::training::{self, Event, Observer, Report, Start, Summary, TrainOptions};
use rankine_reader::Part;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::{Given, argument_error, check_callable, job_error, training_error};
use crate::job::job_file;
use crate::value::python_value;
use crate::worker;

/// Trains the model of a job: the path of a job file, or a mapping with the contents of one.
///
/// Further keywords replace values of the job: ``train("job.toml", train={"max_steps": 100})``. Without a job, they are
/// the job. Every setting has the checks and the default of the job file.
///
/// The run folder is a new one below ``runs``, unless ``run_dir`` names one. ``resume`` continues a run in it from its
/// last checkpoint, or starts one; ``restart`` starts over. Ctrl-C saves a checkpoint after the current step and raises
/// KeyboardInterrupt; so does an exception of ``on_event``.
///
/// ``on_event`` receives the lines of ``metrics.jsonl`` as dicts, whose ``kind`` is ``train`` or ``eval``, and
/// warnings of the kind ``warning``, with a ``text``.
///
/// Returns the contents of the run's ``summary.json``, and ``run_dir``. Raises JobError, DataError or TrainError.
#[pyfunction]
#[pyo3(
    signature = (job=None, run_dir=None, *, resume=Given(false), restart=Given(false), on_event=None, **settings),
    text_signature = "(job=None, run_dir=None, *, resume=False, restart=False, on_event=None, **settings)"
)]
pub(crate) fn train<'py>(
    py: Python<'py>,
    job: Option<&Bound<'py, PyAny>>,
    run_dir: Option<Given<PathBuf>>,
    resume: Given<bool>,
    restart: Given<bool>,
    on_event: Option<&Bound<'py, PyAny>>,
    settings: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let run_dir = run_dir.map(|run_dir| run_dir.0);
    let start = start_of(resume.0, restart.0, run_dir.as_deref())?;
    check_callable(on_event)?;
    let file = job_file(job, settings)?;
    let job = file.job().map_err(job_error)?;
    let stop = Stop::default();
    let work = |events: &SyncSender<Value>| {
        let options =
            TrainOptions { run_dir: run_dir.as_deref(), start, stop: Some(&stop), ..Default::default() };
        // The receiver is gone only if the caller is, after a panic.
        let mut events = Events(|event| drop(events.send(event)));
        let trained = training::train(&job, options, &mut events);
        trained.map_err(|error| training_error(&file, error))
    };
    let receive = |event: Value| match on_event {
        Some(on_event) => on_event.call1((python_value(py, &event)?,)).map(drop),
        None => Ok(()),
    };
    let (summary, run) = worker::run(py, &stop, work, receive)?;
    let run = run.expect("the only process has the run folder");
    summary_of(py, &summary, &run)
}

/// Returns where to start in a run folder.
pub(crate) fn start_of(resume: bool, restart: bool, run_dir: Option<&Path>) -> PyResult<Start> {
    match (resume, restart, run_dir) {
        (false, false, _) => Ok(Start::New),
        (_, _, None) => Err(argument_error("resume and restart need run_dir")),
        (true, true, _) => Err(argument_error("resume and restart cannot be combined")),
        (true, false, _) => Ok(Start::Resume),
        (false, true, _) => Ok(Start::Restart),
    }
}

/// Passes on the events that are of interest to a caller, as `metrics.jsonl` has them.
pub(crate) struct Events<F>(pub(crate) F);

impl<F: FnMut(Value) + Send> Observer for Events<F> {
    fn observe(&mut self, event: Event<'_>) {
        (self.0)(match event {
            Event::Report(Report { progress, ids_out_of_range, .. }) => {
                record([("kind", json!("train")), ("ids_out_of_range", json!(ids_out_of_range))], &progress)
            }
            Event::Evaluated { step, part, set, samples, averaged, seconds, heads } => {
                let mut fields =
                    vec![("kind", json!("eval")), ("step", json!(step)), ("seconds", json!(seconds))];
                fields.extend((part != Part::Eval).then(|| ("part", json!(part))));
                fields.extend(set.map(|set| ("set", json!(set))));
                fields.push(("samples_checksum", json!(samples)));
                fields.extend(averaged.then(|| ("averaged", json!(true))));
                record(fields, &EvalMetrics::from(heads))
            }
            Event::Judged(progress) => record([("kind", json!("early_stopping"))], &progress),
            event => match event.warning() {
                Some(text) => json!({ "kind": "warning", "text": text }),
                None => return,
            },
        });
    }
}

/// Returns a summary, as `summary.json` has it, with the run folder.
pub(crate) fn summary_of<'py>(
    py: Python<'py>,
    summary: &Summary,
    run_dir: &Path,
) -> PyResult<Bound<'py, PyAny>> {
    python_value(py, &record([("run_dir", json!(run_dir.display().to_string()))], summary))
}

/// Returns an object of some entries and those of `more`.
fn record<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>, more: &impl Serialize) -> Value {
    let mut object: Map<_, _> = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    if let Value::Object(more) = serde_json::to_value(more).expect("plain data can be written as JSON") {
        object.extend(more);
    }
    Value::Object(object)
}
