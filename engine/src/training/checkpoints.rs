//! When a training saves checkpoints, and how it continues meanwhile.
//!
//! Between two steps the state is copied to spare host memory, and threads of their own write the copy while training
//! continues. Without enough memory for a copy, training waits until the checkpoint is written. One checkpoint is
//! written at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rankine_embedding::Topology;
use rankine_embedding::rows::{RowSelection, Snapshot};
use rankine_reader::Dataset;

use super::alive::alive;
use super::backend::Backend;
use super::contents::Identity;
use super::copies::CopyMemory;
use super::identity::Trained;
use super::recorded::Recorded;
use super::{Event, Observer, TrainError};
use crate::checkpoint::{
    self, Base, Checkpoint, CheckpointError, DenseState, Draft, Files, Manifest, Needs, Published, RankState,
    ShardFiles, TrainState, write_shard,
};
use crate::job::{self, Job, OnFailure};
use crate::launch::ProcessGroup;
use crate::saved::Columns;

/// The files beside the shards.
const JOB_NAME: &str = "job.toml";
const COLUMNS_NAME: &str = Columns::NAME;

/// The checkpoints of a run.
pub(super) struct Checkpoints {
    settings: job::Checkpoint,
    files: Arc<dyn Files>,
    dir: PathBuf,
    /// What all manifests of the run have in common, except for the contents of raw files, which become known later.
    frame: Manifest,
    identity: Identity,
    recorded: Recorded,
    job: String,
    /// The columns of the dataset, as text: with them, the model of a checkpoint can score rows.
    columns: String,
    /// The step of the checkpoint that was started last, and when that was.
    last_step: u64,
    last_began: Instant,
    processes: ProcessGroup,
    /// The ranks of this process.
    first_rank: usize,
    writing: Option<Writing>,
    /// Memory for the next copies.
    memory: CopyMemory,
    /// The last full checkpoint, and the number of incremental ones that build on it.
    whole: Option<(Base, u64)>,
    /// The earlier checkpoints that each existing checkpoint needs.
    needs: BTreeMap<u64, Needs>,
}

/// A checkpoint that is being written.
struct Writing {
    step: u64,
    whole: bool,
    began: Instant,
    /// How long training waited for the copy.
    waited: Duration,
    work: Work,
    /// What remains to be done once all processes have written.
    rest: Option<Rest>,
}

/// The writing of this process's shards.
enum Work {
    Thread(JoinHandle<Outcome>),
    Done(Outcome),
}

impl Work {
    /// Runs on a thread of its own.
    fn beside(run: impl FnOnce() -> Outcome + Send + 'static) -> Self {
        let refused = |error| CheckpointError::State(format!("cannot start a thread: {error}"));
        let thread = thread::Builder::new().name("rankine-checkpoint".into()).spawn(run);
        thread.map_or_else(|error| Self::failed(refused(error)), Self::Thread)
    }

    fn failed(error: CheckpointError) -> Self {
        Self::Done((Err(error), Vec::new()))
    }
}

/// The result of writing, and the memory of the copies.
type Outcome = (Result<Written, CheckpointError>, Vec<Snapshot>);

/// What was written.
enum Written {
    /// The shards of the ranks here; other processes have others.
    Shards(Vec<ShardFiles>),
    /// The complete checkpoint.
    Checkpoint(Published),
}

/// What turns shards into a checkpoint.
struct Rest {
    /// Of the first process.
    draft: Option<Draft>,
    manifest: Manifest,
    beside: Beside,
}

/// The state of one rank, copied.
type Copied = (usize, Vec<DenseState>, Snapshot);

