//! The folder of a search: what is searched, so that it can be continued, and the result.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use rankine_base::publish::{Lock, create_folders, is_leftover, replace_file_under};
use rankine_checkpoint::DataIdentity;
use rankine_job::Job;
use rankine_reader::{Dataset, Part};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::{Extent, TuneError, Tuned, Tuning};

/// The file in the folder of a search.
const NAME: &str = "tune.json";

/// What is searched.
#[derive(Debug, PartialEq, Serialize)]
struct Plan {
    version: &'static str,
    /// The job, without what may differ between two parts of a search.
    job: String,
    /// The training part: trials on other samples cannot be compared.
    data: DataIdentity,
    /// What the search looks for; absent if it is the best metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    objective: Option<String>,
    seed: u64,
    /// `None` if the time decides.
    trials: Option<u64>,
    space: String,
}

fn plan(tuning: &Tuning<'_>, job: &Job, dataset: &Dataset) -> rankine_base::Result<Json> {
    let mut job = job.clone();
    (job.device.threads, job.metrics) = (None, Default::default());
    Ok(json!(Plan {
        version: env!("CARGO_PKG_VERSION"),
        job: job.to_toml(),
        data: DataIdentity::of(dataset, Part::Train)?,
        objective: tuning.objective.is_time().then(|| format!("{:?}", tuning.objective)),
        seed: tuning.seed,
        trials: match tuning.extent {
            Extent::Trials(trials) => Some(trials),
            Extent::Budget(_) => None,
        },
        space: format!("{:?}", tuning.space.dimensions),
    }))
}

/// Begins a search in its folder, or continues it. The folder is locked meanwhile.
pub(super) fn begin(tuning: &Tuning<'_>, job: &Job, dataset: &Dataset) -> Result<Lock, TuneError> {
    let (dir, path) = (tuning.dir, path(tuning));
    let refused = |what: String| TuneError::Dir { dir: dir.to_owned(), what };
    create_folders(dir)?;
    let lock = Lock::within(dir)?;
    let own = plan(tuning, job, dataset)?;
    match fs::read(&path) {
        Ok(text) => {
            if !tuning.resume {
                return Err(refused(
                    "the folder has a search already: choose another --run-dir, or continue it with --resume"
                        .into(),
                ));
            }
            let found: Json = serde_json::from_slice(&text)
                .map_err(|error| refused(format!("{NAME} is damaged: {error}; choose another --run-dir")))?;
            let keys = ["version", "objective", "seed", "trials", "space", "job", "data"];
            if let Some(key) = keys.into_iter().find(|key| found["plan"][key] != own[key]) {
                let what = match key {
                    "trials" => "a different number of trials",
                    "data" => "different training samples",
                    key => &format!("a different {key}"),
                };
                return Err(refused(format!(
                    "the search in this folder has {what}: repeat its command, or choose another --run-dir"
                )));
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut entries = fs::read_dir(dir).map_err(|error| refused(error.to_string()))?;
            // A kill may have come before the plan had its name.
            let is_foreign = |name: &OsStr| !Lock::is_lock_name(name) && !is_leftover(name, NAME);
            if entries.any(|entry| entry.is_ok_and(|entry| is_foreign(&entry.file_name()))) {
                return Err(refused(
                    "the folder is not empty, and has no search: choose another --run-dir".into(),
                ));
            }
        }
        Err(error) => return Err(refused(format!("cannot read {NAME}: {error}"))),
    }
    write(tuning, &lock, &json!({ "plan": own }))?;
    Ok(lock)
}

/// Adds the result to the file.
pub(super) fn finish(
    tuning: &Tuning<'_>,
    (job, dataset): (&Job, &Dataset),
    tuned: &Tuned,
    lock: &Lock,
) -> Result<(), TuneError> {
    write(tuning, lock, &json!({ "plan": plan(tuning, job, dataset)?, "result": tuned }))
}

fn path(tuning: &Tuning<'_>) -> PathBuf {
    tuning.dir.join(NAME)
}

fn write(tuning: &Tuning<'_>, lock: &Lock, value: &Json) -> Result<(), TuneError> {
    let text = serde_json::to_string_pretty(value).expect("it is plain data") + "\n";
    Ok(replace_file_under(lock, &path(tuning), text.as_bytes())?)
}
