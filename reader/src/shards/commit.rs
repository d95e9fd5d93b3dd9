//! Committing: shards become the samples of a collection, all at once.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::publish::{Lock, create_folders, replace_file_under};
use rankine_base::url::refuse;

use crate::dataset::{
    COLLECTION_NAME, Collection, Dataset, Folders, MANIFEST_NAME, Shard, open_folders, statistics_name,
};
use crate::merge::together;
use crate::statistics;
use crate::store;
use crate::write::manifest_entry;

/// How long a commit waits for another one, which takes as long as reading the statistics of all shards.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// What a commit does with a collection that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitMode {
    /// It must not exist, or list these shards.
    New,
    /// Its shards come first. Those that it lists already are not added again.
    Append,
    /// Its shards are no longer listed.
    Overwrite,
}

/// Lists shards, datasets or collections, in this order, as the samples of the collection in a folder. Readers find
/// either the old collection or the new one. A commit that is repeated changes nothing.
///
/// # Errors
/// As [`crate::merge::merge`]; [`Error::Exists`] if the folder has a dataset, or a collection and `mode` is
/// [`CommitMode::New`]; [`Error::Locked`] if another process commits to it for a minute.
pub fn commit<P: AsRef<Path>>(shards: &[P], dir: &Path, mode: CommitMode) -> Result<Dataset> {
    refuse(dir, "a new collection")?;
    create_folders(dir)?;
    let lock = lock(dir)?;
    let target = std::path::absolute(dir).context("find", dir)?;
    if store::exists(&dir.join(MANIFEST_NAME))? {
        let why = "is a dataset, and no collection can be in its folder: choose another folder".into();
        return Err(Error::Exists { path: dir.to_owned(), why });
    }
    let old = match store::exists(&dir.join(COLLECTION_NAME))? {
        true => open_folders(&target)?.into_shards(),
        false => Vec::new(),
    };
    let shards: Vec<_> = shards.iter().map(AsRef::as_ref).collect();
    let folders = match mode {
        CommitMode::Append if !old.is_empty() => appended(&target, &old, &shards)?,
        CommitMode::Overwrite | CommitMode::Append | CommitMode::New => together(&shards)?,
    };
    if is_same(&old, folders.shards()) {
        return Dataset::open(dir);
    }
    if mode == CommitMode::New && !old.is_empty() {
        let why =
            "already has a collection of other shards: append to it, overwrite it, or choose another folder";
        return Err(Error::Exists { path: dir.to_owned(), why: why.into() });
    }
    let bytes = statistics::to_bytes(&folders.statistics()?);
    let entry = manifest_entry(statistics_name(&bytes), &bytes);
    // The file of the old collection stays for its readers.
    let path = dir.join(&entry.name);
    create_folders(path.parent().expect("it is below the folder"))?;
    replace_file_under(&lock, &path, &bytes)?;
    let collection = Collection::of(&folders, &target, entry)?;
    replace_file_under(&lock, &dir.join(COLLECTION_NAME), collection.to_json().as_bytes())?;
    Dataset::open(dir)
}

/// Locks the folder of a collection.
pub(super) fn lock(dir: &Path) -> Result<Lock> {
    let began = Instant::now();
    loop {
        match Lock::within(dir) {
            Err(Error::Locked { lock: None, .. }) if began.elapsed() < PATIENCE => thread::sleep(PAUSE),
            locked => return locked,
        }
    }
}

/// Opens a collection with further shards after its own.
fn appended(dir: &Path, old: &[Shard], shards: &[&Path]) -> Result<Folders> {
    let mut all = vec![dir.to_owned()];
    for shard in shards {
        for shard in open_folders(shard)?.into_shards() {
            let same = |old: &&Shard| is_same_shard(old, &shard);
            if old.iter().find(same).is_none() {
                all.push(shard.dir);
            }
        }
    }
    together(&all)
}

fn is_same(old: &[Shard], new: &[Shard]) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| is_same_shard(old, new))
}

/// Returns whether two shards are one folder with the same content.
fn is_same_shard(one: &Shard, other: &Shard) -> bool {
    let place = |shard: &Shard| std::fs::canonicalize(&shard.dir).unwrap_or_else(|_| shard.dir.clone());
    one.xxh3 == other.xxh3 && place(one) == place(other)
}
