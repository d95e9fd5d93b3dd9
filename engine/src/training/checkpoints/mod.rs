//! When a training saves checkpoints, and how it continues meanwhile.
//!
//! Between two steps the state is copied to spare host memory, and threads of their own write the copy while training
//! continues. Without enough memory for a copy, training waits until the checkpoint is written. One checkpoint is
//! written at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rankine_backend::Backend;
use rankine_checkpoint as checkpoint;
use rankine_checkpoint::{
    Base, Checkpoint, CheckpointError, Chosen, DamagedCheckpoint, Draft, Files, Manifest, Needs,
    PublishedCheckpoint, ShardFiles, TrainState, write_shard,
};
use rankine_embedding::rows::{RowSelection, Snapshot};
use rankine_job as job;
use rankine_job::OnFailure;
use rankine_launch::ProcessGroup;
use rankine_reader::Columns;
use rankine_topology::Rank;

use super::backend::Measurements;
use super::context::RunContext;
use super::error::TrainError;
use super::event::{Event, Observer};
use super::identity::{RunIdentity, TrainingIdentity};
use super::processes::with_heartbeat;
use super::run_dir::RunFolder;
use crate::run_paths;
use copies::CopyMemory;
use write::{RankCopy, SideFiles, WriteOutput, WriteTask, publish, write_alone, write_copies};

mod copies;
mod write;

/// The checkpoints of a run.
pub(super) struct Checkpoints {
    settings: job::Checkpoint,
    /// The job's average, whose snapshots are checkpoints.
    average: Option<job::Average>,
    /// Whether the job asks for checkpoints, keeps the best model, or averages several.
    takes_any: bool,
    /// Those of the run's folder, wherever it is.
    files: Arc<dyn Files>,
    folder: RunFolder,
    dir: PathBuf,
    /// What all manifests of the run have in common, except for the contents of raw files, which become known later.
    frame: Manifest,
    identity: RunIdentity,
    measurements: Measurements,
    job: String,
    /// The columns of the dataset, as text: with them, the model of a checkpoint can score rows.
    columns: String,
    /// The step of the checkpoint that was started last, and when that was.
    last_step: u64,
    last_began: Instant,
    /// The step of the latest checkpoint that was saved.
    saved: Option<u64>,
    processes: ProcessGroup,
    /// The ranks of this process.
    first_rank: Rank,
    writing: Option<PendingCheckpoint>,
    /// Memory for the next copies.
    memory: CopyMemory,
    /// The last full checkpoint, and the number of incremental ones that build on it.
    whole: Option<(Base, u64)>,
    /// The earlier checkpoints that each existing checkpoint needs, except for those of an average.
    needs: BTreeMap<u64, Needs>,
}

/// A checkpoint that is being written.
struct PendingCheckpoint {
    step: u64,
    /// The step of the best evaluation so far, if evaluations are compared.
    best: Option<u64>,
    whole: bool,
    began: Instant,
    /// How long training waited for the copy.
    waited: Duration,
    task: WriteTask,
    /// What remains to be done once all processes have written.
    publication: Option<Publication>,
}

/// What turns shards into a checkpoint.
struct Publication {
    /// Of the first process.
    draft: Option<Draft>,
    manifest: Manifest,
    side_files: SideFiles,
}

impl Checkpoints {
    /// The checkpoints in a run's folder, for a run that starts at step 0, or resumes from the checkpoint of a step.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if the folder cannot be read.
    pub(super) fn new(
        context: &RunContext<'_>,
        mut identity: RunIdentity,
        measurements: Measurements,
        folder: RunFolder,
        step: u64,
    ) -> Result<Self, TrainError> {
        let RunContext { job, dataset, processes, topology, files, .. } = *context;
        let (files, dir) = (folder.files(files), run_paths::checkpoints(folder.path()));
        let trained = identity.known().clone();
        let frame = Manifest {
            version: trained.version,
            train: TrainState::default(),
            seed: trained.seed,
            order: trained.order,
            data: trained.data,
            spec: trained.spec,
            dense: trained.dense,
            tables: trained.tables,
            device: None,
            ranks: topology.ranks(),
            nodes: topology.nodes(),
            base: None,
            shards: Vec::new(),
            files: Vec::new(),
        };
        let existing = checkpoint::list(&*files, &dir)?.into_iter();
        let needs = existing.filter_map(|(step, path)| Some((step, needs_of(&files, &path)?)));
        let (needs, average) = (needs.collect(), job.train.average);
        Ok(Self {
            average,
            takes_any: job.checkpoint.every_steps.is_some()
                || job.checkpoint.every_minutes.is_some()
                || job.train.early_stopping.is_some()
                || average.is_some(),
            settings: job.checkpoint.clone(),
            files,
            folder,
            dir,
            frame,
            identity,
            measurements,
            job: job.to_toml(),
            columns: Columns::of(dataset).to_json(),
            last_step: step,
            last_began: Instant::now(),
            saved: (step > 0).then_some(step),
            processes: processes.clone(),
            first_rank: Rank(processes.process().0 * topology.ranks() / processes.size()),
            writing: None,
            memory: CopyMemory::new(processes.size()),
            whole: None,
            needs,
        })
    }

