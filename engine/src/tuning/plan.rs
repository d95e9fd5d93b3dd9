//! The folder of a search: what is searched, so that it can be continued, and the result.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use rankine_reader::publish::{Lock, create_folders, replace_file_under};
use serde::Serialize;
use serde_json::{Value as Json, json};
use toml::Value;

use super::space::Drawn;
use super::{Extent, TuneError, Tuned, Tuning};
use crate::job::Job;

/// The file in the folder of a search.
const NAME: &str = "tune.json";

/// What `--set` takes for the settings of a trial. Where vectors and the bottom MLP interact, its last layer follows
/// the size of the embeddings.
pub(super) fn sets(job: &Job, drawn: &Drawn) -> Vec<String> {
    let mut sets: Vec<_> = drawn.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let has = |key: &str| drawn.iter().find(|(own, _)| own == key).map(|(_, value)| value);
    let is_fixed = has("model").is_some() || has("model.bottom_mlp").is_some();
    let (bottom, dim) = (job.model.bottom_mlp(), has("model.embedding_dim").and_then(Value::as_integer));
    if let (Some(dim), true, false) = (dim, job.model.wants_equal_dims() && !bottom.is_empty(), is_fixed) {
        let hidden = bottom[..bottom.len() - 1].iter().map(|width| i64::from(width.get()));
        let widths: Vec<_> = hidden.chain([dim]).collect();
        sets.push(format!("model.bottom_mlp={widths:?}"));
    }
    sets
}

/// What is searched.
#[derive(Debug, PartialEq, Serialize)]
struct Plan {
    version: &'static str,
    /// The job, without what may differ between two parts of a search.
    job: String,
    seed: u64,
    /// `None` if the time decides.
    trials: Option<u64>,
    space: String,
}

fn plan(tuning: &Tuning<'_>, job: &Job) -> Json {
    let mut job = job.clone();
    (job.device.threads, job.metrics) = (None, Default::default());
    json!(Plan {
        version: env!("CARGO_PKG_VERSION"),
        job: job.to_toml(),
        seed: tuning.seed,
        trials: match tuning.extent {
            Extent::Trials(trials) => Some(trials),
            Extent::Budget(_) => None,
        },
        space: format!("{:?}", tuning.space),
    })
}

/// Begins a search in its folder, or continues it. The folder is locked meanwhile.
pub(super) fn begin(tuning: &Tuning<'_>, job: &Job) -> Result<Lock, TuneError> {
    let (dir, path) = (tuning.dir, path(tuning));
    let refused = |what: String| TuneError::Dir(format!("{}: {what}", dir.display()));
    create_folders(dir)?;
    let lock = Lock::within(dir)?;
    let own = plan(tuning, job);
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
            let keys = ["version", "seed", "trials", "space", "job"];
            if let Some(key) = keys.into_iter().find(|key| found["plan"][key] != own[key]) {
                let what = if key == "trials" { "number of trials" } else { key };
                return Err(refused(format!(
                    "the search in this folder has a different {what}: repeat its command, or choose another --run-dir"
                )));
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut entries = fs::read_dir(dir).map_err(|error| refused(error.to_string()))?;
            if entries.any(|entry| entry.is_ok_and(|entry| !Lock::is_lock_name(&entry.file_name()))) {
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
pub(super) fn finish(tuning: &Tuning<'_>, job: &Job, tuned: &Tuned, lock: &Lock) -> Result<(), TuneError> {
    write(tuning, lock, &json!({ "plan": plan(tuning, job), "result": tuned }))
}

fn path(tuning: &Tuning<'_>) -> PathBuf {
    tuning.dir.join(NAME)
}

fn write(tuning: &Tuning<'_>, lock: &Lock, value: &Json) -> Result<(), TuneError> {
    let text = serde_json::to_string_pretty(value).expect("it is plain data") + "\n";
    Ok(replace_file_under(lock, &path(tuning), text.as_bytes())?)
}
