//! An exclusive lock on an output for one process at a time, on file systems with and without flock(2).
//!
//! The lock is a file that exists while the lock is held and names its holder. It is created with its complete
//! content by link(2), so exactly one of several processes creates it. If the file system supports it, the holder
//! also has an exclusive flock on the file as proof of life: a lock file without flock was left by a process that
//! ended. Otherwise, host, PID and start time decide. A lock whose holder cannot be judged, because it ran on another
//! machine, is never taken over.
//!
//! A dead holder's file is never removed to make room, since another process could have replaced it meanwhile. The
//! process that takes over creates the next free one of `LOCK.1`, `LOCK.2` and so on, checks that all earlier files
//! are still those of dead holders, and renames its file to `LOCK`. A process that creates such a file after that
//! rename finds a live holder in `LOCK` when it checks, and retreats.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::owner::{Life, Owner};
use super::path::{parent, unique_suffix};
use crate::error::{Error, IoContext, Result};
use crate::files::read_regular;

/// Maximum number of consecutive takeovers that were interrupted; each leaves a file.
const GENERATIONS_MAX: usize = 64;
/// How often an attempt is repeated because lock files changed meanwhile.
const ATTEMPTS_MAX: usize = 1000;
/// How long a lock file may be empty, on file systems without hard links, before its creator counts as dead.
const EMPTY_MAX: Duration = Duration::from_secs(1);
/// The wait between two attempts.
const PAUSE: Duration = Duration::from_millis(2);
/// A claim older than this without a record was left by a process that ended between two system calls.
const CLAIM_AGE_MAX: Duration = Duration::from_secs(3600);
const RECORD_BYTES_MAX: u64 = 4096;

/// The lock file in a folder.
const NAME_WITHIN: &str = ".lock";

/// An exclusive lock, held until it is dropped.
#[derive(Debug)]
pub struct Lock(LockMark);

/// A lock's file, which excludes other processes only while its path leads to it: not once the locked folder was
/// removed, moved or replaced.
#[derive(Debug)]
pub struct LockMark {
    path: Box<Path>,
    target: Box<Path>,
    file: File,
}

impl LockMark {
    /// The lock of a folder that another process holds by [`Lock::within`].
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn within(folder: &Path) -> Result<Self> {
        let path = folder.join(NAME_WITHIN);
        let file = File::open(&path).context("open", &path)?;
        Ok(Self { path: path.into(), target: folder.into(), file })
    }

    /// Checks that the lock file is in its place.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is not; [`Error::Io`] if that is unknown.
    pub fn check(&self) -> Result<()> {
        let lost = || Err(Error::Lost { path: self.target.to_path_buf() });
        match fs::symlink_metadata(&self.path) {
            Ok(there) if same_file(&there, &self.file.metadata().context("check", &self.path)?) => Ok(()),
            Ok(_) => lost(),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => lost(),
            Err(error) => Err(error).context("check", &self.path),
        }
    }
}

impl Lock {
    /// Locks an output: `.NAME.lock` next to it. `target` must be free of symbolic links (see
    /// [`super::path::resolve`]).
    ///
    /// # Errors
    /// [`Error::Locked`] if another process holds the lock, or may hold it; [`Error::Io`].
    pub(super) fn beside(target: &Path) -> Result<Self> {
        Self::acquire(&path_beside(target), target)
    }

    /// Like [`Lock::beside`], but waits for a live holder to release the lock.
    pub(super) fn beside_within(target: &Path, patience: Duration) -> Result<Self> {
        let path = path_beside(target);
        let began = Instant::now();
        loop {
            match attempt(&path).context("lock", target)? {
                Attempt::Held(file) => return Ok(Self::held(path, target, file)),
                Attempt::Refused(Holder { life: Life::Alive, .. }) if began.elapsed() < patience => {
                    thread::sleep(PAUSE);
                }
                Attempt::Refused(holder) => return Err(holder.refusal(&path, target)),
            }
        }
    }

