//! The paths of the files in a run folder.

use std::path::{Path, PathBuf};

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
