//! A local folder that keeps blocks of objects, within a number of bytes. Several processes may share it.
//!
//! Each block is a file that is written under another name and renamed, and holds a checksum of its bytes. A process
//! reserves the bytes of a block before it writes them: the file `lock` is locked for that, and holds the sum. A sum
//! that is too large, after a process was killed, is put right by counting the files when the folder seems full.
//!
//! Training reads a dataset in a loop. If the folder cannot hold all of it, replacing the least recently used block by
//! each block that is read would replace every block shortly before it is needed again. So, unless a block was not used
//! for a day, only one in [`ADMITTED_ONE_IN`] fetched blocks replaces another.

use std::collections::VecDeque;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rankine_base::error::{IoContext, Result};
use rankine_base::publish::unique_suffix;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::Version;
use super::counters::count_look_up;

/// The first bytes of a file of the cache, with the version of its format.
const MAGIC: [u8; 8] = *b"rkblock1";
const HEADER_BYTES: usize = 40;
/// The name of a file of the cache ends with this.
const SUFFIX: &str = "block";
/// Holds the sum of all files, and is locked while it changes.
const LOCK_NAME: &str = "lock";
/// The folder of files that are being written.
const PARTIAL_NAME: &str = "partial";
/// A file that has been written for longer was left by a process that ended.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// A use is noted if the last one is this long ago.
const NOTED_AFTER: Duration = Duration::from_secs(60);
/// Blocks that were not used for so long make room for any other.
const UNUSED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// How many fetched blocks there are per block that replaces one that is in use.
const ADMITTED_ONE_IN: u64 = 8;
/// How many blocks to replace are remembered from one look at the folder.
const CANDIDATES: usize = 4096;

/// Where blocks of objects are kept, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// The folder. Nothing else should be in it.
    pub dir: PathBuf,
    /// The bytes that all files in it may have together.
    pub bytes: u64,
}

/// A folder of blocks.
#[derive(Debug)]
pub struct BlockCache {
    options: CacheOptions,
    /// The file `lock`.
    lock: File,
    /// The blocks to replace next, least recently used first, with the times of their last uses.
    candidates: Mutex<VecDeque<(PathBuf, SystemTime)>>,
    /// Blocks that were refused a place since the last one that replaced another.
    refused: AtomicU64,
    /// Whether a failure to write was reported.
    reported: AtomicBool,
}

/// What identifies a block in the cache: the url, the version and the range of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockKey(u128);

impl BlockKey {
    pub(crate) fn new(url: &Path, version: &Version, range: &Range<u64>) -> Self {
        let mut hash = Xxh3::new();
        let etag = version.etag.as_deref().unwrap_or_default();
        for text in [url.as_os_str().as_encoded_bytes(), etag.as_bytes()] {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        for number in [version.bytes, range.start, range.end] {
            hash.update(&number.to_le_bytes());
        }
        Self(hash.digest128())
    }

    /// Returns the path below the folder.
    fn path(&self) -> PathBuf {
        let name = format!("{:032x}", self.0);
        Path::new(&name[..2]).join(format!("{}.{SUFFIX}", &name[2..]))
    }

    /// Returns the header of a file with bytes of this length and checksum.
    fn header(&self, bytes: usize, checksum: u64) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..24].copy_from_slice(&self.0.to_le_bytes());
        header[24..32].copy_from_slice(&(bytes as u64).to_le_bytes());
        header[32..].copy_from_slice(&checksum.to_le_bytes());
        header
    }
}

impl BlockCache {
    /// Opens a cache, and creates its folder if it does not exist.
    ///
    /// # Errors
    /// [`rankine_base::Error::Io`].
    pub fn open(options: CacheOptions) -> Result<Self> {
        rankine_base::url::refuse(&options.dir, "a cache")?;
        let partial = options.dir.join(PARTIAL_NAME);
        fs::create_dir_all(&partial).context("create", &partial)?;
        let path = options.dir.join(LOCK_NAME);
        let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let lock = lock.context("open", &path)?;
        Ok(Self {
            options,
            lock,
            candidates: Mutex::default(),
            refused: AtomicU64::new(0),
            reported: AtomicBool::new(false),
        })
    }

    /// Reads a block, and returns whether it is there; if not, `into` may have been written. A file that is not as it
    /// was written is removed.
    pub(crate) fn read(&self, key: &BlockKey, into: &mut [MaybeUninit<u8>]) -> bool {
        let is_hit = self.look_up(key, into);
        count_look_up(is_hit);
        is_hit
    }

