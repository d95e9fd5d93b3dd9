//! Writes the captured state of ranks, and publishes it as a checkpoint.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rankine_checkpoint::{
    CheckpointError, Chosen, DenseState, Draft, Files, Manifest, PublishedCheckpoint, RankState, ShardFiles,
    TableKeys, write_shard,
};
use rankine_embedding::rows::{RowSelection, Snapshot};
use rankine_reader::Columns;
use rankine_topology::Rank;

use crate::training::backend::Measurements;

/// The writing of this process's shards.
pub(super) enum WriteTask {
    Thread(JoinHandle<WriteOutcome>),
    Done(WriteOutcome),
}

impl WriteTask {
    /// Runs on a thread of its own.
    pub(super) fn spawn(run: impl FnOnce() -> WriteOutcome + Send + 'static) -> Self {
        let refused = |error| CheckpointError::State(format!("cannot start a thread: {error}"));
        let thread = thread::Builder::new().name("rankine-checkpoint".into()).spawn(run);
        thread.map_or_else(|error| Self::failed(refused(error)), Self::Thread)
    }

    pub(super) fn failed(error: CheckpointError) -> Self {
        Self::Done((Err(error), Vec::new()))
    }
}

/// The result of writing, and the memory of the copies.
pub(super) type WriteOutcome = (Result<WriteOutput, CheckpointError>, Vec<Snapshot>);

/// What was written.
pub(super) enum WriteOutput {
    /// The shards of the ranks here; other processes have others.
    Shards(Vec<ShardFiles>),
    /// The complete checkpoint.
    Checkpoint(PublishedCheckpoint),
}

/// The state of one rank, copied.
pub(super) struct RankCopy {
    pub(super) rank: Rank,
    pub(super) dense: Vec<DenseState>,
    pub(super) rows: Snapshot,
    pub(super) keys: Arc<Vec<TableKeys>>,
}

/// The files beside the shards.
pub(super) struct SideFiles {
    pub(super) job: String,
    pub(super) columns: String,
    pub(super) measurements: Measurements,
    /// Of the first process.
    pub(super) metrics: Option<File>,
}

/// Writes a checkpoint whose ranks are all in this process; returns the copies, so that their memory is used again.
pub(super) fn write_alone(
    files: Arc<dyn Files>,
    dir: &Path,
    manifest: &Manifest,
    copies: Vec<RankCopy>,
    side_files: SideFiles,
) -> WriteOutcome {
    let published = Draft::begin(Arc::clone(&files), dir, manifest.train.step).and_then(|draft| {
        let written = write_copies(&*files, draft.path(), manifest, &copies);
        publish(draft, manifest.clone(), written, side_files)
    });
    (published.map(WriteOutput::Checkpoint), copies.into_iter().map(|copy| copy.rows).collect())
}

/// Writes the copies, one thread per rank.
pub(super) fn write_copies(
    files: &dyn Files,
    at: &Path,
    manifest: &Manifest,
    copies: &[RankCopy],
) -> Result<Vec<ShardFiles>, CheckpointError> {
    thread::scope(|scope| {
        let shards = copies.iter().map(|RankCopy { rank, dense, rows, keys }| {
            scope.spawn(move || {
                let state = RankState { dense: dense.clone(), rows, memberships: Vec::new() };
                let chosen = Chosen { rows: RowSelection::all(rows), keys: Arc::clone(keys) };
                write_shard(files, at, *rank, manifest, (&state, &chosen))
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
pub(super) fn publish(
    draft: Draft,
    manifest: Manifest,
    written: Result<Vec<ShardFiles>, CheckpointError>,
    SideFiles { job, columns, measurements, metrics }: SideFiles,
) -> Result<PublishedCheckpoint, CheckpointError> {
    // A run that resumes from here keeps as much of the log as there is now.
    let synced = metrics.map_or(Ok(()), |metrics| metrics.sync_data());
    let synced =
        synced.map_err(|source| CheckpointError::Io { doing: "sync", path: "metrics.jsonl".into(), source });
    let shards = match written.and_then(|shards| synced.map(|()| shards)) {
        Ok(shards) => shards,
        Err(error) => {
            draft.abandon();
            return Err(error);
        }
    };
    let all = [("job.toml", Some(job)), (Columns::NAME, Some(columns))].into_iter();
    let named: Vec<_> = all.chain(measurements.files()).collect();
    let side_files: Vec<_> =
        named.iter().filter_map(|(name, text)| Some((*name, text.as_deref()?))).collect();
    draft.publish(manifest, shards, &side_files)
}
