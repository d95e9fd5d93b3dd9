//! Reads a run folder.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use jiff::Timestamp;
use rankine_base::files::read_regular;
use rankine_base::publish::Lock;
use rankine_engine::run_paths;
use rankine_engine::training::{IterationSummary, RefitStage, RunDevices, Summary};
use rankine_model::ModelSpec;
use rankine_model::evaluation::{EvalMetrics, EvalSummary, Metrics, SavedScores};
use rankine_reader::Part;
use rankine_saved::{SavedModel, SavedModelError};
use serde::de::DeserializeOwned;

use super::ReportError;
use super::evaluations::{HeadView, name_of};
use super::history::{History, LoggedReport};
use super::view::{DeviceView, ModelView, ProgressView, RefitView, RunState, RunView, TableView};

/// Reads a run folder, finished or not. The log, the summary, the model and the scores may be absent.
///
/// # Errors
/// [`ReportError::NotARun`] without a job; [`ReportError::Read`]; [`ReportError::Damaged`].
pub fn load(run: &Path) -> Result<RunView, ReportError> {
    // The first training of a refit has a folder in that of the second, which comes later.
    let search = run_paths::search(run);
    if !run_paths::job(run).exists() && run_paths::job(&search).exists() {
        let view = load(&search)?;
        return Ok(RunView { run: Some(run.display().to_string()), refit: Some(RefitView::Search), ..view });
    }
    let settings = settings(run)?;
    let history = History::read(&run_paths::metrics(run))?;
    let summary: Option<Summary> = json(&run_paths::summary(run))?;
    let spec = spec(run)?;
    let scores: Option<SavedScores> = json(&run_paths::scores(run))?;

    let named = |name: &str| settings.get(name).cloned().unwrap_or_default();
    let mut view = RunView {
        name: named("name"),
        run: Some(run.display().to_string()),
        state: if Lock::is_within(run) { RunState::Training } else { RunState::Unfinished },
        started: started(run, &history),
        device: device(&settings),
        model: ModelView { kind: named("model.kind"), ..ModelView::default() },
        progress: ProgressView {
            total_epochs: settings.get("train.epochs").and_then(|epochs| epochs.parse().ok()),
            ..history.report.map(progress).unwrap_or_default()
        },
        scores: scores.map(|scores| scores.heads).unwrap_or_default(),
        ..RunView::default()
    };
    let devices: Option<RunDevices> = json(&run_paths::devices(run))?;
    if let Some(devices) = devices {
        set_devices(&mut view, devices);
    }
    if let Some(spec) = &spec {
        view.model = ModelView::new(&view.model.kind, spec);
    }
    (view.evaluations, view.scored, view.stopping) = (history.evaluations, history.scored, history.stopping);
    for (name, metrics) in &history.last {
        view.evaluations.of(name).heads = heads(metrics, spec.as_ref(), None);
    }
    if let Some(summary) = summary {
        finish(&mut view, summary, spec.as_ref());
    }
    view.series = history.series;
    view.phases = history.phases;
    view.settings = settings;
    Ok(view)
}

/// Sets what is known of the devices of a run.
fn set_devices(view: &mut RunView, devices: RunDevices) {
    let RunDevices { version, device, ranks, nodes, memory, tables, .. } = devices;
    view.version = Some(version);
    view.device = DeviceView {
        name: Some(device),
        ranks: Some(ranks),
        nodes: Some(nodes),
        ..std::mem::take(&mut view.device)
    };
    view.memory = memory;
    view.tables = tables.iter().map(TableView::from).collect();
}

/// Sets what the summary of a finished run says.
fn finish(view: &mut RunView, summary: Summary, spec: Option<&ModelSpec>) {
    view.saved_step = Some(summary.model_steps());
    view.refit = summary.search.as_deref().map(RefitStage::Refit).map(RefitView::from);
    let Summary { name, version, model, device, iteration, power, train, eval, validation, .. } = summary;
    view.power = power;
    (view.state, view.ended) = (RunState::Finished, Some(train.stopped));
    (view.name, view.version) = (name, Some(version));
    view.device = DeviceView {
        kind: device.kind,
        name: view.device.name.take(),
        precision: device.precision,
        ranks: Some(device.ranks),
        nodes: Some(device.nodes),
    };
    view.model = ModelView {
        kind: model.kind,
        dense_parameters: Some(model.dense_parameters),
        embedding_parameters: Some(model.embedding_parameters),
    };
    view.progress = ProgressView {
        step: train.steps,
        epoch: view.progress.epoch,
        total_epochs: view.progress.total_epochs,
        samples: train.samples,
        total_samples: Some(train.samples),
        seconds: train.seconds,
        samples_per_second: Some(train.samples_per_second),
        eta_seconds: None,
        // The last steps may have been too few for a report, or none of them finite.
        loss: Some(train.loss).filter(|loss| loss.is_finite()).or(view.progress.loss),
    };
    if let Some(IterationSummary { look_ups, phases, dynamic_tables }) = iteration {
        view.set_distinct(&look_ups);
        view.set_loads(&dynamic_tables);
        view.iteration = phases;
    }
    let sets = eval.as_ref().map(|eval| eval.sets.clone()).unwrap_or_default();
    let sets = sets.into_iter().map(|(set, summary)| (name_of(Part::Eval, Some(&set)), summary));
    let parts = [(Part::Eval, eval), (Part::Validation, validation)];
    let parts = parts.into_iter().filter_map(|(part, summary)| Some((name_of(part, None), summary?)));
    for (name, EvalSummary { metrics, auc_achievable, .. }) in parts.chain(sets) {
        // Without an evaluation part, the summary may have results of further datasets alone.
        if metrics != EvalMetrics::default() {
            view.evaluations.of(&name).heads = heads(&metrics, spec, auc_achievable);
        }
    }
}

