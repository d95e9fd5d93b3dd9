//! Whether the result of a finished run is what a job asks for.

use std::collections::BTreeMap;
use std::path::Path;

use rankine_job::{AucTarget, DeviceKind, Job, Tier};
use rankine_reader::Part;
use rankine_saved::{SavedModel, SavedModelError};
use serde_json::Value;

use crate::run_paths;
use crate::training::context::RunContext;
use crate::training::error::TrainError;
use crate::training::identity::{ContentsCheck, RunIdentity, first_difference};
use crate::training::run_dir::RunDir;
use crate::training::summary::{EndReason, Summary};

/// What happens with a finished run.
pub(super) enum FinishedRun {
    /// It is what the job asks for.
    Complete,
    /// It continues from its last checkpoint, for this reason.
    Continues(String),
}

/// Settings that change neither what is learned nor how it is evaluated, beyond the rounding of other devices and
/// placements: they may differ from those of a finished run. Data are compared by their contents.
const FREE: [&str; 20] = [
    "name",
    "data",
    "checkpoint",
    "reader",
    "device",
    "network",
    "metrics",
    "embedding.placement",
    "embedding.exchange",
    "embedding.frequent_rows",
    "embedding.sample_samples",
    "embedding.device_memory",
    "embedding.host_memory",
    "embedding.refresh_steps",
    "train.log_every_steps",
    "eval.batch_size",
    "guard.skipped_in_a_row_max",
    "guard.step_timeout_s",
    "guard.barrier_timeout_s",
    "guard.silence_timeout_s",
];
/// Settings that define where training ends; they are compared with where it did end.
const ENDS: [&str; 2] = ["train.epochs", "train.max_steps"];

/// Where a job ends, compared with where a run did.
enum JobEnd {
    Later,
    Same,
    /// The message that says so.
    Earlier(String),
}

/// Compares a finished run with what a job asks for.
///
/// # Errors
/// [`TrainError::RunDir`] with the first difference; [`TrainError::Data`] and [`TrainError::Saved`] if something
/// cannot be read.
pub(super) fn judge(
    path: &Path,
    summary: &Summary,
    context: &RunContext<'_>,
    identity: &mut RunIdentity,
    check: &mut ContentsCheck<'_>,
) -> Result<FinishedRun, TrainError> {
    let refused = |what: String| TrainError::Unresumable {
        what: format!(
            "the run `{}` is finished and was trained with a different job: {what}",
            path.display()
        ),
        way_out: "undo this change, train in another --run-dir, or start over here with --restart",
    };
    let saved = RunDir::trained(path)?;
    if let Some(saved) = &saved
        && let Some(what) = identity.difference(saved, check)?
    {
        return Err(refused(what));
    }
    let job = context.job;
    let saved_job = Job::load(&run_paths::job(path), &[] as &[&str]).ok();
    let target = saved_job.and_then(|job| job.eval.target_auc);
    match end(summary, (job, target), context.dataset.samples(Part::Train)) {
        JobEnd::Later => {
            let steps = summary.train.steps;
            return Ok(FinishedRun::Continues(format!(
                "the run ended after step {steps}, and the job asks for more"
            )));
        }
        JobEnd::Earlier(what) => return Err(refused(what)),
        JobEnd::Same => {}
    }
    let Some(saved) = saved else {
        let what = format!(
            "the run `{}` is finished, but the version of Rankine that trained it did not record its job and data, so \
             they cannot be compared",
            path.display()
        );
        return Err(TrainError::unresumable_here(what));
    };
    if let Some(what) = identity.eval_difference(&saved, check)? {
        return Err(refused(format!("{what} (`rankine eval` evaluates its model on other samples)")));
    }
    if let Some(what) = job_difference(path, summary, job)? {
        return Err(refused(what));
    }
    match SavedModel::verify(&run_paths::model(path)) {
        Ok((model, _)) if model.steps == summary.model_steps() && model.spec == context.model.spec => {
            Ok(FinishedRun::Complete)
        }
        Ok((model, _)) => Ok(FinishedRun::Continues(format!(
            "{} is the model of step {}, but the run's result is that of step {}",
            run_paths::model(path).display(),
            model.steps,
            summary.model_steps()
        ))),
        Err(error @ (SavedModelError::Missing(_) | SavedModelError::Damaged { .. })) => {
            Ok(FinishedRun::Continues(format!("the run is finished, but {error}")))
        }
        Err(error) => Err(error.into()),
    }
}

