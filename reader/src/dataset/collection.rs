//! Collections: datasets that consist of other datasets, their shards.
//!
//! `collection.json` lists the shards with the checksums of their manifests, and is written last. No sample is copied:
//! a collection's folder holds that file and the statistics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use rankine_base::error::{Error, IoContext, Malformed, Result};
use rankine_base::files::check_folder;
use rankine_base::sealed::{self, Checksum};
use rankine_base::url::{ObjectUrl, is_url, without_file_scheme};
use serde::{Deserialize, Serialize};

use super::fit::{Fit, is_fit};
use super::folder::{Folders, Shard};
use super::{FileManifest, MANIFEST_NAME, is_collection, is_dataset};
use crate::part::Part;
use crate::schema::{Hotness, Schema, VocabularyKind};
use crate::{statistics, store};

/// The file that makes a folder a collection.
pub const COLLECTION_NAME: &str = "collection.json";
const KIND: &str = "rankine collection";
/// The format version of collections.
const FORMAT: u32 = 1;
/// The folder of a collection that has the statistics of each of its commits, so that a new one does not take them away
/// from readers of the old one.
pub(crate) const STATISTICS_FOLDER: &str = "statistics";
/// More shards than anybody has: a limit on what a small file can request.
const SHARDS_MAX: usize = 1 << 16;

/// The contents of `collection.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Collection {
    /// The number of the shard whose vocabularies hold the categories of all others.
    reference: usize,
    /// In the order of their samples.
    shards: Vec<ShardEntry>,
    /// The statistics of all shards, in the collection's folder, or below [`STATISTICS_FOLDER`].
    statistics: FileManifest,
}

/// A shard of a collection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShardEntry {
    /// Its folder: below the folder of the collection; an url, of the same bucket if the collection is at an url; or,
    /// if the collection is not, an absolute path.
    path: String,
    /// The checksum of its `dataset.json`.
    dataset_xxh3: Checksum,
    /// Samples of each part.
    samples: BTreeMap<Part, u64>,
}

/// Opens a folder that holds a dataset or a collection.
///
/// # Errors
/// As [`super::Dataset::open`].
pub(crate) fn open_folders(dir: &Path) -> Result<Folders> {
    let dir = &without_file_scheme(dir);
    if is_url(dir) {
        return open_objects(dir);
    }
    match (is_dataset(dir), is_collection(dir)) {
        (true, _) => Shard::open(dir).map(Folders::of_one),
        (false, true) => open(dir),
        (false, false) => Err(no_dataset(dir)),
    }
}

/// Opens the dataset or the collection at an url, with as few requests as possible.
fn open_objects(dir: &Path) -> Result<Folders> {
    match Shard::open(dir) {
        Ok(shard) => return Ok(Folders::of_one(shard)),
        Err(error) if store::is_missing(&error) => {}
        Err(error) => return Err(error),
    }
    match open(dir) {
        // The missing object may be one of a shard.
        Err(error @ Error::Io { .. }) if store::is_missing(&error) && !is_collection(dir) => {}
        opened => return opened,
    }
    if Fit::exists(dir) {
        return Err(is_fit(dir));
    }
    let url = dir.display();
    let what = format!(
        "no dataset at {url}: there is neither {url}/{MANIFEST_NAME} nor {url}/{COLLECTION_NAME}; check bucket and \
         path, and that all files of the dataset were copied"
    );
    Err(Error::unsuitable(dir, what))
}

/// Says why a folder cannot be opened.
fn no_dataset(dir: &Path) -> Error {
    if let Err(error) = check_folder(dir, "a dataset") {
        return error;
    }
    if Fit::exists(dir) {
        return is_fit(dir);
    }
    let partial = dir.with_added_extension("partial");
    // A path without a file name, such as `.`, gets no extension.
    let why = if partial != dir && partial.exists() {
        "a conversion to it has not finished or was interrupted; run it again"
    } else if dir.exists() {
        "the folder exists but has no dataset.json; name a folder that `rankine convert` or `rankine generate` \
         wrote"
    } else {
        "the folder does not exist; create it with `rankine convert` or `rankine generate`"
    };
    Error::unsuitable(dir, format!("no dataset at {}: {why}", dir.display()))
}

fn open(dir: &Path) -> Result<Folders> {
    let path = dir.join(COLLECTION_NAME);
    let text = store::read(&path)?;
    let damaged = |what: Malformed| Error::damaged(&path, None, what);
    let collection = Collection::from_json(&text, dir).map_err(damaged)?;
    let dirs: Vec<_> = collection.shards.iter().map(|entry| entry.dir(dir)).collect();
    if first_repeated(&dirs).is_some() {
        return Err(damaged("it lists a shard twice".into()));
    }
    let mut shards = Vec::with_capacity(dirs.len());
    for (entry, shard) in collection.shards.iter().zip(dirs) {
        let shard = match Shard::open(&shard) {
            Err(error) if store::is_missing(&error) => {
                let what = format!(
                    "its shard {} is not there: put it back, or merge the shards that there are again",
                    shard.display()
                );
                return Err(Error::unsuitable(&path, format!("{}: {what}", path.display())));
            }
            opened => opened?,
        };
        if shard.xxh3 != entry.dataset_xxh3 || shard.samples() != entry.samples {
            let what = format!(
                "the dataset {} is not the one that the collection {} was made of: merge the shards again",
                shard.dir.display(),
                dir.display()
            );
            return Err(Error::Changed { path: Some(shard.dir.join(MANIFEST_NAME)), what });
        }
        shards.push(shard);
    }
    let Collection { reference, statistics, .. } = collection;
    let folder = dir.join(&statistics.name).parent().map_or(dir.to_owned(), Path::to_owned);
    let statistics = FileManifest { name: statistics::FILE_NAME.to_owned(), ..statistics };
    let columns = without_sizes(&shards[reference].manifest.schema);
    if let Some(shard) = shards.iter().find(|shard| without_sizes(&shard.manifest.schema) != columns) {
        let what = format!("the columns of its shard {} are not those of the others", shard.dir.display());
        return Err(damaged(what.into()));
    }
    Ok(Folders::of(shards, reference, Some((&folder, statistics))))
}

