//! When a training saves checkpoints, and how it goes on meanwhile.
//!
//! Between two steps the state is copied aside, where the host's memory holds it, and written by threads of its own
//! while training goes on. Where it does not, training waits until it is written. One checkpoint is written at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rankine_embedding::Topology;
use rankine_embedding::rows::{Choice, Snapshot};
use rankine_reader::Dataset;

use super::learner::Learner;
use super::{Event, Observer, TrainError, identity};
use crate::checkpoint::{
    self, Base, Checkpoint, CheckpointError, DenseState, Draft, Files, Manifest, OrderState, Published,
    RankState, RuleState, ShardFiles, TableState, TrainState, write_shard,
};
use crate::job::{self, Job, OnFailure};
use crate::model::{ModelSpec, TrainingRules};
use crate::system;

/// The share of the free memory that copies may take: training and the page cache want some, too.
const MEMORY_SHARE: f64 = 0.8;
/// The files beside the shards.
const JOB_NAME: &str = "job.toml";
const TUNING_NAME: &str = "tuning.json";
const MACHINE_NAME: &str = "machine.toml";

/// What was found out by timing, and decides how results are rounded: a training that goes on takes it as it was.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorded {
    /// The algorithms of products.
    pub(super) tuning: Option<String>,
    /// What GPUs were taken to do in a second when tables were placed.
    pub(super) machine: Option<String>,
}

impl Recorded {
    /// What a checkpoint has of it; nothing where it was saved by other ranks, whose products and placements are others.
    pub(super) fn of(checkpoint: &Checkpoint, topology: Topology) -> Result<Self, CheckpointError> {
        let manifest = checkpoint.manifest();
        if (manifest.ranks, manifest.nodes) != (topology.ranks(), topology.nodes()) {
            return Ok(Self::default());
        }
        Ok(Self { tuning: checkpoint.text(TUNING_NAME)?, machine: checkpoint.text(MACHINE_NAME)? })
    }
}

/// The checkpoints of a run.
pub(super) struct Checkpoints {
    settings: job::Checkpoint,
    files: Arc<dyn Files>,
    dir: PathBuf,
    /// What all manifests of the run have in common.
    frame: Manifest,
    recorded: Recorded,
    job: String,
    /// The step of the one that was begun last, and when that was.
    last_step: u64,
    last_began: Instant,
    writing: Option<Writing>,
    /// Memory of copies that are written.
    spare: Vec<Snapshot>,
    /// The last whole one, and how many additions there are to it.
    whole: Option<(Base, u64)>,
    /// Which one each is an addition to.
    bases: BTreeMap<u64, u64>,
}

/// A checkpoint that is being written.
struct Writing {
    whole: bool,
    began: Instant,
    thread: JoinHandle<(Result<Published, CheckpointError>, Vec<Snapshot>)>,
}

/// What one rank has, copied aside.
type Copied = (DenseState, Snapshot);

impl Checkpoints {
    /// Of a run that begins, or goes on after a checkpoint of some step.
    pub(super) fn new(
        (job, dataset, topology): (&Job, &Dataset, Topology),
        (spec, rules): (&ModelSpec, &TrainingRules),
        recorded: Recorded,
        (files, dir): (Arc<dyn Files>, PathBuf),
        step: u64,
    ) -> Result<Self, TrainError> {
        let frame = Manifest {
            version: env!("CARGO_PKG_VERSION").into(),
            train: TrainState::default(),
            seed: job.seed,
            order: OrderState {
                shuffle: job.train.shuffle,
                window_blocks: job.train.shuffle_window_blocks.get(),
            },
            data: identity::of(dataset)?,
            spec: spec.clone(),
            dense: RuleState::of(&rules.dense),
            tables: TableState::all(spec, rules),
            device: None,
            ranks: topology.ranks(),
            nodes: topology.nodes(),
            base: None,
            shards: Vec::new(),
            files: Vec::new(),
        };
        let mut bases = BTreeMap::new();
        for (step, path) in checkpoint::list(&*files, &dir)? {
            // One that cannot be opened is an addition to nothing.
            if let Ok(opened) = Checkpoint::open(&files, &path) {
                bases.extend(opened.base().map(|base| (step, base.manifest().train.step)));
            }
        }
        Ok(Self {
            settings: job.checkpoint.clone(),
            files,
            dir,
            frame,
            recorded,
            job: job.to_toml(),
            last_step: step,
            last_began: Instant::now(),
            writing: None,
            spare: Vec::new(),
            whole: None,
            bases,
        })
    }

