//! Identifies the contents of raw files, which have no checksum of their own.
//!
//! A file is unchanged as long as the file system reports the same times for it. If the times differ, because the
//! file was copied, touched or written, every byte is read and the checksum decides.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::file_identity::{FileIdentity, Stamp, metadata_now};
use rankine_base::sealed::Checksum;

/// Bytes covered by one checksum. Changing this changes the checksum of every file.
const CHUNK_BYTES: u64 = 64 << 20;
/// Bytes per read.
const READ_BYTES: usize = 1 << 20;
/// Interval of progress reports.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Identifies the contents of a raw file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawContents {
    /// Its length.
    pub bytes: u64,
    /// The stamp from the file system; absent if the file had just been written, because it then proves nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<Stamp>,
    /// The xxh3 of the xxh3 of each 64 MiB, as little-endian numbers; absent if it was not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xxh3: Option<Checksum>,
}

impl RawContents {
    /// Returns what the file system reports about a file now, without reading it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn of(path: &Path) -> Result<Self> {
        Self::at(path, SystemTime::now())
    }

    fn at(path: &Path, now: SystemTime) -> Result<Self> {
        let metadata = metadata_now(path).context("read", path)?;
        let stamp = Some(Stamp::of(&metadata)).filter(|stamp| stamp.is_settled(now));
        Ok(Self { bytes: metadata.len(), stamp, xxh3: None })
    }

    /// Returns whether two files have the same contents; `None` if that needs a checksum that one of them lacks.
    pub fn is_same(&self, other: &Self) -> Option<bool> {
        if self.bytes != other.bytes {
            return Some(false);
        }
        if self.stamp.is_some() && self.stamp == other.stamp {
            return Some(true);
        }
        self.xxh3.zip(other.xxh3).map(|(one, other)| one == other)
    }
}

/// An open file and the checksums of its chunks that are known so far.
struct HashedFile<'a> {
    path: &'a Path,
    file: File,
    bytes: u64,
    identity: FileIdentity,
    chunks: Mutex<Vec<u64>>,
}

/// Reads files with `threads` threads, and returns the contents of each with checksum and stamp. `progress` is called
/// at intervals with the bytes read and the bytes in total; if it returns `false`, reading stops and there is no
/// result.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read; [`Error::Changed`] if one was written meanwhile.
pub fn checksums(
    paths: &[PathBuf],
    threads: usize,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Option<Vec<RawContents>>> {
    let files = paths.iter().map(|path| HashedFile::open(path)).collect::<Result<Vec<_>>>()?;
    if !read_all(&files, threads, progress)? {
        return Ok(None);
    }
    files.into_iter().map(HashedFile::finish).collect::<Result<_>>().map(Some)
}

impl<'a> HashedFile<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let file = File::open(path).context("open", path)?;
        let metadata = file.metadata().context("read", path)?;
        let bytes = metadata.len();
        let chunks = Mutex::new(vec![0; bytes.div_ceil(CHUNK_BYTES) as usize]);
        Ok(Self { path, file, bytes, identity: FileIdentity::of(&metadata), chunks })
    }

    fn finish(self) -> Result<RawContents> {
        let Self { path, file, bytes, identity, chunks } = self;
        let metadata = file.metadata().context("read", path)?;
        if identity.change(&metadata).is_some() {
            let what = format!(
                "{} was written while it was read: wait until it is complete, and do not change it while a training \
                 run reads it",
                path.display()
            );
            return Err(Error::Changed { path: Some(path.to_owned()), what });
        }
        let mut hash = Xxh3::new();
        for chunk in chunks.into_inner().unwrap_or_else(PoisonError::into_inner) {
            hash.update(&chunk.to_le_bytes());
        }
        Ok(RawContents { bytes, stamp: Some(identity.stamp()), xxh3: Some(Checksum(hash.digest())) })
    }

    /// Returns the checksum of a chunk.
    fn chunk(&self, number: usize, buffer: &mut [u8], read: &AtomicU64) -> io::Result<u64> {
        let mut at = number as u64 * CHUNK_BYTES;
        let end = self.bytes.min(at + CHUNK_BYTES);
        let mut hash = Xxh3::new();
        while at < end {
            let room = (end - at).min(buffer.len() as u64) as usize;
            self.file.read_exact_at(&mut buffer[..room], at)?;
            hash.update(&buffer[..room]);
            at += room as u64;
            read.fetch_add(room as u64, Ordering::Relaxed);
        }
        Ok(hash.digest())
    }
}