    /// Prepares memory for the first checkpoint while training runs, if checkpoints are to be taken.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if the rows of a rank cannot be reached.
    pub(super) fn prepare(&mut self, backend: &dyn Backend) -> Result<(), TrainError> {
        if !self.takes_any {
            return Ok(());
        }
        let words = backend.on_each_rank(|_, state| {
            let all = RowSelection::all(state.rows);
            Ok(all.iter().map(|choice| choice.words(state.rows)).collect())
        })?;
        self.memory.prepare(words);
        Ok(())
    }

    /// What is trained, as far as it is known now.
    pub(super) fn trained(&mut self) -> &TrainingIdentity {
        self.identity.known()
    }

    /// Opens an earlier checkpoint, from which the run may take its model, once all of its checksums are verified.
    /// `None` if there is none of that step, or it is damaged: then it is set aside. All processes call this, after
    /// [`Checkpoints::finish`].
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if it cannot be read, or not be set aside; [`TrainError::Processes`].
    pub(super) fn open_intact(
        &self,
        step: u64,
        observer: &mut dyn Observer,
    ) -> Result<Option<Arc<Checkpoint>>, TrainError> {
        const WHAT: &str = "whether a checkpoint is intact";
        let path = self.dir.join(checkpoint::step_name(step));
        if !self.processes.is_first() {
            let is_intact = self.processes.of_first(WHAT, &[])? == [1];
            let open = || Ok(Arc::new(Checkpoint::open(&self.files, &path)?));
            return is_intact.then(open).transpose();
        }
        let opened = self.verified(step, &path, observer);
        let is_intact = matches!(opened, Ok(Some(_)));
        // The others end with this process if it fails.
        self.processes.of_first(WHAT, &[is_intact.into()])?;
        Ok(opened?)
    }

    /// The first process's part of [`Checkpoints::open_intact`].
    fn verified(
        &self,
        step: u64,
        path: &Path,
        observer: &mut dyn Observer,
    ) -> Result<Option<Arc<Checkpoint>>, CheckpointError> {
        if !path.is_dir() {
            return Ok(None);
        }
        let open = || checkpoint::open_intact(&self.files, path, step);
        match with_heartbeat(&self.processes, self.last_step, open) {
            Ok(checkpoint) => Ok(Some(Arc::new(checkpoint))),
            Err(why) if why.is_damage() => {
                checkpoint::set_aside(&*self.files, &self.dir, step)?;
                observer.observe(Event::SetAside(&DamagedCheckpoint { step, path: path.to_owned(), why }));
                Ok(None)
            }
            Err(why) => Err(CheckpointError::NeededUnreadable { path: path.to_owned(), why: Box::new(why) }),
        }
    }

    /// Sets aside those damaged snapshots that the model of this step or a later one may be averaged with. All
    /// processes call this.
    ///
    /// # Errors
    /// As [`Checkpoints::open_intact`].
    pub(super) fn check_snapshots(&self, step: u64, observer: &mut dyn Observer) -> Result<(), TrainError> {
        // The snapshots of a later step include the checkpoint of this one, which is known to be intact.
        let mut snapshots = self.average.iter().flat_map(|average| average.steps_before(step));
        snapshots.try_for_each(|snapshot| self.open_intact(snapshot, observer).map(drop))
    }

    /// The step of the last checkpoint that was started.
    pub(super) fn last_step(&self) -> u64 {
        self.last_step
    }

    /// The step of the latest checkpoint that was saved, or that training resumed from.
    pub(super) fn saved(&self) -> Option<u64> {
        self.saved
    }

