//! Objects in buckets (`s3://`, `gs://`, `az://`), read like files.
//!
//! `read`, `exists` and `version` take a path that may be an url; `client` is the only module that talks to a
//! store, on a thread of its own, and retries what may succeed later. Without the feature `cloud`, `absent` takes its
//! place and refuses urls. The reader's ring reads blocks of objects by `range` (`io/object.rs`), and [`BlockCache`]
//! keeps them in a local folder.

#[cfg(not(feature = "cloud"))]
#[path = "absent.rs"]
mod client;
#[cfg(feature = "cloud")]
mod client;

mod cache;
mod counters;
mod reader;
#[cfg(feature = "cloud")]
mod upload;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::files::read_regular;
use rankine_base::url::is_url;

pub(crate) use cache::BlockKey;
pub use cache::{BlockCache, CacheOptions};
#[cfg(not(feature = "cloud"))]
pub use client::Upload;
pub(crate) use client::range;
pub use counters::{StoreCounts, counts};
pub(crate) use reader::ObjectReader;
#[cfg(feature = "cloud")]
pub use upload::Upload;

/// Bytes of an object that are requested at a time.
const RANGE_BYTES: u64 = 8 << 20;

/// The version of an object: what it was when it was first looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Its length.
    pub bytes: u64,
    /// The entity tag, which changes with the contents; `None` for files, and for stores without tags.
    pub etag: Option<String>,
}

/// What is known of the files of a part that are objects.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    /// Their versions, by url; empty if all files are local.
    pub(crate) versions: BTreeMap<PathBuf, Version>,
    /// Where their blocks are kept.
    pub(crate) cache: Option<Arc<BlockCache>>,
}

impl Objects {
    /// Returns whether all files are local.
    pub(crate) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }
}

/// Reads a whole file or object.
///
/// # Errors
/// [`Error::Io`], of the kind [`ErrorKind::NotFound`] if it does not exist; [`Error::Changed`] if the object was
/// replaced meanwhile; [`Error::Unsupported`] for an url in a build without object stores.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    if !is_url(path) {
        return read_regular(path).context("read", path);
    }
    let Some((version, start)) = client::start_of(path)? else { return Ok(Vec::new()) };
    let mut bytes = start.to_vec();
    let mut rest = ObjectReader::new(path, &version, bytes.len() as u64);
    rest.read_to_end(&mut bytes).context("read", path)?;
    Ok(bytes)
}

/// Reads a range of a file or an object, which lies within it.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_range(path: &Path, version: &Version, within: Range<u64>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let len = usize::try_from(within.end - within.start).unwrap_or(usize::MAX);
    if bytes.try_reserve_exact(len).is_err() {
        let what = format!("{len} bytes of {} do not fit into memory", path.display());
        return Err(Error::too_large(len as u64, what));
    }
    if is_url(path) {
        while within.start + (bytes.len() as u64) < within.end {
            let from = within.start + bytes.len() as u64;
            bytes.extend_from_slice(&range(path, version, from..within.end.min(from + RANGE_BYTES))?);
        }
    } else {
        bytes.resize(len, 0);
        File::open(path)
            .and_then(|file| file.read_exact_at(&mut bytes, within.start))
            .context("read", path)?;
    }
    Ok(bytes)
}

/// Returns whether a file or an object exists.
///
/// # Errors
/// As [`read`]; for a local file none.
pub(crate) fn exists(path: &Path) -> Result<bool> {
    if !is_url(path) {
        return Ok(path.is_file());
    }
    match client::version(path) {
        Ok(_) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the version of a file or an object.
///
/// # Errors
/// As [`read`].
pub(crate) fn version(path: &Path) -> Result<Version> {
    if !is_url(path) {
        return Ok(Version { bytes: fs::metadata(path).context("open", path)?.len(), etag: None });
    }
    client::version(path)
}

/// What is directly below an url.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The urls of objects, sorted.
    pub objects: Vec<PathBuf>,
    /// The urls of folders, which are prefixes of objects, sorted.
    pub folders: Vec<PathBuf>,
}

/// Lists what is directly below an url.
///
/// # Errors
/// [`Error::Io`]; [`Error::Unsupported`] in a build without object stores.
pub fn list(url: &Path) -> Result<Listing> {
    client::list(url)
}

/// Returns whether there is an object at an url.
///
/// # Errors
/// As [`list`].
pub fn has_object(url: &Path) -> Result<bool> {
    exists(url)
}

/// Copies a local file to an url. The object appears whole or not at all.
///
/// # Errors
/// [`Error::Io`]; [`Error::Exists`] if there is an object already.
pub fn copy(file: &Path, url: &Path) -> Result<()> {
    let mut upload = Upload::create(url, false)?;
    let mut file = File::open(file).context("open", file)?;
    io::copy(&mut file, &mut upload).context("write", url)?;
    upload.complete()
}

/// Returns whether an error says that a file or an object does not exist.
pub(crate) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// Returns the error for an object that is not the one that was first looked at.
#[cfg(feature = "cloud")]
fn changed(url: &Path) -> Error {
    let what = format!(
        "{} was replaced while it was in use: its entity tag or length differs. Leave the objects of a dataset as they \
         are; write new data under another url",
        url.display()
    );
    Error::Changed { path: Some(url.to_owned()), what }
}
