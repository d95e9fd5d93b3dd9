//! What killed, repeated and failed work left in the folder of a collection.

use std::collections::HashSet;
use std::fs::{self, DirEntry, Metadata};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::publish::Lock;
use rankine_base::url::refuse;

use super::commit::lock;
use super::{FOLDER, is_shard_name};
use crate::dataset::{COLLECTION_NAME, MANIFEST_NAME, STATISTICS_FOLDER, open_folders};
use crate::store;

/// A file or folder that no collection lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlisted {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// The time since it was last written to.
    pub age: Duration,
}

/// Lists what `dir`, the folder of a collection, has of shards and unfinished shards that neither this collection nor
/// the `others` list, and of statistics of earlier commits, if nothing was written to it for `age_min`: work that runs
/// has shards that are not listed yet.
///
/// # Errors
/// [`Error::Unsuitable`] if the folder has no shards; as [`crate::Dataset::open`] for a collection, and
/// [`Error::Io`].
pub fn unlisted<P: AsRef<Path>>(dir: &Path, others: &[P], age_min: Duration) -> Result<Vec<Unlisted>> {
    find(dir, others, age_min).map(|(found, _)| found)
}

/// Removes what [`unlisted`] returns, and returns it. No commit to the collection runs meanwhile.
///
/// # Errors
/// As [`unlisted`]; [`Error::Locked`] if a process commits for a minute.
pub fn remove<P: AsRef<Path>>(dir: &Path, others: &[P], age_min: Duration) -> Result<Vec<Unlisted>> {
    let (found, _lock) = find(dir, others, age_min)?;
    for Unlisted { path, .. } in &found {
        let is_dir = fs::symlink_metadata(path).context("open", path)?.is_dir();
        if !is_dir {
            fs::remove_file(path).context("remove", path)?;
            continue;
        }
        // Nobody may take what is left of it for a dataset.
        let manifest = path.join(MANIFEST_NAME);
        match fs::remove_file(&manifest) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context("remove", &manifest);
            }
            _ => fs::remove_dir_all(path).context("remove", path)?,
        }
    }
    Ok(found)
}

fn find<P: AsRef<Path>>(dir: &Path, others: &[P], age_min: Duration) -> Result<(Vec<Unlisted>, Lock)> {
    refuse(dir, "a folder to search")?;
    let shards = dir.join(FOLDER);
    if !shards.is_dir() {
        let what = format!(
            "{} has no folder {FOLDER}: name the folder of a collection that was committed, or that shards were \
             encoded for",
            dir.display()
        );
        return Err(Error::unsuitable(dir, what));
    }
    let lock = lock(dir)?;
    let mut listed = HashSet::new();
    if store::exists(&dir.join(COLLECTION_NAME))? {
        listed.extend(folders_of(dir)?);
    }
    for other in others {
        listed.extend(folders_of(other.as_ref())?);
    }
    let mut found = Vec::new();
    for (folder, is_ours) in
        [(shards, is_of_encoding as fn(&str) -> bool), (dir.join(STATISTICS_FOLDER), |_| true)]
    {
        for entry in entries(&folder)? {
            let path = entry.path();
            let name = entry.file_name();
            let is_listed = fs::canonicalize(&path).is_ok_and(|path| listed.contains(&path));
            if is_listed || !name.to_str().is_some_and(is_ours) {
                continue;
            }
            // Whoever writes it may rename it meanwhile.
            let Some((bytes, written)) = size_and_time(&path)? else { continue };
            let age = SystemTime::now().duration_since(written).unwrap_or_default();
            if age >= age_min {
                found.push(Unlisted { path, bytes, age });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((found, lock))
}

/// Returns the folders that a dataset or a collection consists of, with the folder of its statistics.
fn folders_of(dir: &Path) -> Result<Vec<PathBuf>> {
    let folders = open_folders(dir)?;
    let shards = folders.shards().iter().map(|shard| shard.dir.as_path());
    let all = shards.chain([folders.statistics_folder()]);
    all.map(|folder| fs::canonicalize(folder).context("find", folder)).collect()
}

/// Returns whether encoding gives something this name: a shard, an unfinished one or its lock.
fn is_of_encoding(name: &str) -> bool {
    let name = name.strip_prefix('.').unwrap_or(name);
    let shard = name.split_once(".lock").map_or(name, |(shard, _)| shard);
    is_shard_name(shard.strip_suffix(".partial").unwrap_or(shard))
}

fn entries(dir: &Path) -> Result<Vec<DirEntry>> {
    match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries.and_then(Iterator::collect).context("read", dir),
    }
}

/// Returns the bytes of a file or folder, and when it was last written to; `None` if it is gone.
fn size_and_time(path: &Path) -> Result<Option<(u64, SystemTime)>> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        metadata => metadata.context("open", path)?,
    };
    let written = Metadata::modified(&metadata).context("open", path)?;
    if !metadata.is_dir() {
        return Ok(Some((metadata.len(), written)));
    }
    let (mut bytes, mut latest) = (0, written);
    for entry in entries(path)? {
        if let Some((own, written)) = size_and_time(&entry.path())? {
            (bytes, latest) = (bytes + own, latest.max(written));
        }
    }
    Ok(Some((bytes, latest)))
}
