//! The paths of the files in a run folder.

use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;

pub(crate) const JOB_NAME: &str = "job.toml";
pub(crate) const METRICS_NAME: &str = "metrics.jsonl";
pub(crate) const SUMMARY_NAME: &str = "summary.json";
pub(crate) const MODEL_NAME: &str = "model";
pub(crate) const CHECKPOINTS_NAME: &str = "checkpoints";
pub(crate) const TUNING_NAME: &str = "tuning.json";
pub(crate) const TRAINED_NAME: &str = "trained.json";
pub(crate) const SCORES_NAME: &str = "scores.json";
pub(crate) const DEVICES_NAME: &str = "devices.json";
pub(crate) const MACHINE_NAME: &str = "machine.toml";
pub(crate) const TENSORBOARD_NAME: &str = "tensorboard";
pub(crate) const MLLOG_NAME: &str = "mllog.log";
pub(crate) const SEARCH_NAME: &str = "search";

/// The folder of runs that are given none.
pub const RUNS: &str = "runs";

/// The name of a folder in it: another name with the current time.
pub fn with_time(name: &str) -> String {
    format!("{name}-{}", Timestamp::now().strftime("%Y%m%d-%H%M%S"))
}

/// Returns the run that a path means: the run folder that it leads into, such as its `metrics.jsonl` or one of its
/// checkpoints; or the run of this name below [`RUNS`], if there is nothing at the path. Any other path is returned as
/// it is.
pub fn find(path: &Path) -> PathBuf {
    let mut components = path.components();
    if let (Some(Component::Normal(_)), None) = (components.next(), components.next())
        && !path.exists()
    {
        let below = Path::new(RUNS).join(path);
        return if below.exists() { below } else { path.to_owned() };
    }
    let run_of = |inner: &Path| {
        let run = inner.parent()?;
        // Only the names of its own files: a folder that has a job and runs is no run.
        let is_of_run = job(run).exists() && all(run).iter().any(|own| own == inner);
        is_of_run.then(|| if run.as_os_str().is_empty() { PathBuf::from(".") } else { run.to_owned() })
    };
    // A run may be in another one.
    let is_inner = path.exists() && !job(path).exists();
    let run = if is_inner { path.ancestors().take(2).find_map(run_of) } else { None };
    run.unwrap_or_else(|| path.to_owned())
}

/// The effective job.
pub fn job(run: &Path) -> PathBuf {
    run.join(JOB_NAME)
}

/// The log of losses and evaluations.
pub fn metrics(run: &Path) -> PathBuf {
    run.join(METRICS_NAME)
}

/// The summary of a finished run.
pub fn summary(run: &Path) -> PathBuf {
    run.join(SUMMARY_NAME)
}

/// The folder of a finished run's model.
pub fn model(run: &Path) -> PathBuf {
    run.join(MODEL_NAME)
}

/// The folder of checkpoints.
pub fn checkpoints(run: &Path) -> PathBuf {
    run.join(CHECKPOINTS_NAME)
}

/// The histograms of scores of a finished run's last evaluation. There are none
/// without an evaluation part, or if the run was resumed from a checkpoint that was taken after its last evaluation.
pub fn scores(run: &Path) -> PathBuf {
    run.join(SCORES_NAME)
}

/// The run folder of the training that found the number of steps of a refitted model.
pub fn search(run: &Path) -> PathBuf {
    run.join(SEARCH_NAME)
}

/// The devices that train.
pub fn devices(run: &Path) -> PathBuf {
    run.join(DEVICES_NAME)
}

/// The folder of TensorBoard's event files.
pub(crate) fn tensorboard(run: &Path) -> PathBuf {
    run.join(TENSORBOARD_NAME)
}

/// MLPerf's log.
pub(crate) fn mllog(run: &Path) -> PathBuf {
    run.join(MLLOG_NAME)
}

/// All paths that training writes.
pub fn all(run: &Path) -> Vec<PathBuf> {
    let names = [
        JOB_NAME,
        METRICS_NAME,
        SUMMARY_NAME,
        MODEL_NAME,
        CHECKPOINTS_NAME,
        TUNING_NAME,
        TRAINED_NAME,
        SCORES_NAME,
        DEVICES_NAME,
        MACHINE_NAME,
        TENSORBOARD_NAME,
        MLLOG_NAME,
    ];
    names.map(|name| run.join(name)).into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_path_into_a_run_means_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("runs/first");
        fs::create_dir_all(checkpoints(&run).join("step-5")).unwrap();
        fs::create_dir_all(run.join("search/checkpoints")).unwrap();
        fs::create_dir_all(run.join("other")).unwrap();
        fs::create_dir(run.join("model")).unwrap();
        for name in ["job.toml", "search/job.toml", "metrics.jsonl", "model/model.json"] {
            fs::write(run.join(name), "").unwrap();
        }
        assert_eq!(find(&run), run);
        for inner in
            ["job.toml", "metrics.jsonl", "model", "checkpoints", "checkpoints/step-5", "model/model.json"]
        {
            assert_eq!(find(&run.join(inner)), run, "{inner}");
        }
        // A run in a run, other folders, and what is not there stand for themselves.
        for inner in ["search", "other", "..", "../none/model", "checkpoints/step-6", "summary.json"] {
            assert_eq!(find(&run.join(inner)), run.join(inner), "{inner}");
        }
        assert_eq!(find(&run.join("search/checkpoints")), run.join("search"));
        assert_eq!(find(Path::new("no-such-run")), Path::new("no-such-run"));
    }
}