    /// The step of the last checkpoint that was begun.
    pub(super) fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Whether one is to be begun now that a step is done. By steps it is at those very steps, though training may have
    /// to wait for the one before; by time it waits until that one is there.
    pub(super) fn is_due(&self, step: u64) -> bool {
        let settings = &self.settings;
        let by_time = settings.every_minutes.is_some_and(|minutes| {
            self.last_began.elapsed() >= Duration::from_secs_f64(60.0 * minutes.get())
        });
        let by_steps = settings.every_steps.is_some_and(|every| step.is_multiple_of(every.get()));
        by_steps || by_time && self.writing.is_none()
    }

    /// Takes the state of a step that is done, and begins to write it; where memory does not hold a copy, it is written
    /// when this returns. `metrics` is made durable before the checkpoint is one.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] where that is to end the training.
    pub(super) fn begin(
        &mut self,
        learner: &mut Learner,
        train: TrainState,
        metrics: File,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.finish(observer)?;
        let (step, began) = (train.step, Instant::now());
        (self.last_step, self.last_began) = (step, began);
        let begun = self.take(learner, train, metrics, observer);
        match begun {
            Ok(Taken::Writing { whole, thread }) => self.writing = Some(Writing { whole, began, thread }),
            Ok(Taken::Written { whole, published }) => self.done(whole, published, began, observer),
            Err(error) => self.failed(step, error, observer)?,
        }
        Ok(())
    }

    fn take(
        &mut self,
        learner: &mut Learner,
        train: TrainState,
        metrics: File,
        observer: &mut dyn Observer,
    ) -> Result<Taken, CheckpointError> {
        let step = train.step;
        let base = self.base();
        let chosen = base.is_some();
        let whole = !chosen;
        let bytes = learner
            .on_each_rank(move |_, state| Ok(Snapshot::bytes(state.rows, &choose(&state, chosen)?)))?;
        let bytes: u64 = bytes.iter().sum();
        let manifest = Manifest { train, device: learner.device_state()?, base, ..self.frame.clone() };
        let (files, dir) = (Arc::clone(&self.files), self.dir.clone());
        let beside = Beside { job: self.job.clone(), recorded: self.recorded.clone(), metrics };
        if !self.has_room(bytes) {
            observer.observe(Event::CheckpointPauses { step, bytes });
            self.spare.clear();
            let draft = Draft::begin(files, &dir, step)?;
            let (manifest, at, files) =
                (Arc::new(manifest), draft.path().to_owned(), Arc::clone(&self.files));
            let of_ranks = Arc::clone(&manifest);
            let written = learner.on_each_rank(move |rank, state| {
                let choices = choose(&state, chosen)?;
                write_shard(&*files, &at, rank, &of_ranks, (&state, &choices))
            });
            let published = publish(draft, &manifest, written, beside)?;
            if whole && self.settings.incremental {
                learner.begin_tracking()?;
            }
            return Ok(Taken::Written { whole, published });
        }
        let spare =
            Arc::new(Mutex::new(std::mem::take(&mut self.spare).into_iter().map(Some).collect::<Vec<_>>()));
        let copies = learner.on_each_rank(move |rank, state| {
            let older =
                spare.lock().unwrap_or_else(PoisonError::into_inner).get_mut(rank).and_then(Option::take);
            let snapshot = Snapshot::of(state.rows, &choose(&state, chosen)?, older)?;
            Ok((state.dense, snapshot))
        })?;
        if whole && self.settings.incremental {
            learner.begin_tracking()?;
        }
        let thread = thread::Builder::new().name("rankine-checkpoint".into());
        let thread = thread.spawn(move || write(files, &dir, &manifest, copies, beside));
        let thread =
            thread.map_err(|error| CheckpointError::State(format!("cannot start a thread: {error}")))?;
        Ok(Taken::Writing { whole, thread })
    }

    /// What the next checkpoint is to be an addition to, if it is to be one.
    fn base(&mut self) -> Option<Base> {
        let (base, additions) = self.whole.as_mut().filter(|_| self.settings.incremental)?;
        if *additions + 1 >= self.settings.full_every.get() {
            return None;
        }
        *additions += 1;
        Some(base.clone())
    }

    /// Whether memory holds a copy of so many bytes. What earlier copies have is used again.
    fn has_room(&self, bytes: u64) -> bool {
        let usable = system::memory().map(|memory| memory.usable_bytes());
        let spare: u64 = self.spare.iter().map(Snapshot::room).sum();
        usable.is_none_or(|usable| bytes.saturating_sub(spare) as f64 <= usable as f64 * MEMORY_SHARE)
    }