    /// Whether a checkpoint is due at exactly this step, even if training has to wait for the one before.
    pub(super) fn is_due_by_steps(&self, step: u64) -> bool {
        let of_average = self.average.map(|average| average.every_steps);
        [self.settings.every_steps, of_average]
            .into_iter()
            .flatten()
            .any(|every| step.is_multiple_of(every.get()))
    }

    /// Whether a checkpoint is due by time, and the one before is written.
    pub(super) fn is_due_by_time(&self) -> bool {
        let minutes = |minutes: f64| Duration::from_secs_f64(60.0 * minutes);
        let every = self.settings.every_minutes;
        self.writing.is_none() && every.is_some_and(|every| self.last_began.elapsed() >= minutes(every.get()))
    }

    /// Whether this process has written its part.
    pub(super) fn is_written(&self) -> bool {
        match &self.writing {
            None => false,
            Some(PendingCheckpoint { task: WriteTask::Done(_), .. }) => true,
            Some(PendingCheckpoint { task: WriteTask::Thread(thread), .. }) => thread.is_finished(),
        }
    }

    /// Takes the state of a completed step and starts to write it. Without memory for a copy, it is written when this
    /// returns. The first process makes `metrics` durable before the checkpoint is published. All processes call
    /// this.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if the failure is to end the training; [`TrainError::Processes`].
    pub(super) fn begin(
        &mut self,
        backend: &mut dyn Backend,
        train: TrainState,
        metrics: Option<File>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.finish(observer)?;
        let (step, began, base) = (train.step, Instant::now(), self.base());
        (self.last_step, self.last_began) = (step, began);
        let (whole, best) = (base.is_none(), train.best.map(|best| best.step));
        let side_files = SideFiles {
            job: self.job.clone(),
            columns: self.columns.clone(),
            measurements: self.measurements.clone(),
            metrics,
        };
        let data = self.identity.known().data.clone();
        let manifest = Manifest { train, base, data, device: backend.device_state()?, ..self.frame.clone() };
        let (task, publication) = self.capture(backend, manifest, side_files, observer)?;
        let waited = began.elapsed();
        self.writing = Some(PendingCheckpoint { step, best, whole, began, waited, task, publication });
        // A single process reports at once what is already written or has failed: there is nobody to agree with.
        let is_done = matches!(&self.writing, Some(PendingCheckpoint { task: WriteTask::Done(_), .. }));
        if self.processes.size() == 1 && is_done {
            self.finish(observer)?;
        }
        Ok(())
    }

    /// Starts to write the current state. The other processes learn of a failure here when they have written.
    fn capture(
        &mut self,
        backend: &mut dyn Backend,
        manifest: Manifest,
        side_files: SideFiles,
        observer: &mut dyn Observer,
    ) -> Result<(WriteTask, Option<Publication>), TrainError> {
        let (files, dir, step) = (Arc::clone(&self.files), self.dir.clone(), manifest.train.step);
        let alone = self.processes.size() == 1;
        // Other processes write into the folder that the first one makes.
        let begin = || Draft::begin(Arc::clone(&files), &dir, step);
        let makes_folder = !alone && self.processes.is_first();
        let draft = makes_folder.then(|| with_heartbeat(&self.processes, step, begin)).transpose();
        if !alone {
            self.processes.wait("the folder of a checkpoint")?;
        }
        let draft = match draft {
            Ok(draft) => draft,
            Err(error) => {
                return Ok((
                    WriteTask::failed(error),
                    Some(Publication { draft: None, manifest, side_files }),
                ));
            }
        };
        let processes = self.processes.clone();
        let captured =
            with_heartbeat(&processes, step, || self.copy_or_write(backend, &manifest, alone, observer));
        let captured = match captured {
            Ok(Capture::Copied(copies)) if alone => {
                let write = move || write_alone(files, &dir, &manifest, copies, side_files);
                return Ok((WriteTask::spawn(write), None));
            }
            Ok(Capture::Written(draft, shards)) if alone => {
                let publish = || publish(draft.map_or_else(begin, Ok)?, manifest, shards, side_files);
                let published = with_heartbeat(&processes, step, publish);
                return Ok((WriteTask::Done((published.map(WriteOutput::Checkpoint), Vec::new())), None));
            }
            captured => captured,
        };
        let task = match captured {
            Ok(Capture::Copied(copies)) => {
                let (manifest, at) = (manifest.clone(), checkpoint::draft_path(&dir, step));
                WriteTask::spawn(move || {
                    let written = write_copies(&*files, &at, &manifest, &copies);
                    (written.map(WriteOutput::Shards), copies.into_iter().map(|copy| copy.rows).collect())
                })
            }
            Ok(Capture::Written(_, shards)) => WriteTask::Done((shards.map(WriteOutput::Shards), Vec::new())),
            Err(error) => WriteTask::failed(error),
        };
        Ok((task, Some(Publication { draft, manifest, side_files })))
    }

