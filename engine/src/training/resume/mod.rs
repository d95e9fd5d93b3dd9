//! Where training starts in a run folder: at step 0, from the latest checkpoint, or not at all.
//!
//! The first process decides for all: they start at the same step, or fail with the same message. Nothing in the
//! folder changes before the decision is made.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::context::{RunContext, SampleSource};
use super::identity::{ContentsCheck, RunIdentity, TrainingIdentity};
use super::initial_model::InitialModel;
use super::processes::with_heartbeat;
use super::run_dir::{RunDir, Summary};
use super::{Event, Observer, TrainError};
use crate::blame::Blame;
use crate::build::Build;
use crate::checkpoint::{self, Checkpoint, CheckpointError, Files, TrainState};
use crate::job::Job;
use crate::launch::RunStage;
use crate::run_paths;
use finished::FinishedRun;

mod finished;

/// Where training starts.
pub(super) enum StartingPoint {
    /// Nothing: the run is finished, and this is its summary.
    Finished(Box<Summary>),
    /// Training.
    Train(TrainingStart),
}

/// What a training starts with; by default nothing, at step 0 in a folder that is yet to be made.
#[derive(Default)]
pub(super) struct TrainingStart {
    /// The folder, locked; only of the first process.
    pub(super) run: Option<RunDir>,
    /// The checkpoint to resume from, unless training starts at step 0.
    pub(super) from: Option<Arc<Checkpoint>>,
    /// The trained model that step 0 starts from; not with a checkpoint.
    pub(super) initial: Option<Arc<InitialModel>>,
    /// What is trained, if it was compared with what was trained before.
    pub(super) identity: Option<Box<RunIdentity>>,
    /// The training on a part of the samples that found the number of steps, if there was one.
    pub(super) search: Option<Box<Summary>>,
}

/// The first process's decision, as sent to the others.
#[derive(Serialize, Deserialize)]
enum Decision {
    Finished(Box<Summary>),
    From(Option<u64>),
    Refused { words: String, blame: Blame },
}

/// Decides where training starts. All processes call this.
///
/// # Errors
/// [`TrainError::RunDir`], [`TrainError::Write`], [`TrainError::Checkpoint`] and [`TrainError::Data`] of the first
/// process, and [`TrainError::Refused`] with the same message of all others; [`TrainError::Processes`].
pub(super) fn begin(
    context: &RunContext<'_>,
    path: &Path,
    restart: bool,
    observer: &mut dyn Observer,
) -> Result<StartingPoint, TrainError> {
    const WHAT: &str = "where training begins";
    let RunContext { files, processes, .. } = *context;
    if !processes.is_first() {
        let text = processes.of_first(WHAT, &[])?;
        let decision = serde_json::from_slice(&text).map_err(|error| {
            TrainError::Device(format!("rank 0 sent an invalid decision on {WHAT}: {error}"))
        })?;
        return match decision {
            Decision::Finished(summary) => Ok(StartingPoint::Finished(summary)),
            Decision::Refused { words, blame } => Err(TrainError::Refused { words, blame }),
            Decision::From(step) => {
                let dir = run_paths::checkpoints(path);
                let open = |step| Checkpoint::open(files, &dir.join(checkpoint::step_name(step)));
                let from = step.map(open).transpose()?.map(Arc::new);
                processes.does(RunStage::Preparing, 0);
                Ok(StartingPoint::Train(TrainingStart { from, ..TrainingStart::default() }))
            }
        };
    }
    let decided = decide(context, path, restart, observer);
    let decision = match &decided {
        Ok(StartingPoint::Finished(summary)) => Decision::Finished(summary.clone()),
        Ok(StartingPoint::Train(TrainingStart { from, .. })) => {
            Decision::From(from.as_ref().map(|checkpoint| checkpoint.manifest().train.step))
        }
        Err(error) => Decision::Refused { words: error.to_string(), blame: error.blame() },
    };
    processes.of_first(WHAT, &serde_json::to_vec(&decision).expect("a decision is plain data"))?;
    processes.does(RunStage::Preparing, 0);
    decided
}