    fn look_up(&self, key: &BlockKey, into: &mut [MaybeUninit<u8>]) -> bool {
        let path = self.options.dir.join(key.path());
        let Ok(file) = File::open(&path) else { return false };
        let mut read = || -> io::Result<bool> {
            let mut header = [0; HEADER_BYTES];
            file.read_exact_at(&mut header, 0)?;
            let (mut at, mut hash) = (0, Xxh3::new());
            while at < into.len() {
                let (read, _) = rustix::io::pread(&file, &mut into[at..], (HEADER_BYTES + at) as u64)?;
                if read.is_empty() {
                    return Ok(false);
                }
                hash.update(read);
                at += read.len();
            }
            Ok(key.header(at, hash.digest()) == header)
        };
        match read() {
            Ok(true) => {
                note_use(&file);
                true
            }
            Ok(false) | Err(_) => {
                tracing::warn!("{} is damaged: it was removed from the cache", path.display());
                self.remove(&path);
                false
            }
        }
    }

    /// Adds a block if there is room for it. A failure is reported once, and costs no more than the block.
    pub(crate) fn insert(&self, key: &BlockKey, bytes: &[u8]) {
        if let Err(error) = self.try_insert(key, bytes)
            && !self.reported.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "the cache {} keeps fewer blocks than it could: {error}",
                self.options.dir.display()
            );
        }
    }

    fn try_insert(&self, key: &BlockKey, bytes: &[u8]) -> io::Result<()> {
        let path = self.options.dir.join(key.path());
        let Some(mut partial) = self.reserve((HEADER_BYTES + bytes.len()) as u64)? else { return Ok(()) };
        let write = |file: &mut File| {
            file.write_all(&key.header(bytes.len(), xxh3_64(bytes)))?;
            file.write_all(bytes)
        };
        let folder = path.parent().expect("a block has a folder");
        let kept = write(&mut partial.file).and_then(|()| fs::create_dir_all(folder)).and_then(|()| {
            match path.exists() {
                // Another process was faster.
                true => Err(ErrorKind::AlreadyExists.into()),
                false => fs::rename(&partial.path, &path),
            }
        });
        match kept {
            Ok(()) => Ok(()),
            Err(error) => {
                self.remove(&partial.path);
                if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Reserves bytes, and creates a file of this length; `None` if there is no room.
    fn reserve(&self, bytes: u64) -> io::Result<Option<PartialBlock>> {
        if bytes > self.options.bytes {
            return Ok(None);
        }
        let mut sum = LockedSum::lock(&self.lock)?;
        if sum.get()?.saturating_add(bytes) > self.options.bytes && !self.make_room(&mut sum, bytes)? {
            return Ok(None);
        }
        let path = self.options.dir.join(PARTIAL_NAME).join(unique_suffix());
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        // Whoever counts the files finds its whole length.
        file.set_len(bytes)?;
        sum.set(sum.get()? + bytes)?;
        Ok(Some(PartialBlock { file, path }))
    }

    /// Removes blocks until `bytes` fit, and returns whether they do.
    fn make_room(&self, sum: &mut LockedSum<'_>, bytes: u64) -> io::Result<bool> {
        let mut candidates = self.candidates.lock().unwrap_or_else(PoisonError::into_inner);
        if candidates.is_empty() {
            let (total, found) = self.count_files()?;
            sum.set(total)?;
            *candidates = found;
        }
        let mut may_replace = false;
        while sum.get()?.saturating_add(bytes) > self.options.bytes {
            let Some((path, used)) = candidates.front() else { return Ok(false) };
            if !may_replace && !is_older(*used, UNUSED_AFTER) {
                if self.refused.fetch_add(1, Ordering::Relaxed) + 1 < ADMITTED_ONE_IN {
                    return Ok(false);
                }
                self.refused.store(0, Ordering::Relaxed);
                may_replace = true;
            }
            // It was used meanwhile, or another process removed it.
            let metadata = fs::metadata(path).ok();
            let is_same = metadata.as_ref().is_some_and(|now| now.modified().is_ok_and(|now| now == *used));
            if let Some(metadata) = metadata.filter(|_| is_same)
                && fs::remove_file(path).is_ok()
            {
                sum.set(sum.get()?.saturating_sub(metadata.len()))?;
            }
            candidates.pop_front();
        }
        Ok(true)
    }

    /// Returns the bytes of all files, and the least recently used blocks. Removes files that were left unfinished.
    fn count_files(&self) -> io::Result<(u64, VecDeque<(PathBuf, SystemTime)>)> {
        let mut total = 0;
        let mut blocks = Vec::new();
        // Unfinished files first: one that is renamed meanwhile is counted twice rather than not at all.
        let partial = self.options.dir.join(PARTIAL_NAME);
        for (path, metadata) in files_of(&partial)? {
            if metadata.modified().is_ok_and(|at| is_older(at, ABANDONED_AFTER))
                && fs::remove_file(&path).is_ok()
            {
                continue;
            }
            total += metadata.len();
        }
        for entry in fs::read_dir(&self.options.dir)? {
            let path = entry?.path();
            if path == partial || !path.is_dir() {
                continue;
            }
            for (path, metadata) in files_of(&path)? {
                if path.extension().is_some_and(|suffix| suffix == SUFFIX) {
                    total += metadata.len();
                    blocks.push((path, metadata.modified()?));
                }
            }
        }
        blocks.sort_unstable_by_key(|block| block.1);
        blocks.truncate(CANDIDATES);
        Ok((total, blocks.into()))
    }

    /// Removes a file and its bytes from the sum.
    fn remove(&self, path: &Path) {
        let remove = || -> io::Result<()> {
            let mut sum = LockedSum::lock(&self.lock)?;
            let bytes = fs::metadata(path)?.len();
            fs::remove_file(path)?;
            sum.set(sum.get()?.saturating_sub(bytes))
        };
        // Another process may have removed it.
        let _ = remove();
    }
}

/// A file that is being written, whose bytes are reserved.
struct PartialBlock {
    file: File,
    path: PathBuf,
}

/// The sum of the bytes of all files, locked against other processes and threads until it is dropped.
struct LockedSum<'a> {
    file: &'a File,
    _lock: std::sync::MutexGuard<'static, ()>,
}

/// Locks of files exclude other processes, not other threads that use the same open file.
static THREADS: Mutex<()> = Mutex::new(());

impl<'a> LockedSum<'a> {
    fn lock(file: &'a File) -> io::Result<Self> {
        let _lock = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        file.lock()?;
        Ok(Self { file, _lock })
    }

    fn get(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        match self.file.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(u64::from_le_bytes(bytes)),
            // A new cache.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn set(&mut self, sum: u64) -> io::Result<()> {
        self.file.write_all_at(&sum.to_le_bytes(), 0)
    }
}

impl Drop for LockedSum<'_> {
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

fn files_of(folder: &Path) -> io::Result<Vec<(PathBuf, fs::Metadata)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Another process may have removed it.
        if let Ok(metadata) = entry.metadata() {
            files.push((entry.path(), metadata));
        }
    }
    Ok(files)
}