    /// Copies the state of the ranks here, or writes it if there is no memory for a copy.
    fn copy_or_write(
        &mut self,
        backend: &mut dyn Backend,
        manifest: &Manifest,
        alone: bool,
        observer: &mut dyn Observer,
    ) -> Result<Capture, CheckpointError> {
        let (touched, step) = (manifest.base.is_some(), manifest.train.step);
        let first = self.first_rank.0;
        let found = backend.on_each_rank(move |_, state| {
            let chosen = if touched { Chosen::changed(&state)? } else { Chosen::all(&state) };
            Ok((Snapshot::bytes(state.rows, &chosen.rows), chosen))
        })?;
        let (bytes, chosen): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let (bytes, chosen): (u64, _) = (bytes.iter().sum(), Arc::new(chosen));
        let captured = if self.memory.has_room(bytes) {
            let spare = Arc::new(self.memory.take());
            Capture::Copied(backend.on_each_rank(move |rank, state| {
                let Chosen { rows, keys } = &chosen[rank.0 - first];
                let rows = Snapshot::of(state.rows, rows, spare.of(rank.0 - first))?;
                Ok(RankCopy { rank, dense: state.dense, rows, keys: Arc::clone(keys) })
            })?)
        } else {
            observer.observe(Event::CheckpointPauses { step, bytes });
            drop(self.memory.take());
            let draft = alone.then(|| Draft::begin(Arc::clone(&self.files), &self.dir, step)).transpose()?;
            let (files, at) = (Arc::clone(&self.files), checkpoint::draft_path(&self.dir, step));
            let manifest = Arc::new(manifest.clone());
            Capture::Written(
                draft,
                backend.on_each_rank(move |rank, state| {
                    write_shard(&*files, &at, rank, &manifest, (&state, &chosen[rank.0 - first]))
                }),
            )
        };
        if !touched && self.settings.incremental {
            backend.begin_tracking()?;
        }
        Ok(captured)
    }

    /// The checkpoint that the next one builds on, if it is to be incremental.
    fn base(&mut self) -> Option<Base> {
        let (base, additions) = self.whole.as_mut().filter(|_| self.settings.incremental)?;
        if *additions + 1 >= self.settings.full_every.get() {
            return None;
        }
        *additions += 1;
        Some(base.clone())
    }