fn decide(
    context: &RunContext<'_>,
    path: &Path,
    restart: bool,
    observer: &mut dyn Observer,
) -> Result<StartingPoint, TrainError> {
    let RunContext { job, source, files, processes, threads, stop, .. } = *context;
    let mut run = RunDir::resume(path, job)?;
    let dir = run_paths::checkpoints(path);
    if restart {
        return anew(run, true, job, observer);
    }
    let mut identity = RunIdentity::of(context)?;
    let mut continues = None;
    if let Some(summary) = RunDir::finished(path)? {
        if source == SampleSource::Program {
            return Err(TrainError::RunDir(format!(
                "{}: the run is finished: push rows to the trainer of another run folder",
                path.display()
            )));
        }
        let check = &mut ContentsCheck { threads, stop, observer };
        let judge = || finished::judge(path, &summary, context, &mut identity, check);
        match with_heartbeat(processes, 0, judge)? {
            FinishedRun::Complete => return Ok(StartingPoint::Finished(Box::new(summary))),
            FinishedRun::Continues(why) => continues = Some(why),
        }
    }
    let (found, damaged) = with_heartbeat(processes, 0, || checkpoint::latest(files, &dir))?;
    let from = match (found, &continues) {
        (Some(from), _) => from,
        (None, None) => {
            clean_up(&**files, &dir, observer)?;
            return anew(run, false, job, observer);
        }
        (None, Some(why)) => {
            return Err(TrainError::RunDir(format!(
                "{why}, and it has no checkpoint to resume from: train in another --run-dir, or start over here with \
                 --restart"
            )));
        }
    };
    let trained = TrainingIdentity::of_checkpoint(from.manifest());
    let check = &mut ContentsCheck { threads, stop, observer };
    let differs = with_heartbeat(processes, 0, || identity.difference(&trained, check))?;
    if let Some(what) = differs {
        return Err(CheckpointError::Mismatch { path: from.path().to_owned(), what }.into());
    }
    if let Some(why) = &continues {
        observer.observe(Event::Continues { why });
    }
    for damaged in &damaged {
        checkpoint::set_aside(&**files, &dir, damaged.step)?;
        observer.observe(Event::SetAside(damaged));
    }
    clean_up(&**files, &dir, observer)?;
    let TrainState { step, eval, .. } = &from.manifest().train;
    let (step, is_evaluated) = (*step, eval.is_some());
    let here = Build::here();
    if let Some(last) = run.last_build().filter(|last| last != here) {
        let (last, own) = (last.unlike(here), here.unlike(&last));
        tracing::info!("another build of Rankine trained this run before, {last}: {own} continues it");
    }
    if let Some(path) = run.continue_after((step, is_evaluated), job)? {
        observer.observe(Event::Kept { path: &path });
    }
    observer.observe(Event::Resumed { step, path: from.path() });
    Ok(StartingPoint::Train(TrainingStart {
        run: Some(run),
        from: Some(Arc::new(from)),
        identity: Some(Box::new(identity)),
        ..TrainingStart::default()
    }))
}

/// Starts at step 0, and keeps what the folder contains.
fn anew(
    mut run: RunDir,
    restarted: bool,
    job: &Job,
    observer: &mut dyn Observer,
) -> Result<StartingPoint, TrainError> {
    if let Some(path) = run.start_over()? {
        observer.observe(Event::Kept { path: &path });
    }
    run.continue_after((0, false), job)?;
    observer.observe(Event::Anew { restarted });
    Ok(StartingPoint::Train(TrainingStart { run: Some(run), ..TrainingStart::default() }))
}

/// Removes checkpoints that were being written or removed when a process ended, and reports damaged ones. No other
/// process uses the run folder: this one has its lock.
fn clean_up(files: &dyn Files, dir: &Path, observer: &mut dyn Observer) -> Result<(), CheckpointError> {
    let found = checkpoint::leftovers(files, dir)?;
    let bytes = |path: &Path| files.tree_bytes(path).unwrap_or(0);
    for path in &found.partial {
        let bytes = bytes(path);
        match files.remove_dir(path) {
            Ok(()) => observer.observe(Event::Removed { path, bytes }),
            // It is not in the way.
            Err(error) => tracing::warn!("cannot remove {}: {error}", path.display()),
        }
    }
    for path in &found.damaged {
        observer.observe(Event::Damaged { path, bytes: bytes(path) });
    }
    Ok(())
}