impl Checkpoints {
    /// For a run that starts at step 0, or resumes from the checkpoint of a step.
    pub(super) fn new(
        (job, dataset, topology): (&Job, &Dataset, Topology),
        mut identity: Identity,
        recorded: Recorded,
        (files, dir): (Arc<dyn Files>, PathBuf),
        processes: &ProcessGroup,
        step: u64,
    ) -> Result<Self, TrainError> {
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
        let needs = checkpoint::list(&*files, &dir)?.into_iter().map(|(step, path)| {
            let opened = Checkpoint::open(&files, &path);
            let base = |checkpoint: &Checkpoint| checkpoint.base().map(|base| base.manifest().train.step);
            let needs = match opened.as_ref().map(base) {
                Ok(None) => Needs::Itself,
                Ok(Some(base)) => Needs::Base(base),
                // A damaged checkpoint cannot be read.
                Err(error) if error.is_damage() => Needs::Itself,
                Err(_) => Needs::Unknown,
            };
            (step, needs)
        });
        let needs = needs.collect();
        Ok(Self {
            settings: job.checkpoint.clone(),
            files,
            dir,
            frame,
            identity,
            recorded,
            job: job.to_toml(),
            columns: Columns::of(dataset).to_json(),
            last_step: step,
            last_began: Instant::now(),
            processes: processes.clone(),
            first_rank: processes.rank() * topology.ranks() / processes.size(),
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
    pub(super) fn prepare(&mut self, learner: &dyn Backend) -> Result<(), TrainError> {
        if self.settings.every_steps.is_none() && self.settings.every_minutes.is_none() {
            return Ok(());
        }
        let words = learner.on_each_rank(|_, state| {
            let all = RowSelection::all(state.rows);
            Ok(all.iter().map(|choice| choice.words(state.rows)).collect())
        })?;
        self.memory.prepare(words);
        Ok(())
    }

    /// What is trained, as far as it is known now.
    pub(super) fn trained(&mut self) -> &Trained {
        self.identity.known()
    }

    /// The step of the last checkpoint that was started.
    pub(super) fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Whether a checkpoint is due at exactly this step, even if training has to wait for the one before.
    pub(super) fn is_due_by_steps(&self, step: u64) -> bool {
        self.settings.every_steps.is_some_and(|every| step.is_multiple_of(every.get()))
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
            Some(Writing { work: Work::Done(_), .. }) => true,
            Some(Writing { work: Work::Thread(thread), .. }) => thread.is_finished(),
        }
    }

    /// Takes the state of a completed step and starts to write it. Without memory for a copy, it is written when this
    /// returns. The first process makes `metrics` durable before the checkpoint is published. All processes call
    /// this.
    /// call this.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if the failure is to end the training; [`TrainError::Processes`].
    pub(super) fn begin(
        &mut self,
        learner: &mut dyn Backend,
        train: TrainState,
        metrics: Option<File>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.finish(observer)?;
        let (step, began, base) = (train.step, Instant::now(), self.base());
        (self.last_step, self.last_began) = (step, began);
        let whole = base.is_none();
        let (job, columns, recorded) = (self.job.clone(), self.columns.clone(), self.recorded.clone());
        let beside = Beside { job, columns, recorded, metrics };
        let data = self.identity.known().data.clone();
        let manifest = Manifest { train, base, data, device: learner.device_state()?, ..self.frame.clone() };
        let (work, rest) = self.take(learner, manifest, beside, observer)?;
        let waited = began.elapsed();
        self.writing = Some(Writing { step, whole, began, waited, work, rest });
        // A single process reports at once what is already written or has failed: there is nobody to agree with.
        if self.processes.size() == 1 && matches!(&self.writing, Some(Writing { work: Work::Done(_), .. })) {
            self.finish(observer)?;
        }
        Ok(())
    }

    /// The other processes hear of a failure here when they have written.
    fn take(
        &mut self,
        learner: &mut dyn Backend,
        manifest: Manifest,
        beside: Beside,
        observer: &mut dyn Observer,
    ) -> Result<(Work, Option<Rest>), TrainError> {
        let (files, dir, step) = (Arc::clone(&self.files), self.dir.clone(), manifest.train.step);
        let alone = self.processes.size() == 1;
        // Other processes write into the folder that the first one makes.
        let begin = || Draft::begin(Arc::clone(&files), &dir, step);
        let draft = (!alone && self.processes.is_first()).then(begin).transpose();
        if !alone {
            self.processes.wait("the folder of a checkpoint")?;
        }
        let draft = match draft {
            Ok(draft) => draft,
            Err(error) => return Ok((Work::failed(error), Some(Rest { draft: None, manifest, beside }))),
        };
        let processes = self.processes.clone();
        let taken = alive(&processes, step, || self.copy_or_write(learner, &manifest, alone, observer));
        let taken = match taken {
            Ok(Taken::Copied(copies)) if alone => {
                let write = move || write_alone(files, &dir, &manifest, copies, beside);
                return Ok((Work::beside(write), None));
            }
            Ok(Taken::Written(draft, shards)) if alone => {
                let published =
                    draft.map_or_else(begin, Ok).and_then(|draft| publish(draft, manifest, shards, beside));
                return Ok((Work::Done((published.map(Written::Checkpoint), Vec::new())), None));
            }
            taken => taken,
        };
        let work = match taken {
            Ok(Taken::Copied(copies)) => {
                let (manifest, at) = (manifest.clone(), checkpoint::draft_path(&dir, step));
                Work::beside(move || {
                    let written = write_copies(&*files, &at, &manifest, &copies);
                    (written.map(Written::Shards), copies.into_iter().map(|(_, _, rows)| rows).collect())
                })
            }
            Ok(Taken::Written(_, shards)) => Work::Done((shards.map(Written::Shards), Vec::new())),
            Err(error) => Work::failed(error),
        };
        Ok((work, Some(Rest { draft, manifest, beside })))
    }

    /// Copies the state of the ranks here, or writes it if there is no memory for a copy.
    fn copy_or_write(
        &mut self,
        learner: &mut dyn Backend,
        manifest: &Manifest,
        alone: bool,
        observer: &mut dyn Observer,
    ) -> Result<Taken, CheckpointError> {
        let (touched, step) = (manifest.base.is_some(), manifest.train.step);
        let first = self.first_rank;
        let found = learner.on_each_rank(move |_, state| {
            let chosen = choose(&state, touched)?;
            Ok((Snapshot::bytes(state.rows, &chosen), chosen))
        })?;
        let (bytes, chosen): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let (bytes, chosen): (u64, _) = (bytes.iter().sum(), Arc::new(chosen));
        let taken = if self.memory.has_room(bytes) {
            let spare = Arc::new(self.memory.take());
            Taken::Copied(learner.on_each_rank(move |rank, state| {
                let rows = Snapshot::of(state.rows, &chosen[rank - first], spare.of(rank - first))?;
                Ok((rank, state.dense, rows))
            })?)
        } else {
            observer.observe(Event::CheckpointPauses { step, bytes });
            drop(self.memory.take());
            let draft = alone.then(|| Draft::begin(Arc::clone(&self.files), &self.dir, step)).transpose()?;
            let (files, at) = (Arc::clone(&self.files), checkpoint::draft_path(&self.dir, step));
            let manifest = Arc::new(manifest.clone());
            Taken::Written(
                draft,
                learner.on_each_rank(move |rank, state| {
                    write_shard(&*files, &at, rank, &manifest, (&state, &chosen[rank - first]))
                }),
            )
        };
        if !touched && self.settings.incremental {
            learner.begin_tracking()?;
        }
        Ok(taken)
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
        let Some(Writing { step, whole, began, waited, work, rest }) = self.writing.take() else {
            return Ok(());
        };
        let (written, spare) = match work {
            Work::Thread(thread) => {
                let joined = alive(&self.processes, step, || thread.join());
                joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
            Work::Done(outcome) => outcome,
        };
        self.memory.put(spare);
        let published = match (written, rest) {
            (written, Some(rest)) => self.publish_together(written, rest)?,
            (Ok(Written::Checkpoint(published)), None) => Ok(published),
            (Ok(Written::Shards(_)), None) => unreachable!("shards of several processes have a rest"),
            (Err(error), None) => Err(error),
        };
        match published {
            Ok(published) => self.done(whole, published, (began, waited), observer),
            Err(error) => self.failed(step, error, observer)?,
        }
        Ok(())
    }

    /// Sends the indexes of the shards to the first process, which publishes the checkpoint if all have written.
    fn publish_together(
        &self,
        written: Result<Written, CheckpointError>,
        Rest { draft, manifest, beside }: Rest,
    ) -> Result<Result<Published, CheckpointError>, TrainError> {
        type Told<T> = Result<T, String>;
        let (own, error): (Told<Vec<ShardFiles>>, _) = match written {
            Ok(Written::Shards(shards)) => (Ok(shards), None),
            Ok(Written::Checkpoint(_)) => unreachable!("several processes write shards"),
            Err(error) => (Err(error.to_string()), Some(error)),
        };
        let text = serde_json::to_vec(&own).expect("indexes are plain data");
        let all = self.processes.gather("the shards of a checkpoint", &text)?;
        let all = all.iter().map(|text| {
            let shards: Told<Vec<ShardFiles>> =
                serde_json::from_slice(text).unwrap_or_else(|error| Err(error.to_string()));
            shards.map_err(CheckpointError::State)
        });
        let all: Result<Vec<_>, _> = all.collect();
        let published =
            draft.map(|draft| publish(draft, manifest, all.map(|shards| shards.concat()), beside));
        let told: Option<Told<&Published>> =
            published.as_ref().map(|published| published.as_ref().map_err(ToString::to_string));
        let text = serde_json::to_vec(&told).expect("a checkpoint's place is plain data");
        let text = self.processes.of_first("the checkpoint", &text)?;
        let told: Option<Told<Published>> = serde_json::from_slice(&text).unwrap_or(None);
        Ok(match (error, published, told) {
            // The process that failed has the best message.
            (Some(error), ..) | (None, Some(Err(error)), _) => Err(error),
            (None, _, Some(told)) => told.map_err(CheckpointError::State),
            (None, ..) => Err(CheckpointError::State("the first process made no folder for it".into())),
        })
    }

    fn done(
        &mut self,
        whole: bool,
        published: Published,
        (began, waited): (Instant, Duration),
        observer: &mut dyn Observer,
    ) {
        let Published { step, bytes, xxh3, base, .. } = published;
        if whole {
            self.whole = Some((Base { step, xxh3 }, 0));
        }
        self.needs.insert(step, base.map_or(Needs::Itself, Needs::Base));
        let keep = usize::try_from(self.settings.keep.get()).unwrap_or(usize::MAX);
        // A checkpoint that stays longer than it should is no reason to stop.
        let needs = |step| self.needs.get(&step).copied().unwrap_or(Needs::Unknown);
        if self.processes.is_first()
            && let Err(error) = checkpoint::prune(&*self.files, &self.dir, keep, needs)
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
        match self.settings.on_failure {
            OnFailure::Stop => Err(error.into()),
            OnFailure::Continue => {
                observer.observe(Event::CheckpointFailed { step, error: &error });
                Ok(())
            }
        }
    }
}

/// The captured state of the ranks here.
enum Taken {
    Copied(Vec<Copied>),
    /// Already written; into this draft if there is only one process.
    Written(Option<Draft>, Result<Vec<ShardFiles>, CheckpointError>),
}

/// What is written beside the shards.
struct Beside {
    job: String,
    columns: String,
    recorded: Recorded,
    /// Of the first process.
    metrics: Option<File>,
}

/// The rows to save of a rank: all, or those that were touched.
fn choose(state: &RankState<'_>, touched: bool) -> Result<Vec<RowSelection>, CheckpointError> {
    if !touched {
        return Ok(RowSelection::all(state.rows));
    }
    let chosen = RowSelection::touched(state.rows)?;
    chosen.ok_or_else(|| CheckpointError::State("nobody kept book of the rows that were updated".into()))
}

/// Writes a checkpoint whose ranks are all in this process; returns the copies, so that their memory is used again.
fn write_alone(
    files: Arc<dyn Files>,
    dir: &Path,
    manifest: &Manifest,
    copies: Vec<Copied>,
    beside: Beside,
) -> Outcome {
    let published = Draft::begin(Arc::clone(&files), dir, manifest.train.step).and_then(|draft| {
        let written = write_copies(&*files, draft.path(), manifest, &copies);
        publish(draft, manifest.clone(), written, beside)
    });
    (published.map(Written::Checkpoint), copies.into_iter().map(|(_, _, rows)| rows).collect())
}

/// Writes the copies, one thread per rank.
fn write_copies(
    files: &dyn Files,
    at: &Path,
    manifest: &Manifest,
    copies: &[Copied],
) -> Result<Vec<ShardFiles>, CheckpointError> {
    thread::scope(|scope| {
        let shards = copies.iter().map(|(rank, dense, rows)| {
            scope.spawn(move || {
                let state = RankState { dense: dense.clone(), rows };
                write_shard(files, at, *rank, manifest, (&state, &RowSelection::all(rows)))
            })
        });
        let shards: Vec<_> = shards.collect();
        let join = |shard: thread::ScopedJoinHandle<'_, _>| {
            shard.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        shards.into_iter().map(join).collect()
    })
}

/// Publishes a draft, or removes it.
fn publish(
    draft: Draft,
    manifest: Manifest,
    written: Result<Vec<ShardFiles>, CheckpointError>,
    Beside { job, columns, recorded, metrics }: Beside,
) -> Result<Published, CheckpointError> {
    // A run that resumes from here keeps as much of the log as there is now.
    let synced = metrics.map_or(Ok(()), |metrics| metrics.sync_data());
    let synced = synced.map_err(|source| CheckpointError::Io {
        doing: "make durable",
        path: "metrics.jsonl".into(),
        source,
    });
    let shards = match written.and_then(|shards| synced.map(|()| shards)) {
        Ok(shards) => shards,
        Err(error) => {
            draft.abandon();
            return Err(error);
        }
    };
    let all = [(JOB_NAME, Some(job)), (COLUMNS_NAME, Some(columns))].into_iter();
    let named: Vec<_> = all.chain(recorded.files()).collect();
    let beside: Vec<_> = named.iter().filter_map(|(name, text)| Some((*name, text.as_deref()?))).collect();
    draft.publish(manifest, shards, &beside)
}
