//! Files that appear complete or not at all, and pipes and devices, which are written directly.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::lock::Lock;
use super::path::{is_unique_suffix, parent, resolve, unique_suffix};
use super::sync_dir;
use crate::error::{Error, IoContext, Result};
use crate::url::refuse;

/// How long [`replace_file`] waits for other processes that write the same file, which normally takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
const PERMISSION_BITS: u32 = 0o777;

/// Replaces a file durably: readers find either the old or the new file, complete. Waits for other processes that
/// replace the same file; the last one wins.
///
/// Symbolic links are followed. Pipes and devices are written directly.
///
/// # Errors
/// [`Error::Io`]; [`Error::Unsuitable`] if `path` is a folder; [`Error::Locked`].
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    replacing(path)?.publish_all(bytes, None)
}

/// Starts a file for [`replace_file`].
pub(super) fn replacing(path: &Path) -> Result<PartialFile> {
    PartialFile::begin(path, false, |target| Lock::beside_within(target, PATIENCE).map(Some))
}

/// Like [`replace_file`], for a file in a folder that `lock` locks by [`Lock::within`]: the file needs no lock
/// itself.
///
/// # Errors
/// As [`replace_file`]; [`Error::Lost`] if the lock no longer excludes other processes.
pub fn replace_file_under(lock: &Lock, path: &Path, bytes: &[u8]) -> Result<()> {
    lock.check()?;
    PartialFile::begin(path, false, |_| Ok(None))?.publish_all(bytes, Some(lock))
}

/// An unfinished file: `.NAME.PID-N.partial` next to its target until [`PartialFile::publish`] renames it. Dropping
/// it without publishing removes it. The lock on the target is held until the end.
///
/// Data written to a pipe or a device goes there at once and cannot be undone.
#[derive(Debug)]
pub struct PartialFile {
    /// The final path.
    target: PathBuf,
    /// The temporary file; `None` for pipes and devices.
    temporary: Option<Temporary>,
    out: BufWriter<File>,
    /// Whether the target must not exist.
    is_new: bool,
    lock: Option<Lock>,
}

/// A file that is removed unless it is renamed.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!("cannot remove the unfinished file {}: {error}", self.path.display());
        }
    }
}

impl PartialFile {
    /// Starts a file that replaces an existing one and keeps its permissions. Symbolic links are followed.
    ///
    /// # Errors
    /// [`Error::Locked`]; [`Error::Unsuitable`] if it is a folder; [`Error::Io`].
    pub fn create(path: &Path) -> Result<Self> {
        Self::begin(path, false, |target| Lock::beside(target).map(Some))
    }

    /// Starts a file that must not exist, neither now nor when it is published.
    ///
    /// # Errors
    /// [`Error::Locked`]; [`Error::Exists`]; [`Error::Unsuitable`] if it is a folder; [`Error::Io`].
    pub fn create_new(path: &Path) -> Result<Self> {
        Self::begin(path, true, |target| Lock::beside(target).map(Some))
    }

    fn begin(path: &Path, is_new: bool, lock: impl FnOnce(&Path) -> Result<Option<Lock>>) -> Result<Self> {
        refuse(path, "this output")?;
        let target = match destination(path)? {
            Destination::File(target) => target,
            Destination::Stream(file) => {
                let out = BufWriter::new(file);
                return Ok(Self { target: path.to_owned(), temporary: None, out, is_new: false, lock: None });
            }
        };
        let lock = lock(&target)?;
        let old = old_file(&target)?;
        if is_new && old.is_some() {
            return Err(exists(&target));
        }
        remove_leftovers(&target);
        let permissions = old.map(|old| Permissions::from_mode(old.permissions().mode() & PERMISSION_BITS));
        let temporary = temporary_path(&target);
        let mut options = File::options();
        options.write(true).create_new(true);
        if let Some(permissions) = &permissions {
            options.mode(permissions.mode());
        }
        let file = options.open(&temporary).context("create", &temporary)?;
        let temporary = Temporary { path: temporary, renamed: false };
        // The umask may have removed some permissions.
        permissions
            .map_or(Ok(()), |own| file.set_permissions(own))
            .context("set the permissions of", &target)?;
        let out = BufWriter::new(file);
        Ok(Self { target, temporary: Some(temporary), out, is_new, lock })
    }

    /// Writes the whole file, and publishes it; `lock` as in [`PartialFile::publish_under`].
    pub(super) fn publish_all(mut self, bytes: &[u8], lock: Option<&Lock>) -> Result<()> {
        self.out.write_all(bytes).context("write", &self.target)?;
        self.publish_under(lock)
    }

    /// Syncs the file and gives it its name.
    ///
    /// # Errors
    /// [`Error::Lost`] if its lock no longer excludes other processes; [`Error::Io`]; [`Error::Exists`] if it must not
    /// exist but was created meanwhile.
    pub fn publish(self) -> Result<()> {
        self.publish_under(None)
    }