/// Returns the first folder that is also one of those before it, however its path is written.
pub(crate) fn first_repeated<P: AsRef<Path>>(dirs: &[P]) -> Option<&Path> {
    let mut seen = BTreeSet::new();
    dirs.iter().map(AsRef::as_ref).find(|dir| {
        // Components ignore a slash at the end. Whoever opens a folder that cannot be found says so.
        let plain = || dir.components().collect();
        let folder = if is_url(dir) { plain() } else { fs::canonicalize(dir).unwrap_or_else(|_| plain()) };
        !seen.insert(folder)
    })
}

/// Returns columns without what may differ between the shards of a collection.
fn without_sizes(schema: &Schema) -> Schema {
    let mut alike = schema.clone();
    for column in &mut alike.categorical {
        (column.rows, column.hotness) = (column.rows.map(|_| 0), Hotness::Fixed(0));
        if let VocabularyKind::Exact { min_count } = &mut column.vocabulary {
            *min_count = 0;
        }
    }
    alike
}

impl ShardEntry {
    /// Returns the folder of the shard, of a collection in `dir`.
    fn dir(&self, dir: &Path) -> PathBuf {
        // An url is not absolute to `join`.
        let path = Path::new(&self.path);
        if is_url(path) { path.to_owned() } else { dir.join(path) }
    }
}

impl Collection {
    /// Describes the shards of a dataset for a collection in `target`, whose folder has the statistics.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if a path is not UTF-8.
    pub(crate) fn of(folders: &Folders, target: &Path, statistics: FileManifest) -> Result<Self> {
        let entries = folders.shards().iter().map(|shard| {
            Ok(ShardEntry {
                path: path_in(target, &shard.dir)?,
                dataset_xxh3: shard.xxh3,
                samples: shard.samples(),
            })
        });
        Ok(Self { shards: entries.collect::<Result<_>>()?, reference: folders.reference, statistics })
    }

    pub(crate) fn to_json(&self) -> String {
        sealed::to_json(KIND, FORMAT, self)
    }

    /// Parses the collection of a folder.
    fn from_json(text: &[u8], dir: &Path) -> std::result::Result<Self, Malformed> {
        let collection: Self = sealed::from_json(KIND, FORMAT, text)?;
        let shards = &collection.shards;
        if shards.len() > SHARDS_MAX || collection.reference >= shards.len() {
            let (count, reference) = (shards.len(), collection.reference);
            return Err(format!("it lists {count} shards, and the vocabularies of shard {reference}").into());
        }
        if let Some(entry) = shards.iter().find(|entry| !is_allowed(Path::new(&entry.path), dir)) {
            let allowed = match is_url(dir) {
                false => "neither absolute nor below its folder, nor an url",
                true => "neither below its folder nor an url of the same bucket",
            };
            return Err(format!("the path {:?} is {allowed}", entry.path).into());
        }
        let name = &collection.statistics.name;
        if name != statistics::FILE_NAME && !is_statistics_name(name) {
            return Err(format!("it calls the statistics {:?}", collection.statistics.name).into());
        }
        Ok(collection)
    }
}

/// Returns the path of a commit's statistics below the collection's folder.
pub(crate) fn statistics_name(bytes: &[u8]) -> String {
    format!("{STATISTICS_FOLDER}/{}/{}", Checksum::of(bytes), statistics::FILE_NAME)
}

/// Returns whether [`statistics_name`] returns this.
fn is_statistics_name(name: &str) -> bool {
    let sum = name.strip_prefix(STATISTICS_FOLDER).and_then(|rest| rest.strip_prefix('/'));
    let sum = sum.and_then(|rest| rest.strip_suffix(statistics::FILE_NAME)?.strip_suffix('/'));
    sum.is_some_and(|sum| Checksum::try_from(sum.to_owned()).is_ok())
}

/// Returns whether a collection in `dir` may name a shard so. A collection in a bucket must not make its readers open
/// their own files, or send their credentials to other buckets.
fn is_allowed(path: &Path, dir: &Path) -> bool {
    let of_collection = ObjectUrl::parse(dir).ok().flatten();
    match (ObjectUrl::parse(path), of_collection) {
        (Err(_), _) => false,
        (Ok(Some(shard)), None) => !shard.key.is_empty(),
        (Ok(Some(shard)), Some(collection)) => {
            !shard.key.is_empty() && (shard.scheme, shard.bucket) == (collection.scheme, collection.bucket)
        }
        (Ok(None), _) => {
            let mut parts = path.components().peekable();
            if of_collection.is_none() {
                parts.next_if_eq(&Component::RootDir);
            }
            parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
        }
    }
}

/// Returns how a collection in `target` names a folder: by the path below it, or by the absolute path.
fn path_in(target: &Path, dir: &Path) -> Result<String> {
    let dir = if is_url(dir) { dir.to_owned() } else { std::path::absolute(dir).context("find", dir)? };
    let named = dir.strip_prefix(target).unwrap_or(&dir);
    named.to_str().map(ToOwned::to_owned).ok_or_else(|| {
        Error::unsuitable(
            &dir,
            format!("the path {} is not UTF-8, so no collection can name it", dir.display()),
        )
    })
}