/// `saved_target` is the target of the run.
fn end(summary: &Summary, (job, saved_target): (&Job, Option<AucTarget>), epoch_samples: u64) -> JobEnd {
    let trained = &summary.train;
    let watched = summary.validation.as_ref().or(summary.eval.as_ref());
    let auc = watched.and_then(|eval| eval.metrics.first?.auc);
    // The final weights may be worse than those that reached the target.
    let reached = [auc, saved_target.map(|target| target.get())];
    let reached = reached.into_iter().flatten().fold(0.0, f64::max);
    let reached = job.eval.target_auc.is_some_and(|target| reached >= target.get());
    let steps = job.train.max_steps.map_or(u64::MAX, |most| most.get());
    let samples = epoch_samples.saturating_mul(job.train.epochs.get());
    if steps < trained.steps {
        JobEnd::Earlier(format!("train.max_steps is {steps}, and the run took {} steps", trained.steps))
    } else if samples < trained.samples {
        let epochs = job.train.epochs.get();
        JobEnd::Earlier(format!(
            "train.epochs is {epochs}, and the run was trained on {} samples",
            trained.samples
        ))
    } else if steps == trained.steps
        || samples == trained.samples
        || (trained.stopped == EndReason::TargetAuc && reached)
        || trained.stopped == EndReason::EarlyStopping
    {
        JobEnd::Same
    } else {
        JobEnd::Later
    }
}

/// The first setting that differs from a run's, and matters.
fn job_difference(path: &Path, summary: &Summary, job: &Job) -> Result<Option<String>, TrainError> {
    let path = run_paths::job(path);
    let unreadable = |error: &dyn std::fmt::Display| TrainError::unreadable(&path, error);
    let saved = Job::load(&path, &[] as &[&str]).map_err(|error| unreadable(&error))?;
    let on_gpus = summary.device.kind == DeviceKind::Cuda.name();
    let device = &job.device;
    let precision = if on_gpus { device.precision_on_gpus() } else { device.precision_on_cpus() }.name();
    if let Some(was) = summary.device.precision.as_ref().filter(|was| *was != precision) {
        return Ok(Some(format!("device.precision is \"{precision}\", and was \"{was}\"")));
    }
    let (saved, own) = (settings(&saved), settings(job));
    let matters = |key: &str| {
        let is = |names: &[&str]| {
            names.iter().any(|name| {
                key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        // Without a target and early stopping, evaluations during training change nothing.
        let decides = job.eval.target_auc.is_some() || job.train.early_stopping.is_some();
        let only_logged = matches!(key, "eval.every_steps" | "eval.every") && !decides;
        // With a target, training goes on for some steps after it was reached.
        let only_timed = key == "eval.beside_training" && job.eval.target_auc.is_none();
        !is(&FREE) && !is(&ENDS) && !only_logged && !only_timed
    };
    let keys = own.keys().chain(saved.keys()).filter(|key| matters(key));
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable();
    let value = |of: &BTreeMap<String, Value>, key: &String| of.get(key).cloned().unwrap_or_default();
    Ok(keys.into_iter().find_map(|key| first_difference(key, &value(&saved, key), &value(&own, key))))
}

/// The settings of a job by their keys, `a.b` each. Which memory has the rows of a table is left out.
fn settings(job: &Job) -> BTreeMap<String, Value> {
    let mut job = job.clone();
    job.tables.iter_mut().for_each(|table| table.tier = Tier::default());
    let value: Value = toml::from_str(&job.to_toml()).expect("the effective job is TOML");
    let mut found = BTreeMap::new();
    let mut open = vec![(String::new(), value)];
    while let Some((key, value)) = open.pop() {
        let Value::Object(table) = value else {
            found.insert(key, value);
            continue;
        };
        let below = |name: String| if key.is_empty() { name } else { format!("{key}.{name}") };
        open.extend(table.into_iter().map(|(name, value)| (below(name), value)));
    }
    found
}