    /// The same, under a lock that the caller holds if the file has none.
    fn publish_under(mut self, lock: Option<&Lock>) -> Result<()> {
        self.out.flush().context("write", &self.target)?;
        let Some(temporary) = &mut self.temporary else { return Ok(()) };
        self.out.get_ref().sync_all().context("sync", &self.target)?;
        // Syncing may have taken long.
        lock.or(self.lock.as_ref()).map_or(Ok(()), Lock::check)?;
        if self.is_new {
            rename_to_new(&temporary.path, &self.target)?;
        } else {
            fs::rename(&temporary.path, &self.target).context("write", &self.target)?;
        }
        temporary.renamed = true;
        sync_dir(parent(&self.target))
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What a path leads to.
enum Destination {
    /// A regular file, or nothing yet: the path without symbolic links.
    File(PathBuf),
    /// An open pipe or device.
    Stream(File),
}

fn destination(path: &Path) -> Result<Destination> {
    let resolved = resolve(path)?;
    // Such as /dev/stdout: the file behind it is already open, and others may append to it as well.
    if resolved.starts_with("/proc") {
        let file = match standard_stream(&resolved) {
            Some(file) => file,
            None => File::options().append(true).open(&resolved),
        };
        return file.map(Destination::Stream).context("open", path);
    }
    let file_type = match fs::symlink_metadata(&resolved) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Destination::File(resolved)),
        metadata => metadata.context("open", &resolved)?.file_type(),
    };
    if file_type.is_file() {
        return Ok(Destination::File(resolved));
    }
    if file_type.is_fifo() || file_type.is_char_device() || file_type.is_block_device() {
        let file = File::options().write(true).open(&resolved).context("open", path)?;
        return Ok(Destination::Stream(file));
    }
    let what = if file_type.is_dir() { "a folder" } else { "not a file" };
    Err(Error::unsuitable(path, format!("cannot write {}: it is {what}", path.display())))
}

/// Returns this process's own stdout or stderr if a path of /proc leads to it.
fn standard_stream(path: &Path) -> Option<io::Result<File>> {
    let own = Path::new("/proc/self").canonicalize().ok()?;
    let name = path.strip_prefix(own.join("fd")).ok()?;
    let stream = match name.to_str()? {
        "1" => io::stdout().as_fd().try_clone_to_owned(),
        "2" => io::stderr().as_fd().try_clone_to_owned(),
        _ => return None,
    };
    Some(stream.map(File::from))
}

/// Returns the file to replace, if any. A write-protected file is an error, because a rename would ignore the
/// protection.
fn old_file(target: &Path) -> Result<Option<Metadata>> {
    match File::options().append(true).open(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        file => file.and_then(|file| file.metadata()).map(Some).context("write", target),
    }
}

/// Renames a file unless the new name exists.
fn rename_to_new(from: &Path, to: &Path) -> Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from).context("remove", from),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(exists(to)),
        // The file system has no hard links. The lock keeps out other processes of Rankine.
        Err(_) if fs::symlink_metadata(to).is_ok() => Err(exists(to)),
        Err(_) => fs::rename(from, to).context("write", to),
    }
}

fn exists(target: &Path) -> Error {
    let why = "already exists and is not overwritten: choose another name, or remove it".into();
    Error::Exists { path: target.to_owned(), why }
}

fn temporary_path(target: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}.partial", unique_suffix()));
    parent(target).join(name)
}

/// Returns whether an unfinished file of this name belongs to the file called `of`, in the same folder.
pub fn is_leftover(name: &OsStr, of: impl AsRef<OsStr>) -> bool {
    let rest = name
        .as_encoded_bytes()
        .strip_prefix(b".")
        .and_then(|name| name.strip_prefix(of.as_ref().as_encoded_bytes()))
        .and_then(|name| name.strip_prefix(b".").and_then(|name| name.strip_suffix(b".partial")));
    rest.is_some_and(is_unique_suffix)
}

/// Removes what ended processes left of a file. No other process writes it, since this one holds the lock.
fn remove_leftovers(target: &Path) {
    let name = target.file_name().unwrap_or_default();
    for entry in fs::read_dir(parent(target)).into_iter().flatten().flatten() {
        if !is_leftover(&entry.file_name(), name) {
            continue;
        }
        let (path, bytes) = (entry.path(), entry.metadata().map_or(0, |metadata| metadata.len()));
        match fs::remove_file(&path) {
            Ok(()) => {
                tracing::info!("removed {} ({bytes} bytes), left by an interrupted process", path.display())
            }
            Err(error) => tracing::warn!("cannot remove the leftover {}: {error}", path.display()),
        }
    }
}