fn is_older(time: SystemTime, than: Duration) -> bool {
    time.elapsed().is_ok_and(|age| age > than)
}

/// Notes that a block was used now. The time of its last change serves for that: many systems note no accesses.
fn note_use(file: &File) {
    let is_noted = file.metadata().and_then(|metadata| metadata.modified());
    if is_noted.is_ok_and(|used| is_older(used, NOTED_AFTER)) {
        // Without the right to do so, the block is replaced earlier.
        let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 1000;
    const FILE: u64 = (HEADER_BYTES + BLOCK) as u64;

    fn cache(dir: &Path, blocks: u64) -> BlockCache {
        BlockCache::open(CacheOptions { dir: dir.to_owned(), bytes: blocks * FILE }).unwrap()
    }

    fn key(number: u64) -> BlockKey {
        let version = Version { bytes: 1 << 40, etag: Some("\"a\"".into()) };
        BlockKey::new(Path::new("s3://clicks/train/00000.blocks"), &version, &(number..number + BLOCK as u64))
    }

    fn insert(cache: &BlockCache, number: u64) {
        cache.insert(&key(number), &[number as u8; BLOCK]);
    }

    /// Returns whether the cache has a block; if so, it is the one that was inserted.
    fn has(cache: &BlockCache, number: u64) -> bool {
        let mut bytes = vec![MaybeUninit::new(0xff); BLOCK];
        let is_hit = cache.look_up(&key(number), &mut bytes);
        // SAFETY: every byte was initialized above.
        assert!(!is_hit || bytes.iter().all(|byte| unsafe { byte.assume_init() } == number as u8));
        is_hit
    }

    fn held(cache: &BlockCache) -> u64 {
        cache.count_files().unwrap().0
    }

    /// Sets when a block was used last.
    fn used(cache: &BlockCache, number: u64, ago: Duration) {
        let file = File::options().write(true).open(cache.options.dir.join(key(number).path())).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::now() - ago)).unwrap();
    }

    #[test]
    fn a_block_has_the_url_the_version_and_the_range_in_its_key() {
        let of = |url: &str, bytes, etag: Option<&str>, range: Range<u64>| {
            BlockKey::new(Path::new(url), &Version { bytes, etag: etag.map(str::to_owned) }, &range)
        };
        let keys = [
            of("s3://a/b", 9, Some("x"), 0..4),
            of("s3://a/c", 9, Some("x"), 0..4),
            of("s3://a/b", 8, Some("x"), 0..4),
            of("s3://a/b", 9, Some("y"), 0..4),
            of("s3://a/b", 9, None, 0..4),
            of("s3://a/bx", 9, None, 0..4),
            of("s3://a/b", 9, Some("x"), 1..4),
            of("s3://a/b", 9, Some("x"), 0..5),
        ];
        for (number, key) in keys.iter().enumerate() {
            assert!(!keys[..number].contains(key), "{number}");
        }
        assert_eq!(keys[0], of("s3://a/b", 9, Some("x"), 0..4));
    }

    #[test]
    fn blocks_that_were_not_used_for_a_day_make_room_and_others_seldom() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path(), 10);
        (0..10).for_each(|number| insert(&cache, number));
        assert!((0..10).all(|number| has(&cache, number)) && held(&cache) == 10 * FILE);
        for number in 0..10 {
            let hours = if number < 2 { 25 + number } else { 10 - number };
            used(&cache, number, Duration::from_secs(hours * 3600));
        }
        // Looking a block up would count as a use.
        let is_there = |number| dir.path().join(key(number).path()).exists();
        // The least recently used first: 1, then 0.
        insert(&cache, 20);
        assert!(is_there(20) && !is_there(1) && is_there(0));
        insert(&cache, 21);
        assert!(is_there(21) && !is_there(0));
        // Of eight further blocks, the last one replaces another: the one that was used least recently.
        (30..38).for_each(|number| insert(&cache, number));
        let kept: Vec<_> = (30..38).filter(|&number| is_there(number)).collect();
        assert_eq!(kept, [37]);
        assert!(!is_there(2) && (3..10).all(is_there));
        assert_eq!(held(&cache), 10 * FILE);
        // A use counts, though the block was a candidate before.
        assert!(has(&cache, 3));
        (40..48).for_each(|number| insert(&cache, number));
        assert!(is_there(3) && !is_there(4) && is_there(47));
    }

    #[test]
    fn a_block_that_is_larger_than_the_cache_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cache = BlockCache::open(CacheOptions { dir: dir.path().to_owned(), bytes: FILE - 1 }).unwrap();
        insert(&cache, 1);
        assert!(!has(&cache, 1) && held(&cache) == 0);
    }

    #[test]
    fn threads_of_several_caches_stay_within_the_bytes() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let cache = cache(dir.path(), 50);
                scope.spawn(move || {
                    for number in 0..100 {
                        // Half of the blocks are common to all threads.
                        let number = if number % 2 == 0 { number } else { 1000 * (thread + 1) + number };
                        insert(&cache, number);
                        // Nobody else adds a file meanwhile, but each of the three may rename one, which is then
                        // counted twice.
                        let _sum = LockedSum::lock(&cache.lock).unwrap();
                        assert!(held(&cache) <= 53 * FILE);
                    }
                });
            }
        });
        let cache = cache(dir.path(), 50);
        assert!(held(&cache) <= 50 * FILE && held(&cache) > 45 * FILE);
    }

    #[test]
    fn a_sum_that_a_killed_process_left_is_put_right() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path(), 10);
        insert(&cache, 1);
        LockedSum::lock(&cache.lock).unwrap().set(u64::MAX / 2).unwrap();
        let left = dir.path().join(PARTIAL_NAME).join("left");
        fs::write(&left, [0; BLOCK]).unwrap();
        let old = FileTimes::new().set_modified(SystemTime::now() - 2 * ABANDONED_AFTER);
        File::options().write(true).open(&left).unwrap().set_times(old).unwrap();
        // A file of somebody else.
        fs::write(dir.path().join("notes"), "kept").unwrap();
        insert(&cache, 2);
        assert!(has(&cache, 1) && has(&cache, 2));
        assert!(!left.exists() && dir.path().join("notes").exists());
    }
}
