//! Continuing a run, and starting over in its folder. The results of earlier attempts are kept, or moved within the
//! folder; nothing is removed.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rankine_base::build::Build;
use rankine_base::files::read_regular;
use rankine_base::sealed;
use rankine_job::Job;
use serde::Deserialize;

use super::RunDir;
use crate::run_paths;
use crate::training::devices::RunDevices;
use crate::training::error::TrainError;
use crate::training::identity::TrainingIdentity;
use crate::training::summary::Summary;

/// The kind and version of the sealed file that records what was trained.
const TRAINED_KIND: &str = "rankine run";
const TRAINED_FORMAT: u32 = 1;

impl RunDir {
    /// The summary of a finished run.
    ///
    /// # Errors
    /// [`TrainError::RunDir`] if it cannot be read, or is damaged.
    pub(in crate::training) fn finished(path: &Path) -> Result<Option<Summary>, TrainError> {
        let path = path.join(run_paths::SUMMARY_NAME);
        let text = match read_regular(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| TrainError::unreadable(&path, &error))?,
        };
        let summary = serde_json::from_slice(&text);
        summary.map(Some).map_err(|error| {
            let what = format!("{} is damaged: {error}", path.display());
            let way_out =
                "move it elsewhere to train again from the last checkpoint to the end; --restart starts over";
            TrainError::Unresumable { what, way_out }
        })
    }

    /// The build that trained in this folder last; `None` if it did not record itself.
    pub(in crate::training) fn last_build(&self) -> Option<Build> {
        let text = read_regular(&self.path.join(run_paths::DEVICES_NAME)).ok()?;
        serde_json::from_slice::<RunDevices>(&text).ok()?.build
    }

    /// What a finished run trained; `None` if the version that trained it did not record that.
    ///
    /// # Errors
    /// [`TrainError::RunDir`] if it cannot be read, or is damaged.
    pub(in crate::training) fn trained(path: &Path) -> Result<Option<TrainingIdentity>, TrainError> {
        let path = path.join(run_paths::TRAINED_NAME);
        let text = match read_regular(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| TrainError::unreadable(&path, &error))?,
        };
        let trained = sealed::from_json(TRAINED_KIND, TRAINED_FORMAT, &text);
        trained.map(Some).map_err(|error| {
            let path = path.display();
            let what = format!("{path} cannot be read: {error}. It records what the run trained");
            TrainError::unresumable_here(what)
        })
    }

    /// Records what was trained.
    pub(super) fn write_trained(&self, trained: &TrainingIdentity) -> Result<(), TrainError> {
        self.replace(run_paths::TRAINED_NAME, &sealed::to_json(TRAINED_KIND, TRAINED_FORMAT, trained))
    }

    /// Whether steps were reported here.
    pub(in crate::training) fn has_log(&self) -> bool {
        self.metrics.metadata().is_ok_and(|metadata| metadata.len() > 0)
    }

    /// Continues after a step, whose model was evaluated or not: removes the lines of the log that are going to be
    /// written again, replaces the job by this one, and removes the model and the scores of an interrupted save. The
    /// model, scores and summary of a finished run are moved to a folder `finished-step-N`, whose path is returned:
    /// until the run is finished again, they are its only result.
    ///
    /// # Errors
    /// [`TrainError::RunDir`], [`TrainError::Write`].
    pub(in crate::training) fn continue_after(
        &mut self,
        (step, is_evaluated): (u64, bool),
        job: &Job,
    ) -> Result<Option<PathBuf>, TrainError> {
        let kept = Self::finished(&self.path)?.map(|summary| self.keep_finished(&summary)).transpose()?;
        let path = self.path.join(run_paths::METRICS_NAME);
        let text = read_regular(&path).map_err(|error| TrainError::unreadable(&path, &error))?;
        let written = self.metrics.set_len(kept_bytes(&text, step, is_evaluated) as u64);
        written.and_then(|()| self.metrics.sync_all()).map_err(TrainError::write(&path))?;
        let model = run_paths::model(&self.path);
        if is_there(&model) {
            fs::remove_dir_all(&model).map_err(TrainError::write(&model))?;
        }
        // Those of another evaluation than the next summary's, unless the run is finished with new ones.
        let scores = run_paths::scores(&self.path);
        if is_there(&scores) {
            fs::remove_file(&scores).map_err(TrainError::write(&scores))?;
        }
        self.write_job(job)?;
        Ok(kept)
    }

    /// Moves the result of a finished run to another folder.
    fn keep_finished(&self, summary: &Summary) -> Result<PathBuf, TrainError> {
        let kept = self.fresh_folder(&format!("finished-step-{}", summary.train.steps))?;
        self.copy_to(&kept, run_paths::JOB_NAME)?;
        self.copy_to(&kept, run_paths::TRAINED_NAME)?;
        self.copy_to(&kept, run_paths::DEVICES_NAME)?;
        // The summary goes last: without it, the model would be taken for that of an interrupted save.
        for name in [run_paths::SCORES_NAME, run_paths::MODEL_NAME, run_paths::SUMMARY_NAME] {
            self.move_to(&kept, name)?;
            sync(&kept)?;
        }
        sync(&self.path)?;
        Ok(kept)
    }

    /// Moves everything that earlier attempts left to a folder `before-restart-N`, which is itself a run folder that
    /// can be resumed, and empties the log. Returns that folder, or `None` if there is nothing to move.
    ///
    /// # Errors
    /// [`TrainError::Write`]; files moved until then are in the new folder.
    pub(in crate::training) fn start_over(&mut self) -> Result<Option<PathBuf>, TrainError> {
        let checkpoints = run_paths::checkpoints(&self.path);
        let names = [
            run_paths::MODEL_NAME,
            run_paths::SUMMARY_NAME,
            run_paths::TRAINED_NAME,
            run_paths::SCORES_NAME,
            run_paths::DEVICES_NAME,
            run_paths::TUNING_NAME,
            run_paths::MACHINE_NAME,
            run_paths::TENSORBOARD_NAME,
            run_paths::MLLOG_NAME,
        ];
        if !self.has_log()
            && !is_there(&checkpoints)
            && !names.iter().any(|name| is_there(&self.path.join(name)))
        {
            return Ok(None);
        }
        let kept = self.fresh_folder("before-restart")?;
        self.copy_to(&kept, run_paths::JOB_NAME)?;
        self.copy_to(&kept, run_paths::METRICS_NAME)?;
        names.iter().try_for_each(|name| self.move_to(&kept, name))?;
        if is_there(&checkpoints) {
            // Checkpoints may be on another file system, behind a link or a mount: they stay there.
            let moved = if checkpoints.is_symlink() {
                Err(ErrorKind::CrossesDevices.into())
            } else {
                fs::rename(&checkpoints, run_paths::checkpoints(&kept))
            };
            moved.or_else(|_| move_entries(&checkpoints, &kept)).map_err(TrainError::write(&checkpoints))?;
        }
        sync(&kept)?;
        sync(&self.path)?;
        // Its lock stays with it.
        let emptied = self.metrics.set_len(0).and_then(|()| self.metrics.sync_all());
        emptied.map_err(TrainError::write(&self.path.join(run_paths::METRICS_NAME)))?;
        Ok(Some(kept))
    }

    /// Makes a new folder in the run's folder, with a number appended if the name is taken.
    fn fresh_folder(&self, name: &str) -> Result<PathBuf, TrainError> {
        let mut path = self.path.join(name);
        for number in 2u32.. {
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    path = self.path.join(format!("{name}-{number}"));
                }
                made => return made.map(|()| path.clone()).map_err(TrainError::write(&path)),
            }
        }
        unreachable!("a folder with four billion entries")
    }

    fn move_to(&self, folder: &Path, name: &str) -> Result<(), TrainError> {
        let path = self.path.join(name);
        match fs::rename(&path, folder.join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            moved => moved.map_err(TrainError::write(&path)),
        }
    }

    fn copy_to(&self, folder: &Path, name: &str) -> Result<(), TrainError> {
        let (path, copy) = (self.path.join(name), folder.join(name));
        match fs::copy(&path, &copy) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            copied => copied.and_then(|_| File::open(&copy)?.sync_all()).map_err(TrainError::write(&copy)),
        }
    }
}