    /// Locks a folder in which a process works for a long time: `.lock` inside it.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process holds the lock, or may hold it; [`Error::Io`].
    pub fn within(folder: &Path) -> Result<Self> {
        Self::acquire(&folder.join(NAME_WITHIN), folder)
    }

    /// Returns whether a process that is known to be alive, on this machine, holds the lock of a folder by
    /// [`Lock::within`]. Takes no lock.
    pub fn is_within(folder: &Path) -> bool {
        let Ok(record) = read_regular(&folder.join(NAME_WITHIN)) else { return false };
        let owner = serde_json::from_slice::<Owner>(&record);
        owner.is_ok_and(|owner| owner.life(&Owner::this_process(false)) == Life::Alive)
    }

    /// Checks that the lock still excludes other processes.
    ///
    /// # Errors
    /// As [`LockMark::check`].
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Returns the lock's mark, for threads that write while the lock is held.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn mark(&self) -> Result<LockMark> {
        let LockMark { path, target, file } = &self.0;
        let file = file.try_clone().context("open", path)?;
        Ok(LockMark { path: path.clone(), target: target.clone(), file })
    }

    /// Returns whether a file name in a folder is one of those that [`Lock::within`] uses.
    pub fn is_lock_name(name: &std::ffi::OsStr) -> bool {
        name == NAME_WITHIN || name.as_encoded_bytes().starts_with(b".lock.")
    }

    fn acquire(path: &Path, target: &Path) -> Result<Self> {
        match attempt(path).context("lock", target)? {
            Attempt::Held(file) => Ok(Self::held(path.to_owned(), target, file)),
            Attempt::Refused(holder) => Err(holder.refusal(path, target)),
        }
    }

    fn held(path: PathBuf, target: &Path, file: File) -> Self {
        Self(LockMark { path: path.into(), target: target.into(), file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The flock is released when the file is closed after this: no process sees the file without a live holder.
        let LockMark { path, file, .. } = &self.0;
        if is_at(file, path)
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!("cannot remove the lock {}: {error}", path.display());
        }
    }
}

fn path_beside(target: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".lock");
    parent(target).join(name)
}

/// The outcome of an attempt.
enum Attempt {
    Held(File),
    Refused(Holder),
}

/// The holder of a lock, as far as known.
struct Holder {
    owner: Option<Owner>,
    life: Life,
}

impl Holder {
    fn refusal(&self, path: &Path, target: &Path) -> Error {
        let holder = self.owner.as_ref().map_or_else(|| "an unknown process".into(), Owner::name);
        let lock = (self.life == Life::Unknown).then(|| path.to_owned());
        Error::Locked { path: target.to_owned(), holder, lock }
    }
}

fn attempt(path: &Path) -> io::Result<Attempt> {
    let claim = Claim::new(path)?;
    let began = Instant::now();
    for _ in 0..ATTEMPTS_MAX {
        match claim.take(path, began.elapsed() > EMPTY_MAX)? {
            ClaimOutcome::Held(file) => {
                claim.remove_dead_claims(path);
                return Ok(Attempt::Held(file));
            }
            ClaimOutcome::Refused(holder) => return Ok(Attempt::Refused(holder)),
            ClaimOutcome::Changed => thread::sleep(PAUSE),
        }
    }
    Err(io::Error::new(ErrorKind::TimedOut, format!("{} keeps changing", path.display())))
}

/// This process's record in a file with a unique name, with a flock if supported. It becomes the lock file by getting
/// that name as well.
struct Claim {
    path: PathBuf,
    file: File,
    owner: Owner,
}

enum ClaimOutcome {
    Held(File),
    Refused(Holder),
    /// The lock files changed meanwhile: try again.
    Changed,
}

/// The outcome of creating a lock file.
enum CreateOutcome {
    /// It was created; the file is the claim's, or a copy of it.
    Made(File),
    /// A lock file already exists.
    Exists,
}