    /// Waits for the checkpoint that is being written. All processes call this.
    ///
    /// # Errors
    /// As [`Checkpoints::begin`].
    pub(super) fn finish(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(PendingCheckpoint { step, best, whole, began, waited, task, publication }) =
            self.writing.take()
        else {
            return Ok(());
        };
        let (written, spare) = match task {
            WriteTask::Thread(thread) => {
                let joined = with_heartbeat(&self.processes, step, || thread.join());
                joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
            WriteTask::Done(outcome) => outcome,
        };
        self.memory.put(spare);
        let published = match (written, publication) {
            (written, Some(publication)) => self.publish_together(written, publication)?,
            (Ok(WriteOutput::Checkpoint(published)), None) => Ok(published),
            (Ok(WriteOutput::Shards(_)), None) => {
                unreachable!("shards of several processes are published together")
            }
            (Err(error), None) => Err(error),
        };
        match published {
            Ok(published) => {
                self.needs.insert(step, Needs { base: published.base, best, averaged: Vec::new() });
                self.done(whole, published, (began, waited), observer);
            }
            Err(error) => self.failed(step, error, observer)?,
        }
        Ok(())
    }

    /// Sends the indexes of the shards to the first process, which publishes the checkpoint if all have written.
    fn publish_together(
        &self,
        written: Result<WriteOutput, CheckpointError>,
        Publication { draft, manifest, side_files }: Publication,
    ) -> Result<Result<PublishedCheckpoint, CheckpointError>, TrainError> {
        type Reply<T> = Result<T, String>;
        let (own, error): (Reply<Vec<ShardFiles>>, _) = match written {
            Ok(WriteOutput::Shards(shards)) => (Ok(shards), None),
            Ok(WriteOutput::Checkpoint(_)) => unreachable!("several processes write shards"),
            Err(error) => (Err(error.to_string()), Some(error)),
        };
        let text = serde_json::to_vec(&own).expect("indexes are plain data");
        let all = self.processes.gather("the shards of a checkpoint", &text)?;
        let all = all.iter().map(|text| {
            let shards: Reply<Vec<ShardFiles>> =
                serde_json::from_slice(text).unwrap_or_else(|error| Err(error.to_string()));
            shards.map_err(CheckpointError::State)
        });
        let all: Result<Vec<_>, _> = all.collect();
        let step = manifest.train.step;
        let published = draft.map(|draft| {
            let publish = || publish(draft, manifest, all.map(|shards| shards.concat()), side_files);
            with_heartbeat(&self.processes, step, publish)
        });
        let reply: Option<Reply<&PublishedCheckpoint>> =
            published.as_ref().map(|published| published.as_ref().map_err(ToString::to_string));
        let text = serde_json::to_vec(&reply).expect("a reply is plain data");
        let text = self.processes.of_first("the checkpoint", &text)?;
        let reply: Option<Reply<PublishedCheckpoint>> = serde_json::from_slice(&text).unwrap_or(None);
        Ok(match (error, published, reply) {
            // The process that failed has the best message.
            (Some(error), ..) | (None, Some(Err(error)), _) => Err(error),
            (None, _, Some(reply)) => reply.map_err(CheckpointError::State),
            (None, ..) => Err(CheckpointError::State("the first process did not create its folder".into())),
        })
    }

    fn done(
        &mut self,
        whole: bool,
        published: PublishedCheckpoint,
        (began, waited): (Instant, Duration),
        observer: &mut dyn Observer,
    ) {
        let PublishedCheckpoint { step, bytes, xxh3, .. } = published;
        self.saved = Some(step);
        if whole {
            self.whole = Some((Base { step, xxh3 }, 0));
        }
        let keep = usize::try_from(self.settings.keep.get()).unwrap_or(usize::MAX);
        // A checkpoint that stays longer than it should is no reason to stop.
        let needs = |step| {
            let averaged = self.average.iter().flat_map(|average| average.steps_before(step)).collect();
            Some(Needs { averaged, ..self.needs.get(&step)?.clone() })
        };
        let prune = || checkpoint::prune(&*self.files, &self.dir, keep, needs);
        if self.processes.is_first()
            && let Err(error) = with_heartbeat(&self.processes, step, prune)
        {
            tracing::warn!("an older checkpoint was not removed: {error}");
        }
        let (seconds, waited_seconds) = (began.elapsed().as_secs_f64(), waited.as_secs_f64());
        observer.observe(Event::Checkpointed { step, bytes, seconds, waited_seconds });
    }

    fn failed(
        &mut self,
        step: u64,
        error: CheckpointError,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        // The rows written since the last full checkpoint are no longer known.
        self.whole = None;
        // Without its folder, a run cannot save later ones either.
        self.folder.check()?;
        match self.settings.on_failure {
            OnFailure::Stop => Err(error.into()),
            OnFailure::Continue => {
                observer.observe(Event::CheckpointFailed { step, error: &error });
                Ok(())
            }
        }
    }
}

impl Drop for Checkpoints {
    /// Waits for the thread that writes: it must not write to a run folder that is no longer locked.
    fn drop(&mut self) {
        if let Some(PendingCheckpoint { task: WriteTask::Thread(thread), .. }) = self.writing.take() {
            // Its panic was reported, and an error ends the training already.
            let _ = thread.join();
        }
    }
}

/// The earlier checkpoints that the checkpoint at a path builds on or was compared with; `None` if that is unknown.
fn needs_of(files: &Arc<dyn Files>, path: &Path) -> Option<Needs> {
    match Checkpoint::open(files, path) {
        Ok(checkpoint) => Some(Needs {
            base: checkpoint.base().map(|base| base.manifest().train.step),
            best: checkpoint.manifest().train.best.map(|best| best.step),
            averaged: Vec::new(),
        }),
        // A damaged checkpoint cannot be read.
        Err(error) => error.is_damage().then(Needs::default),
    }
}

/// The captured state of the ranks here.
enum Capture {
    Copied(Vec<RankCopy>),
    /// Already written; into this draft if there is only one process.
    Written(Option<Draft>, Result<Vec<ShardFiles>, CheckpointError>),
}
