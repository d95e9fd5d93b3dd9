//! Folders that appear complete or not at all.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::lock::{Lock, is_at};
use super::path::{parent, resolve};
use super::sync_dir;
use crate::error::{Error, IoContext, Result};
use crate::files::check_folder;
use crate::url::refuse;

/// The suffix of an unfinished folder.
const PARTIAL: &str = "partial";
/// An empty file that marks an unfinished folder. A folder without it belongs to somebody else, whatever its name.
const MARKER_NAME: &str = ".rankine-partial";

/// A folder that only this process may publish; nothing is written yet.
#[derive(Debug)]
pub struct ReservedDir {
    path: PathBuf,
    target: PathBuf,
    lock: Lock,
}

impl ReservedDir {
    /// Locks `target` after following symbolic links, and creates its parent folders.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if it is a file or cannot be published; [`Error::Locked`]; [`Error::Io`].
    pub fn new(target: &Path) -> Result<Self> {
        refuse(target, "this output")?;
        if target.extension().is_some_and(|extension| extension == PARTIAL) {
            let reserved = "are reserved for unfinished folders: choose another name";
            let what = format!("{}: names that end with .{PARTIAL} {reserved}", target.display());
            return Err(Error::unsuitable(target, what));
        }
        check_folder(target, "the output")?;
        create_folders(parent(target))?;
        let target = resolve(target)?;
        let path = target.with_added_extension(PARTIAL);
        // A folder is published by a rename, which does not work across file systems.
        let devices =
            [fs::metadata(&target), fs::metadata(parent(&target))].map(|metadata| metadata.map(|m| m.dev()));
        if let [Ok(own), Ok(folder)] = devices
            && own != folder
        {
            let what = "is a mount point, which cannot be replaced: choose a folder within it";
            return Err(Error::unsuitable(&target, format!("{} {what}", target.display())));
        }
        let lock = Lock::beside(&target)?;
        Ok(Self { path, target, lock })
    }

    /// Removes what an ended process left of the folder, and logs it. Must only be called if the folder is known to
    /// have been written by Rankine.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn discard_leftover(&self) -> Result<()> {
        if fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Ok(());
        }
        let bytes = bytes_below(&self.path);
        fs::remove_dir_all(&self.path).context("remove", &self.path)?;
        tracing::info!("removed {} ({bytes} bytes), left by an interrupted process", self.path.display());
        Ok(())
    }

    /// Creates the folder to write to, after removing what an ended process left there.
    ///
    /// # Errors
    /// [`Error::Exists`] if the target is not empty; [`Error::Lost`]; [`Error::Io`].
    pub fn begin(self) -> Result<PartialDir> {
        self.lock.check()?;
        self.refuse_taken()?;
        if fs::symlink_metadata(&self.path).is_ok() {
            if !is_leftover(&self.path)? {
                let why = format!(
                    "already exists, but {} is written under that name until it is complete. Move or remove it, or \
                     choose another folder",
                    self.target.display()
                );
                return Err(Error::Exists { path: self.path.clone(), why });
            }
            self.discard_leftover()?;
        }
        fs::create_dir(&self.path).context("create", &self.path)?;
        let folder = File::open(&self.path).context("open", &self.path)?;
        let partial = PartialDir { reserved: self, folder, published: false };
        let marker = partial.path().join(MARKER_NAME);
        File::create_new(&marker).context("create", &marker)?;
        Ok(partial)
    }

    fn refuse_taken(&self) -> Result<()> {
        let is_taken = match fs::read_dir(&self.target) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error).context("write to", &self.target),
        };
        if !is_taken {
            return Ok(());
        }
        let why = "already exists and is not empty: remove it, or choose another folder".into();
        Err(Error::Exists { path: self.target.clone(), why })
    }
}

/// An unfinished folder: `DIR.partial` until [`PartialDir::publish`] renames it to `DIR`. Dropping it without
/// publishing removes it. The lock on `DIR` is held until the end.
#[derive(Debug)]
pub struct PartialDir {
    reserved: ReservedDir,
    /// Distinguishes it from a folder of another process that has its name.
    folder: File,
    published: bool,
}

impl PartialDir {
    /// Reserves `target` and starts writing it.
    ///
    /// # Errors
    /// As [`ReservedDir::new`] and [`ReservedDir::begin`].
    pub fn create(target: &Path) -> Result<Self> {
        ReservedDir::new(target)?.begin()
    }

    /// Returns the folder to write to.
    pub fn path(&self) -> &Path {
        &self.reserved.path
    }

    /// Gives the folder its final name, durably. The files in it must already be synced; this syncs the folders.
    ///
    /// # Errors
    /// [`Error::Lost`]; [`Error::Io`]; [`Error::Refused`] if the folder is complete and only the rename fails: it keeps
    /// its current name.
    pub fn publish(mut self) -> Result<()> {
        self.check()?;
        let ReservedDir { path, target, .. } = &self.reserved;
        let marker = path.join(MARKER_NAME);
        fs::remove_file(&marker).context("remove", &marker)?;
        sync_tree(path)?;
        // Syncing may have taken long.
        self.check()?;
        // This never replaces a folder that is not empty.
        let renamed = fs::rename(path, target);
        self.published = true;
        renamed.map_err(|error| {
            let doing = format!("rename {} to {}", path.display(), target.display());
            let why = format!("{error}. The output is complete: move it to its place");
            Error::refused(doing, io::Error::new(error.kind(), why))
        })?;
        sync_dir(parent(target))
    }

    /// Checks that no other process writes the folder instead of this one.
    fn check(&self) -> Result<()> {
        let ReservedDir { path, target, lock } = &self.reserved;
        lock.check()?;
        if is_at(&self.folder, path) { Ok(()) } else { Err(Error::Lost { path: target.clone() }) }
    }
}

impl Drop for PartialDir {
    fn drop(&mut self) {
        // The lock is released after this because fields are dropped last. A folder that another process made is left.
        if !self.published
            && is_at(&self.folder, self.path())
            && let Err(error) = fs::remove_dir_all(self.path())
        {
            tracing::warn!("cannot remove the unfinished folder {}: {error}", self.path().display());
        }
    }
}

/// Returns whether a folder is an unfinished one: it has the marker, or is empty because its process ended before
/// that.
fn is_leftover(path: &Path) -> Result<bool> {
    let is_dir = fs::symlink_metadata(path).context("open", path)?.is_dir();
    Ok(is_dir
        && (path.join(MARKER_NAME).exists() || fs::read_dir(path).context("read", path)?.next().is_none()))
}

/// Creates a folder and its missing parents, durably.
///
/// # Errors
/// [`Error::Io`].
pub fn create_folders(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    create_folders(parent(path))?;
    match fs::create_dir(path) {
        // Another process created it.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.context("create", path).and_then(|()| sync_dir(parent(path))),
    }
}

/// Syncs a folder and all folders below it.
fn sync_tree(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).context("read", dir)? {
        let entry = entry.context("read", dir)?;
        if entry.file_type().context("read", &entry.path())?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    sync_dir(dir)
}

/// Returns the bytes of all files below a path that can be read.
fn bytes_below(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| bytes_below(&entry.path())).sum()
}