/// Whether an entry of that name exists, even a broken link.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn sync(dir: &Path) -> Result<(), TrainError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(TrainError::write(dir))
}

/// Moves the entries of a folder into a new folder in it, which is named like `named`.
fn move_entries(from: &Path, named: &Path) -> std::io::Result<()> {
    let to = from.join(named.file_name().unwrap_or_default());
    let entries: Vec<_> = fs::read_dir(from)?.collect::<Result<_, _>>()?;
    fs::create_dir(&to)?;
    for entry in entries {
        // Folders of earlier restarts stay where they are.
        if entry.file_name().to_string_lossy().starts_with("step-") {
            fs::rename(entry.path(), to.join(entry.file_name()))?;
        }
    }
    File::open(&to)?.sync_all()?;
    File::open(from)?.sync_all()
}

/// The number of bytes of a log to keep, if training continues after a step: up to the last whole line that is not
/// going to be written again. Unreadable lines before it stay, too: a torn line says nothing about the lines after it.
///
/// Written again are the lines of later steps and the evaluations at the end of a run. Those are of the last model or,
/// with early stopping, of an earlier one, which was evaluated before: while a run trains, a step is evaluated at most
/// once. Its line may follow those of later steps, if its metrics were computed beside them. If the evaluation of this
/// step was among the state that training continues with, it is not repeated.
fn kept_bytes(text: &[u8], step: u64, is_evaluated: bool) -> usize {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
        step: u64,
    }
    let (mut end, mut kept) = (0, 0);
    let (mut evaluated, mut is_repeated, mut is_later) = (HashSet::new(), false, false);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        end += line.len();
        let Ok(read) = serde_json::from_slice::<Line<'_>>(line) else { continue };
        let is_final = match &*read.kind {
            "eval" => {
                is_repeated = !evaluated.insert(read.step) || (read.step == step && !is_evaluated);
                is_repeated
            }
            // What early stopping makes of an evaluation follows it.
            "early_stopping" => is_repeated,
            _ => false,
        };
        is_later |= read.step > step;
        if line.ends_with(b"\n") && !is_later && !is_final {
            kept = end;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_kept_up_to_a_step() {
        let line = |step: u64| format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":0.5}}\n");
        let text = [10, 20, 20, 30].map(line).concat();
        for (step, lines) in [(9, 0), (10, 1), (19, 1), (20, 3), (40, 4)] {
            assert_eq!(kept_bytes(text.as_bytes(), step, false), lines * line(10).len());
        }
        // A last line that is incomplete is removed.
        assert_eq!(kept_bytes(&text.as_bytes()[..text.len() - 1], 40, false), 3 * line(10).len());
        assert_eq!(kept_bytes(b"", 40, false), 0);
    }

    /// Evaluations at the end of a run are repeated when it is finished again; those of steps that are not trained
    /// again are not.
    #[test]
    fn evaluations_that_are_going_to_be_repeated_are_removed() {
        let line =
            |kind: &str, step: u64| format!("{{\"kind\":\"{kind:5}\",\"step\":{step}}}\n").replace(' ', "");
        let (train, eval) = (|step| line("train", step), |step| line("eval", step));
        // Evaluated at 10, 20 and 30; at the end the best model, that of 10, on two parts.
        let steps = [train(10), eval(10), train(20), eval(20), train(30), eval(30)];
        let best = [&steps[..], &[eval(10), eval(10)]].concat();
        // Evaluated at 10 only, and at the end, at 30, on two parts.
        let last = [train(10), eval(10), train(20), train(30), eval(30), eval(30)];
        for (lines, step, is_evaluated, kept) in [
            (&best[..], 10, true, 2),
            (&best, 20, true, 4),
            (&best, 25, false, 4),
            (&best, 30, true, 6),
            (&last, 10, true, 2),
            (&last, 20, false, 3),
            (&last, 30, false, 4),
            // A checkpoint of that step that recorded the first evaluation of the end.
            (&last, 30, true, 5),
        ] {
            let text = lines.concat();
            let expected = lines[..kept].concat();
            let found = &text[..kept_bytes(text.as_bytes(), step, is_evaluated)];
            assert_eq!(found, expected, "{step}");
        }
        // What early stopping made of an evaluation stays with it.
        let stopping = |step| line("early_stopping", step);
        let judged = [train(10), eval(10), stopping(10), train(20), eval(20), stopping(20), eval(10)];
        for (step, is_evaluated, kept) in [(10, true, 3), (10, false, 1), (20, true, 6), (20, false, 4)] {
            let text = judged.concat();
            let found = &text[..kept_bytes(text.as_bytes(), step, is_evaluated)];
            assert_eq!(found, judged[..kept].concat(), "{step}");
        }
        // The metrics of an evaluation were computed beside later steps, and the run was stopped then.
        let beside = [train(10), eval(10), train(20), train(30), eval(20)];
        for (step, is_evaluated, kept) in [(30, false, 5), (35, false, 5), (20, true, 3), (20, false, 3)] {
            let text = beside.concat();
            let found = &text[..kept_bytes(text.as_bytes(), step, is_evaluated)];
            assert_eq!(found, beside[..kept].concat(), "{step}");
        }
        // A log to which an earlier version added evaluations twice loses no step.
        let twice = [&best[..], &[train(40), eval(40), train(50)]].concat().concat();
        assert_eq!(kept_bytes(twice.as_bytes(), 40, true), twice.len() - train(50).len());
    }

    /// A line torn by a power failure or a full disk in the middle of a log removes no other lines.
    #[test]
    fn a_torn_line_takes_no_others_along() {
        let line = |step: u64| format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":0.5}}\n");
        for torn in ["{\"kind\":\"tra", "{\"kind\":\"tra\n", "\0\0\0\0", "\n", "{\"step\":\"x\"}\n"] {
            let text = [&line(10), torn, &line(20), &line(30), &line(40)].concat();
            // A line that follows a torn one without a line feed is part of it.
            let kept = line(10).len() + torn.len() + 2 * line(20).len();
            assert_eq!(kept_bytes(text.as_bytes(), 30, false), kept, "{torn:?}");
        }
    }
}
