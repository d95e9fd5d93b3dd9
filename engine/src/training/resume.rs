//! Where training starts in a run folder: at step 0, from the latest checkpoint, or not at all.
//!
//! The first process decides for all: they start at the same step, or fail with the same message. Nothing in the
//! folder changes before the decision is made.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::alive::alive;
use super::contents::{Comparing, Identity};
use super::finished::{self, Finished};
use super::identity::{Trained, Wanted};
use super::{Event, Observer, RunDir, Stop, Summary, TrainError};
use crate::blame::Blame;
use crate::checkpoint::{self, Checkpoint, CheckpointError, Files};
use crate::job::Job;
use crate::launch::{Phase, ProcessGroup};

/// A run folder that training is to start in.
#[derive(Clone, Copy)]
pub(super) struct Folder<'a> {
    pub(super) path: &'a Path,
    /// Whether to start at step 0, whatever the folder contains.
    pub(super) restart: bool,
    pub(super) files: &'a Arc<dyn Files>,
    pub(super) processes: &'a ProcessGroup,
    pub(super) threads: usize,
    /// Interrupts the comparison of raw files.
    pub(super) stop: &'a Stop,
}

/// The decision.
pub(super) enum Begin {
    /// Nothing: the run is finished, and this is its summary.
    Finished(Box<Summary>),
    /// Training.
    Train {
        /// The folder, locked; only of the first process.
        run: Option<RunDir>,
        /// The checkpoint to resume from, unless training starts at step 0.
        from: Option<Arc<Checkpoint>>,
        /// What is trained, if it was compared with what was trained before.
        identity: Option<Box<Identity>>,
    },
}

/// The first process's decision, as sent to the others.
#[derive(Serialize, Deserialize)]
enum Verdict {
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
    folder: Folder<'_>,
    wanted: Wanted<'_>,
    observer: &mut dyn Observer,
) -> Result<Begin, TrainError> {
    const WHAT: &str = "where training begins";
    let Folder { path, files, processes, .. } = folder;
    if !processes.is_first() {
        let text = processes.of_first(WHAT, &[])?;
        let verdict = serde_json::from_slice(&text)
            .map_err(|error| TrainError::Device(format!("rank 0 sent no verdict on {WHAT}: {error}")))?;
        return match verdict {
            Verdict::Finished(summary) => Ok(Begin::Finished(summary)),
            Verdict::Refused { words, blame } => Err(TrainError::Refused { words, blame }),
            Verdict::From(step) => {
                let dir = RunDir::checkpoints_path(path);
                let open = |step| Checkpoint::open(files, &dir.join(checkpoint::step_name(step)));
                let from = step.map(open).transpose()?.map(Arc::new);
                processes.does(Phase::Preparing, 0);
                Ok(Begin::Train { run: None, from, identity: None })
            }
        };
    }
    let decided = decide(folder, wanted, observer);
    let verdict = match &decided {
        Ok(Begin::Finished(summary)) => Verdict::Finished(summary.clone()),
        Ok(Begin::Train { from, .. }) => {
            Verdict::From(from.as_ref().map(|checkpoint| checkpoint.manifest().train.step))
        }
        Err(error) => Verdict::Refused { words: error.to_string(), blame: error.blame() },
    };
    processes.of_first(WHAT, &serde_json::to_vec(&verdict).expect("a verdict is plain data"))?;
    processes.does(Phase::Preparing, 0);
    decided
}

fn decide(
    Folder { path, restart, files, processes, threads, stop }: Folder<'_>,
    wanted: Wanted<'_>,
    observer: &mut dyn Observer,
) -> Result<Begin, TrainError> {
    let job = wanted.job;
    let mut run = RunDir::resume(path, job)?;
    let dir = RunDir::checkpoints_path(path);
    if restart {
        return anew(run, true, job, observer);
    }
    let mut identity = Identity::of(wanted)?;
    let mut goes_on = None;
    if let Some(summary) = RunDir::finished(path)? {
        let comparing = &mut Comparing { threads, stop, observer };
        let judge = || finished::judge(path, &summary, wanted, &mut identity, comparing);
        match alive(processes, 0, judge)? {
            Finished::Stands => return Ok(Begin::Finished(Box::new(summary))),
            Finished::GoesOn(why) => goes_on = Some(why),
        }
    }
    let (found, skipped) = alive(processes, 0, || checkpoint::latest(files, &dir))?;
    let from = match (found, &goes_on) {
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
    let trained = Trained::of_checkpoint(from.manifest());
    let comparing = &mut Comparing { threads, stop, observer };
    let differs = alive(processes, 0, || identity.difference(&trained, comparing))?;
    if let Some(what) = differs {
        return Err(CheckpointError::Mismatch { path: from.path().to_owned(), what }.into());
    }
    if let Some(why) = goes_on {
        tracing::warn!("{why}: resuming from its last checkpoint");
    }
    for skipped in &skipped {
        checkpoint::set_aside(&**files, &dir, skipped.step)?;
        observer.observe(Event::Skipped(skipped));
    }
    clean_up(&**files, &dir, observer)?;
    let step = from.manifest().train.step;
    if let Some(path) = run.go_on(step, job)? {
        observer.observe(Event::Kept { path: &path });
    }
    observer.observe(Event::Resumed { step, path: from.path() });
    Ok(Begin::Train { run: Some(run), from: Some(Arc::new(from)), identity: Some(Box::new(identity)) })
}

/// Starts at step 0, and keeps what the folder contains.
fn anew(
    mut run: RunDir,
    restarted: bool,
    job: &Job,
    observer: &mut dyn Observer,
) -> Result<Begin, TrainError> {
    if let Some(path) = run.start_over()? {
        observer.observe(Event::Kept { path: &path });
    }
    run.go_on(0, job)?;
    observer.observe(Event::Anew { restarted });
    Ok(Begin::Train { run: Some(run), from: None, identity: None })
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