/// The state of an existing lock file.
enum LockFile {
    Nothing,
    Held(Holder),
    /// Its holder has ended. While the file is open, its inode number is not reused.
    Dead(File),
    /// It has no content yet.
    Empty,
}

impl Claim {
    fn new(lock: &Path) -> io::Result<Self> {
        let (path, file) = loop {
            let path = with_suffix(lock, &unique_suffix());
            match File::options().read(true).write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => (),
                file => break (path, file?),
            }
        };
        // From here on the file is removed in any case.
        let mut claim = Self { path, file, owner: Owner::this_process(true) };
        claim.owner.flock = try_flock(&claim.file)?;
        write_record(&claim.file, &claim.owner)?;
        Ok(claim)
    }

    /// Creates the first free lock file if all earlier ones belong to dead holders.
    fn take(&self, path: &Path, empty_is_old: bool) -> io::Result<ClaimOutcome> {
        let mut dead: Vec<(PathBuf, File)> = Vec::new();
        for generation in 0..GENERATIONS_MAX {
            let at =
                if generation == 0 { path.to_owned() } else { with_suffix(path, &generation.to_string()) };
            if let CreateOutcome::Made(file) = self.create_lock_file(&at)? {
                return self.settle(path, &at, file, &dead);
            }
            match self.inspect(&at, empty_is_old)? {
                LockFile::Nothing | LockFile::Empty => return Ok(ClaimOutcome::Changed),
                LockFile::Held(holder) => return Ok(ClaimOutcome::Refused(holder)),
                LockFile::Dead(file) => dead.push((at, file)),
            }
        }
        Err(io::Error::other(format!("{} takeovers of {} failed", GENERATIONS_MAX, path.display())))
    }

    /// After creating the file `at`: checks that the earlier ones still belong to dead holders, and gives it the
    /// first one's name.
    fn settle(
        &self,
        path: &Path,
        at: &Path,
        file: File,
        dead: &[(PathBuf, File)],
    ) -> io::Result<ClaimOutcome> {
        let retreat = |at: &Path| {
            if is_at(&file, at) {
                let _ = fs::remove_file(at);
            }
        };
        if !dead.iter().all(|(at, file)| is_at(file, at)) {
            retreat(at);
            return Ok(ClaimOutcome::Changed);
        }
        if at != path {
            if let Err(error) = fs::rename(at, path) {
                retreat(at);
                return if error.kind() == ErrorKind::NotFound {
                    Ok(ClaimOutcome::Changed)
                } else {
                    Err(error)
                };
            }
            for (at, file) in &dead[1..] {
                if is_at(file, at) {
                    let _ = fs::remove_file(at);
                }
            }
        }
        if is_at(&file, path) { Ok(ClaimOutcome::Held(file)) } else { Ok(ClaimOutcome::Changed) }
    }

    /// Creates a lock file unless it exists.
    fn create_lock_file(&self, at: &Path) -> io::Result<CreateOutcome> {
        match fs::hard_link(&self.path, at) {
            Ok(()) => Ok(CreateOutcome::Made(self.file.try_clone()?)),
            // NFS repeats a request whose answer was lost, and then finds its own link.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if is_at(&self.file, at) {
                    Ok(CreateOutcome::Made(self.file.try_clone()?))
                } else {
                    Ok(CreateOutcome::Exists)
                }
            }
            Err(error) if has_no_links(&error) => self.create_without_links(at),
            Err(error) => Err(error),
        }
    }

    /// On file systems without hard links the lock file is briefly empty.
    fn create_without_links(&self, at: &Path) -> io::Result<CreateOutcome> {
        let file = match File::options().read(true).write(true).create_new(true).open(at) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(CreateOutcome::Exists),
            file => file?,
        };
        let written =
            try_flock(&file).and_then(|flock| write_record(&file, &Owner { flock, ..self.owner.clone() }));
        if let Err(error) = written {
            let _ = fs::remove_file(at);
            return Err(error);
        }
        Ok(CreateOutcome::Made(file))
    }

    /// Inspects a lock file of another process.
    fn inspect(&self, at: &Path, empty_is_old: bool) -> io::Result<LockFile> {
        // Other kinds of files must neither be followed nor block.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file = match File::options().read(true).custom_flags(flags).open(at) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(LockFile::Nothing),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Ok(LockFile::Held(Holder { owner: None, life: Life::Unknown }));
            }
            file => file?,
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(format!("{} is not a regular file", at.display())));
        }
        let mut text = Vec::new();
        Read::by_ref(&mut file).take(RECORD_BYTES_MAX).read_to_end(&mut text)?;
        let owner: Option<Owner> = serde_json::from_slice(&text).ok();
        if owner.is_none() && !empty_is_old {
            return Ok(LockFile::Empty);
        }
        let life = owner.as_ref().map_or(Life::Unknown, |owner| owner.life(&self.owner));
        let has_flock = owner.as_ref().is_none_or(|owner| owner.flock);
        let life = if has_flock && self.owner.flock {
            // A shared lock: when two processes inspect at the same time, neither must take the other one for the
            // holder.
            match file.try_lock_shared() {
                Ok(()) if life == Life::Unknown => Life::Dead,
                Ok(()) => life,
                Err(TryLockError::WouldBlock) => Life::Alive,
                Err(TryLockError::Error(error)) if has_no_flock(&error) => life,
                Err(TryLockError::Error(error)) => return Err(error),
            }
        } else {
            life
        };
        if !is_at(&file, at) {
            return Ok(LockFile::Nothing);
        }
        Ok(if life == Life::Dead { LockFile::Dead(file) } else { LockFile::Held(Holder { owner, life }) })
    }

    /// Removes the files of processes that ended while trying to get this lock.
    fn remove_dead_claims(&self, lock: &Path) {
        let mut prefix = lock.file_name().unwrap_or_default().to_owned();
        prefix.push(".");
        for entry in fs::read_dir(parent(lock)).into_iter().flatten().flatten() {
            let path = entry.path();
            if !entry.file_name().as_encoded_bytes().starts_with(prefix.as_encoded_bytes())
                || path == self.path
            {
                continue;
            }
            let is_old = || {
                let made = entry.metadata().and_then(|metadata| metadata.modified()).ok();
                made.and_then(|made| SystemTime::now().duration_since(made).ok()) > Some(CLAIM_AGE_MAX)
            };
            let is_dead = match self.inspect(&path, false) {
                Ok(LockFile::Dead(_)) => true,
                Ok(LockFile::Empty) => is_old(),
                _ => false,
            };
            if is_dead {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn write_record(mut file: &File, owner: &Owner) -> io::Result<()> {
    let mut record = serde_json::to_vec(owner).expect("it is plain data");
    record.push(b'\n');
    file.write_all(&record)?;
    // If the holder is identified by the record alone, the record must survive what the holder survives.
    if owner.flock { Ok(()) } else { file.sync_all() }
}

/// Takes an exclusive flock on a file that no other process has; returns `false` if the file system does not support
/// it.
fn try_flock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::Error(error)) if has_no_flock(&error) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
        Err(TryLockError::WouldBlock) => Err(ErrorKind::WouldBlock.into()),
    }
}

/// Returns whether flock(2) is unsupported, as on Lustre without `-o flock`, NFS without a lock daemon, and some
/// FUSE.
fn has_no_flock(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::ENOLCK | libc::EOPNOTSUPP))
}

fn has_no_links(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK | libc::EINVAL)
    )
}

/// Returns whether a path still leads to the open file or folder, and not to another one with the same name.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let Ok(open) = file.metadata() else { return false };
    fs::symlink_metadata(path).is_ok_and(|there| same_file(&there, &open))
}

fn same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}