    /// Takes note of a checkpoint that has been written since the last call.
    ///
    /// # Errors
    /// As [`Checkpoints::begin`].
    pub(super) fn poll(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        match &self.writing {
            Some(writing) if writing.thread.is_finished() => self.finish(observer),
            _ => Ok(()),
        }
    }

    /// Waits for the checkpoint that is being written.
    ///
    /// # Errors
    /// As [`Checkpoints::begin`].
    pub(super) fn finish(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(Writing { whole, began, thread }) = self.writing.take() else { return Ok(()) };
        let (written, spare) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.spare = spare;
        match written {
            Ok(published) => self.done(whole, published, began, observer),
            Err(error) => self.failed(self.last_step, error, observer)?,
        }
        Ok(())
    }

    fn done(&mut self, whole: bool, published: Published, began: Instant, observer: &mut dyn Observer) {
        let Published { step, bytes, xxh3, base, .. } = published;
        if whole {
            self.whole = Some((Base { step, xxh3 }, 0));
        }
        self.bases.extend(base.map(|base| (step, base)));
        let keep = usize::try_from(self.settings.keep.get()).unwrap_or(usize::MAX);
        // What stays longer than it should is no reason to stop.
        if let Err(error) =
            checkpoint::prune(&*self.files, &self.dir, keep, |step| self.bases.get(&step).copied())
        {
            tracing::warn!("an older checkpoint was not removed: {error}");
        }
        observer.observe(Event::Checkpointed { step, bytes, seconds: began.elapsed().as_secs_f64() });
    }

    fn failed(
        &mut self,
        step: u64,
        error: CheckpointError,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        // Which rows have been written since the last whole one that is there is not known any more.
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

/// What has become of a checkpoint that was begun.
enum Taken {
    Writing { whole: bool, thread: JoinHandle<(Result<Published, CheckpointError>, Vec<Snapshot>)> },
    Written { whole: bool, published: Published },
}

/// What is written beside the shards.
struct Beside {
    job: String,
    recorded: Recorded,
    metrics: File,
}

/// The rows that are to be saved of a rank: all, or those that were touched.
fn choose(state: &RankState<'_>, touched: bool) -> Result<Vec<Choice>, CheckpointError> {
    if !touched {
        return Ok(Choice::all(state.rows));
    }
    let chosen = Choice::touched(state.rows)?;
    chosen.ok_or_else(|| CheckpointError::State("nobody kept book of the rows that were updated".into()))
}

/// Writes what was copied, a thread a rank; returns the copies, whose memory is used again.
fn write(
    files: Arc<dyn Files>,
    dir: &Path,
    manifest: &Manifest,
    copies: Vec<Copied>,
    beside: Beside,
) -> (Result<Published, CheckpointError>, Vec<Snapshot>) {
    let published = Draft::begin(Arc::clone(&files), dir, manifest.train.step).and_then(|draft| {
        let (files, at) = (&*files, draft.path().to_owned());
        let written = thread::scope(|scope| {
            let shards = copies.iter().enumerate().map(|(rank, (dense, rows))| {
                let at = &at;
                scope.spawn(move || {
                    let state = RankState { dense: dense.clone(), rows };
                    write_shard(files, at, rank, manifest, (&state, &Choice::all(rows)))
                })
            });
            let shards: Vec<_> = shards.collect();
            let join = |shard: thread::ScopedJoinHandle<'_, _>| {
                shard.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            shards.into_iter().map(join).collect()
        });
        publish(draft, manifest, written, beside)
    });
    (published, copies.into_iter().map(|(_, snapshot)| snapshot).collect())
}

/// Makes a draft a checkpoint, or removes it.
fn publish(
    draft: Draft,
    manifest: &Manifest,
    written: Result<Vec<ShardFiles>, CheckpointError>,
    Beside { job, recorded, metrics }: Beside,
) -> Result<Published, CheckpointError> {
    let shards = match written {
        Ok(shards) => shards,
        Err(error) => {
            draft.abandon();
            return Err(error);
        }
    };
    // What a run that goes on from here keeps of the log is what is there now.
    metrics.sync_data().map_err(|source| CheckpointError::Io {
        doing: "make durable",
        path: "metrics.jsonl".into(),
        source,
    })?;
    let named = [(JOB_NAME, Some(job)), (TUNING_NAME, recorded.tuning), (MACHINE_NAME, recorded.machine)];
    let beside: Vec<_> = named.iter().filter_map(|(name, text)| Some((*name, text.as_deref()?))).collect();
    draft.publish(manifest.clone(), shards, &beside)
}