/// Reads all chunks of all files; returns `false` if it was stopped before the end.
fn read_all(
    files: &[HashedFile<'_>],
    threads: usize,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<bool> {
    let of_file = |file: &HashedFile<'_>| 0..file.bytes.div_ceil(CHUNK_BYTES) as usize;
    let chunks: Vec<_> =
        files.iter().flat_map(|file| of_file(file).map(move |chunk| (file, chunk))).collect();
    let total = files.iter().map(|file| file.bytes).sum();
    let (next, read, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let teller = thread::current();
    let work = || {
        let mut buffer = vec![0; READ_BYTES];
        let mut work = || {
            while !stop.load(Ordering::Relaxed) {
                let Some(&(file, number)) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                let sum = file.chunk(number, &mut buffer, &read).context("read", file.path)?;
                file.chunks.lock().unwrap_or_else(PoisonError::into_inner)[number] = sum;
            }
            Ok(())
        };
        let outcome = work();
        if outcome.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        teller.unpark();
        outcome
    };
    // Small files may be read before the first report below.
    let mut goes_on = progress(0, total);
    if !goes_on {
        return Ok(false);
    }
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(chunks.len())).map(|_| scope.spawn(work)).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            goes_on = goes_on && progress(read.load(Ordering::Relaxed), total);
            if !goes_on {
                stop.store(true, Ordering::Relaxed);
            }
            thread::park_timeout(TELL_EVERY);
        }
        let join = |worker: thread::ScopedJoinHandle<'_, Result<()>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().try_for_each(join)?;
        Ok(goes_on)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use rankine_base::file_identity::SETTLED;

    fn checksum(path: &Path) -> Checksum {
        checksums(&[path.to_owned()], 2, &mut |_, _| true).unwrap().unwrap()[0].xxh3.unwrap()
    }

    #[test]
    fn every_byte_counts() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("records");
        let mut bytes: Vec<_> = (0..3 * READ_BYTES + 17).map(|at| (at * at % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let whole = checksum(&path);
        for at in [0, 1, READ_BYTES - 1, READ_BYTES, bytes.len() - 1] {
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert_ne!(checksum(&path), whole, "byte {at}");
            bytes[at] ^= 1;
        }
        fs::write(&path, &bytes).unwrap();
        assert_eq!(checksum(&path), whole);
        let paths = [path.clone(), path];
        let twice = checksums(&paths, 3, &mut |_, _| true).unwrap().unwrap();
        assert_eq!(twice.iter().map(|contents| contents.xxh3).collect::<Vec<_>>(), [Some(whole); 2]);
        assert_eq!(checksums(&paths, 3, &mut |_, _| false).unwrap(), None);
        assert_eq!(checksums(&[], 3, &mut |_, _| true).unwrap(), Some(Vec::new()));
        assert!(checksums(&[temp.path().join("none")], 1, &mut |_, _| true).is_err());
    }

    #[test]
    fn the_checksum_is_that_of_each_64_mib() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("records");
        let file = File::create(&path).unwrap();
        // A hole takes no disk space.
        file.set_len((64 << 20) + 3).unwrap();
        file.write_all_at(&[1, 2, 3], 64 << 20).unwrap();
        file.write_all_at(&[4], (64 << 20) - 1).unwrap();
        let mut reported = Vec::new();
        let mut tell = |read, total| {
            reported.push((read, total));
            true
        };
        let contents = checksums(&[path.clone(), path], 1, &mut tell).unwrap().unwrap();
        let mut first = vec![0; 64 << 20];
        first[(64 << 20) - 1] = 4;
        let chunks = [xxhash_rust::xxh3::xxh3_64(&first), xxhash_rust::xxh3::xxh3_64(&[1, 2, 3])];
        let chunks: Vec<u8> = chunks.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        for contents in contents {
            assert_eq!(contents.xxh3, Some(Checksum::of(&chunks)));
            assert_eq!(contents.bytes, (64 << 20) + 3);
            assert!(contents.stamp.is_some(), "the file that was read is known even if it was just written");
        }
        let total = 2 * ((64 << 20) + 3);
        assert!(reported.iter().all(|&(read, of)| of == total && read <= total));
        assert!(reported.is_sorted());
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("records");
        // The same length, a greater length, and only another time.
        let changes: [fn(&File); 3] = [
            |file| file.write_all_at(b"other", 0).unwrap(),
            |file| file.set_len(6).unwrap(),
            |file| file.set_modified(SystemTime::UNIX_EPOCH).unwrap(),
        ];
        for change in changes {
            fs::write(&path, "bytes").unwrap();
            // File system clocks advance every few milliseconds.
            thread::sleep(Duration::from_millis(20));
            let opened = HashedFile::open(&path).unwrap();
            change(&File::options().write(true).open(&path).unwrap());
            let error = opened.finish().unwrap_err().to_string();
            assert!(error.contains("was written while it was read"), "{error}");
        }
        HashedFile::open(&path).unwrap().finish().unwrap();
    }

    #[test]
    fn a_stamp_is_settled_once_neither_time_is_recent() {
        let second = 1_000_000_000;
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let is_settled = |modified: i64, changed: i64| {
            let stamp = Stamp { inode: 1, modified_ns: modified * second, changed_ns: changed * second };
            stamp.is_settled(now)
        };
        assert!(is_settled(96, 96));
        assert!(!is_settled(97, 96) && !is_settled(96, 97), "97 is not more than three seconds ago");
        // Without stamps and without checksums nothing is known.
        let unknown = RawContents { bytes: 5, stamp: None, xxh3: None };
        assert_eq!(unknown.is_same(&unknown), None);
        for other in [4, 6] {
            assert_eq!(unknown.is_same(&RawContents { bytes: other, ..unknown }), Some(false));
        }
        let stamp = |inode, modified_ns, changed_ns| RawContents {
            stamp: Some(Stamp { inode, modified_ns, changed_ns }),
            ..unknown
        };
        let one = stamp(1, 2, 3);
        assert_eq!(one.is_same(&stamp(1, 2, 3)), Some(true));
        for other in [stamp(9, 2, 3), stamp(1, 9, 3), stamp(1, 2, 9)] {
            assert_eq!(one.is_same(&other), None);
        }
    }

    #[test]
    fn a_stamp_has_the_inode_and_both_times_to_the_nanosecond() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("records");
        let file = File::create(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(12, 345_678_901)).unwrap();
        let metadata = file.metadata().unwrap();
        let changed_ns = metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec();
        let expected = Stamp { inode: metadata.ino(), modified_ns: 12_345_678_901, changed_ns };
        assert_eq!(Stamp::of(&metadata), expected);
    }

    #[test]
    fn a_file_that_was_just_written_has_no_stamp() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("records");
        fs::write(&path, [1; 100]).unwrap();
        let now = SystemTime::now();
        assert_eq!(RawContents::at(&path, now).unwrap().stamp, None);
        let written_later = File::options().write(true).open(&path).unwrap();
        written_later.set_modified(now + 2 * SETTLED).unwrap();
        assert_eq!(RawContents::at(&path, now + 2 * SETTLED).unwrap().stamp, None, "written just now");
        written_later.set_modified(now).unwrap();
        let settled = RawContents::at(&path, now + 2 * SETTLED).unwrap();
        assert!(settled.stamp.is_some());
        assert_eq!(settled.is_same(&RawContents::at(&path, now + 3 * SETTLED).unwrap()), Some(true));
        // Neither a write of the same length nor another file with the same times has the same stamp.
        let times = fs::metadata(&path).unwrap();
        let times = fs::FileTimes::new().set_modified(times.modified().unwrap());
        fs::write(&path, [2; 100]).unwrap();
        File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        let written = RawContents::at(&path, now + 3 * SETTLED).unwrap();
        assert_eq!(settled.is_same(&written), None);
        let known = |contents: RawContents, sum| RawContents { xxh3: Some(Checksum(sum)), ..contents };
        assert_eq!(known(settled, 1).is_same(&known(written, 1)), Some(true));
        assert_eq!(known(settled, 1).is_same(&known(written, 2)), Some(false));
        assert_eq!(settled.is_same(&RawContents { bytes: 99, ..settled }), Some(false));
    }
}
