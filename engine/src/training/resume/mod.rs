//! Where training starts in a run folder: at step 0, from the latest checkpoint, or not at all.
//!
//! The first process decides for all: they start at the same step, or fail with the same message. Nothing in the
//! folder changes before the decision is made.

use std::path::Path;
use std::sync::Arc;

use rankine_base::blame::Blame;
use rankine_checkpoint as checkpoint;
use rankine_checkpoint::{Checkpoint, CheckpointError, Files, TrainState};
use rankine_job::Job;
use rankine_launch::RunStage;
use rankine_saved::SavedModel;
use serde::{Deserialize, Serialize};

use super::context::{RunContext, SampleSource};
use super::error::{Disagreement, TrainError};
use super::event::{Event, Observer};
use super::identity::{ContentsCheck, RunIdentity, TrainingIdentity};
use super::initial_model::InitialModel;
use super::processes::with_heartbeat;
use super::run_dir::RunDir;
use super::start::Start;
use super::summary::Summary;
use crate::build;
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
    observer: &mut dyn Observer,
) -> Result<StartingPoint, TrainError> {
    const WHAT: &str = "where training begins";
    let RunContext { files, processes, .. } = *context;
    if !processes.is_first() {
        let text = processes.of_first(WHAT, &[])?;
        let decision = serde_json::from_slice(&text)
            .map_err(|error| Disagreement::Decision { what: WHAT, error: error.to_string() })?;
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
    let decided = decide(context, path, observer);
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
    observer: &mut dyn Observer,
) -> Result<StartingPoint, TrainError> {
    let RunContext { job, source, files, processes, threads, stop, start, .. } = *context;
    let mut run = RunDir::open(path, job, start)?;
    let dir = run_paths::checkpoints(path);
    if start == Start::Restart {
        return anew(run, true, job, observer);
    }
    let mut identity = RunIdentity::of(context)?;
    let mut continues = None;
    if let Some(summary) = RunDir::finished(path)? {
        if source == SampleSource::Program {
            let what = "the run is finished: push rows to the trainer of another run folder";
            let what = format!("{}: {what}", path.display());
            return Err(TrainError::RunDir { path: path.to_owned(), what });
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
            refuse_imported(path)?;
            clean_up(&**files, &dir, observer)?;
            return anew(run, false, job, observer);
        }
        (None, Some(why)) => {
            let what = format!("{why}, and it has no checkpoint to resume from");
            return Err(TrainError::unresumable_here(what));
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
    let here = build::here();
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

/// Refuses to train an imported model from nothing, which would replace it.
///
/// # Errors
/// [`TrainError::Unresumable`].
fn refuse_imported(path: &Path) -> Result<(), TrainError> {
    match SavedModel::open(&run_paths::model(path)) {
        // A training ends after one step or more.
        Ok(model) if model.steps == 0 => Err(TrainError::Unresumable {
            what: format!(
                "the run `{}` is an imported model, which has no optimizer state to resume from",
                path.display()
            ),
            way_out: "continue it in another --run-dir, with train.init_from set to this run",
        }),
        Ok(_) | Err(_) => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use rankine_base::Stop;
    use rankine_topology::Topology;

    use super::*;
    use crate::groups::in_group;
    use crate::training::data::open_or_generate;
    use crate::training::data::tests::job;
    use rankine_checkpoint::Disk;
    use rankine_launch::ProcessGroup;
    use rankine_model::translate;

    /// How training starts on two processes: whether it has the run folder, or the error and who is to blame. The first
    /// process sends `decision`, or decides itself.
    fn starts(path: &Path, decision: Option<&str>) -> Vec<Result<bool, (String, Blame)>> {
        let place = tempfile::tempdir().unwrap();
        let (job, stop) = (job(&place.path().join("data"), 1), Stop::default());
        let dataset = open_or_generate(&job, &stop, &mut ()).unwrap();
        let model = translate(&job, dataset.schema()).unwrap();
        let files: Arc<dyn Files> = Arc::new(Disk);
        in_group(2, |processes: &ProcessGroup| {
            if let Some(decision) = decision.filter(|_| processes.is_first()) {
                processes.of_first("where training begins", decision.as_bytes()).unwrap();
                return Ok(true);
            }
            let context = RunContext {
                job: &job,
                dataset: &dataset,
                eval_sets: &[],
                source: SampleSource::Dataset,
                start: Start::Resume,
                model: &model,
                processes,
                topology: Topology::new(1, 1).unwrap(),
                files: &files,
                gpus: None,
                threads: 1,
                stop: &stop,
                refit: None,
                began: SystemTime::now(),
            };
            match begin(&context, path, &mut ()) {
                Ok(StartingPoint::Train(start)) if start.from.is_none() => Ok(start.run.is_some()),
                Ok(_) => panic!("there is neither a summary nor a checkpoint"),
                Err(error) => Err((error.to_string(), error.blame())),
            }
        })
    }

    #[test]
    fn all_processes_start_as_the_first_decides() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(
            starts(&place.path().join("run"), None),
            [Ok(true), Ok(false)],
            "the first has the folder"
        );
        // All fail with the same words.
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        let refused = starts(&file, None);
        let (words, _) = refused[0].as_ref().unwrap_err();
        assert!(words.contains(file.to_str().unwrap()), "{words}");
        assert_eq!(refused[0], refused[1]);
        let run = place.path().join("run");
        let refused = r#"{"Refused":{"words":"no, thanks","blame":"Usage"}}"#;
        assert_eq!(starts(&run, Some(refused))[1], Err(("no, thanks".into(), Blame::Usage)));
        assert_eq!(starts(&run, Some(r#"{"From":null}"#))[1], Ok(false));
        // A process that does not see the checkpoint must not start at step 0.
        let (words, _) = starts(&run, Some(r#"{"From":7}"#))[1].clone().unwrap_err();
        assert!(words.contains("run/checkpoints/step-7: "), "{words}");
        let (words, _) = starts(&run, Some("{}"))[1].clone().unwrap_err();
        assert!(
            words.starts_with("process 0 sent an invalid decision on where training begins: "),
            "{words}"
        );
    }
}