/// One entry a head; the first head has its label from the model.
fn heads(metrics: &EvalMetrics, spec: Option<&ModelSpec>, auc_achievable: Option<f64>) -> Vec<HeadView> {
    let several = &metrics.heads;
    let head = |label: Option<&str>, metrics: Option<&Metrics>| HeadView {
        // It is recorded without saying of which head.
        auc_achievable: auc_achievable.filter(|_| metrics.is_some() && several.is_empty()),
        ..HeadView::new(label, metrics)
    };
    if several.is_empty() {
        let label = spec.and_then(|spec| Some(spec.heads.first()?.label.as_str()));
        return metrics.first.iter().map(|metrics| head(label, Some(metrics))).collect();
    }
    let mut heads: Vec<_> = several.iter().collect();
    // The log sorts them by label; without the model, the metrics say which head is the first.
    heads.sort_by_key(|&(label, found)| match spec {
        Some(spec) => spec.heads.iter().position(|known| known.label == *label),
        None => Some(usize::from(*found != metrics.first)),
    });
    heads.into_iter().map(|(label, metrics)| head(Some(label), metrics.as_ref())).collect()
}

fn progress(report: LoggedReport) -> ProgressView {
    let LoggedReport { step, epoch, samples, seconds, samples_per_second, loss } = report;
    ProgressView { step, epoch, samples, seconds, samples_per_second, loss, ..ProgressView::default() }
}

/// The device that the job asks for. `auto` ranks are unknown.
fn device(settings: &BTreeMap<String, String>) -> DeviceView {
    let value = |name: &str| settings.get(name).cloned();
    let kind = value("device.kind").unwrap_or_default();
    let number = |name: &str| value(name)?.parse().ok();
    DeviceView {
        precision: value("device.precision").filter(|_| kind != "cpu"),
        name: None,
        ranks: number("device.ranks"),
        nodes: number("device.nodes"),
        kind,
    }
}

/// When training started, by the log; without a report, when the job was written.
fn started(run: &Path, history: &History) -> Option<String> {
    let written = || Timestamp::try_from(fs::metadata(run_paths::job(run)).ok()?.modified().ok()?).ok();
    history.started().or_else(written).map(|time| format!("{time:.0}"))
}

/// The settings of the effective job.
fn settings(run: &Path) -> Result<BTreeMap<String, String>, ReportError> {
    let path = run_paths::job(run);
    let text = match read_regular(&path) {
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
            return Err(ReportError::NotARun { path: run.to_owned(), missing: "job.toml" });
        }
        text => text.map_err(|source| ReportError::Read { path: path.clone(), source })?,
    };
    let text = String::from_utf8(text).map_err(|error| ReportError::damaged(&path, None, &error))?;
    settings_of(&text).map_err(|error| ReportError::damaged(&path, None, &error.message()))
}

/// The value of each setting of a job file as text, by its name.
///
/// # Errors
/// If the text is not TOML.
pub fn settings_of(job: &str) -> Result<BTreeMap<String, String>, toml::de::Error> {
    let job: toml::Table = toml::from_str(job)?;
    let mut settings = BTreeMap::new();
    for (name, value) in &job {
        flatten(name, value, &mut settings);
    }
    Ok(settings)
}

/// Adds the settings of a value. The elements of an array of tables are numbered from 0.
fn flatten(name: &str, value: &toml::Value, settings: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) => {
            table.iter().for_each(|(key, value)| flatten(&format!("{name}.{key}"), value, settings));
        }
        toml::Value::Array(array) if array.iter().any(toml::Value::is_table) => {
            let numbered = array.iter().enumerate();
            numbered.for_each(|(number, value)| flatten(&format!("{name}.{number}"), value, settings));
        }
        toml::Value::String(text) => drop(settings.insert(name.to_owned(), text.clone())),
        value => drop(settings.insert(name.to_owned(), value.to_string())),
    }
}

/// The model's parts; `None` if it is not saved yet.
fn spec(run: &Path) -> Result<Option<ModelSpec>, ReportError> {
    match SavedModel::open(&run_paths::model(run)) {
        Ok(model) => Ok(Some(model.spec)),
        Err(SavedModelError::Missing(_)) => Ok(None),
        Err(SavedModelError::Read { path, source }) => Err(ReportError::Read { path, source }),
        Err(SavedModelError::Damaged { path, what }) => Err(ReportError::damaged(&path, None, &what)),
        Err(error) => Err(ReportError::damaged(&run_paths::model(run), None, &error)),
    }
}

/// Reads a JSON file that may be absent.
fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ReportError> {
    let text = match read_regular(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|source| ReportError::Read { path: path.to_owned(), source })?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| ReportError::damaged(path, None, &error))
}
