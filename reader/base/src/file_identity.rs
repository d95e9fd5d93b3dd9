//! Recognizes a file that was written or replaced after it was opened, by what the file system reports about it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::{Deserialize, Serialize};

use crate::error::{IoContext, Result};

/// A file written more recently than this may be written again without getting another time: file system clocks may
/// advance only every two seconds.
pub const SETTLED: Duration = Duration::from_secs(3);

/// File attributes that change when a file is written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamp {
    /// The number of the file on its file system.
    pub inode: u64,
    /// Nanoseconds since 1970 of the last write.
    pub modified_ns: i64,
    /// The same for the last change of the inode, a time that no program can set.
    pub changed_ns: i64,
}

impl Stamp {
    /// Returns the stamp of a file.
    pub fn of(metadata: &Metadata) -> Self {
        let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        Self {
            inode: metadata.ino(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Returns whether a write from now on results in another stamp.
    pub fn is_settled(self, now: SystemTime) -> bool {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let settled = i64::try_from(now.saturating_sub(SETTLED).as_nanos()).unwrap_or(i64::MAX);
        self.modified_ns < settled && self.changed_ns < settled
    }
}

/// Identifies a file and its contents while a command reads it.
///
/// Two kinds of writes are not detected. A write that keeps the length, in the same tick of the file system's clock as
/// the write before it, leaves the times as they are: ticks take a few milliseconds on local file systems, and up to
/// two seconds on others. A write through mapped memory may change the times only when the system writes the page to
/// disk. In turn, a file that is renamed, linked or given other permissions counts as changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    bytes: u64,
    stamp: Stamp,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileChange {
    /// Its path leads to another file.
    Replaced,
    /// Its length or times are others.
    Written,
}

impl FileIdentity {
    /// Returns the identity of an open file.
    pub fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), bytes: metadata.len(), stamp: Stamp::of(metadata) }
    }

    /// Returns the identity of the file at a path now.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub fn at(path: &Path) -> Result<Self> {
        metadata_now(path).map(|metadata| Self::of(&metadata)).context("read", path)
    }

    /// Returns its stamp.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Returns what happened to the file, from what the file system reports about it now.
    pub fn change(&self, now: &Metadata) -> Option<FileChange> {
        let now = Self::of(now);
        if (self.device, self.stamp.inode) != (now.device, now.stamp.inode) {
            return Some(FileChange::Replaced);
        }
        (*self != now).then_some(FileChange::Written)
    }
}

/// Returns what the file system reports about the file at a path now.
pub fn metadata_now(path: &Path) -> io::Result<Metadata> {
    // A network file system would answer from its cache. If this is not supported, times are still compared.
    let _ = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    fs::metadata(path)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn each_attribute_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old\n").unwrap();
        let metadata = fs::metadata(&path).unwrap();
        let identity = FileIdentity::of(&metadata);
        assert_eq!(identity.change(&metadata), None);
        // Every other attribute is as the system reports it.
        let Stamp { inode, modified_ns, changed_ns } = identity.stamp;
        let with = |stamp| FileIdentity { stamp, ..identity };
        for (seen, change) in [
            (FileIdentity { device: identity.device + 1, ..identity }, FileChange::Replaced),
            (with(Stamp { inode: inode + 1, ..identity.stamp }), FileChange::Replaced),
            (FileIdentity { bytes: 5, ..identity }, FileChange::Written),
            (with(Stamp { modified_ns: modified_ns - 1, ..identity.stamp }), FileChange::Written),
            (with(Stamp { changed_ns: changed_ns - 1, ..identity.stamp }), FileChange::Written),
        ] {
            assert_eq!(seen.change(&metadata), Some(change), "{seen:?}");
        }
    }

    #[test]
    fn reading_does_not_count_and_a_write_through_another_name_does() {
        let dir = tempfile::tempdir().unwrap();
        let [path, link] = ["file", "link"].map(|name| dir.path().join(name));
        fs::write(&path, "old\n").unwrap();
        fs::hard_link(&path, &link).unwrap();
        // The clock may not have advanced since the file was made.
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let identity = FileIdentity::of(&metadata_now(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"old\n");
        assert_eq!(identity.change(&metadata_now(&path).unwrap()), None);
        File::options().write(true).open(&link).unwrap().write_all_at(b"new\n", 0).unwrap();
        assert_eq!(identity.change(&metadata_now(&path).unwrap()), Some(FileChange::Written));
    }
}
