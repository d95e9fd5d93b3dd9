//! Writes long files on several threads, past the page cache if possible.
//!
//! Copying to the page cache costs about a CPU second per gigabyte, which training would lose; a direct write costs
//! the CPU almost nothing, and leaves the cache to the dataset. Disks accept direct writes only at multiples of
//! [`DIRECT_ALIGN`], so bytes are collected here in whole pages. The rest at the end, and everything on file systems
//! without direct writes, goes through the page cache.
//!
//! One thread does not keep a disk busy, nor the memory of a tmpfs: threads write stripes of the buffers that are full,
//! and compute their checksums, while the caller fills the next one.

use std::io::{self, ErrorKind};
use std::mem;
use std::ops::Range;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};
use memmap2::{Advice, MmapMut};
use rankine_base::sealed::Checksum;
use xxhash_rust::xxh3::xxh3_64;

use super::files::{DIRECT_ALIGN, Output, is_refused, processors};
use super::stripes::{STRIPE_BYTES, checksum_of_stripes};

/// Bytes that are collected before they are written: two pieces of a checkpoint.
const BUFFER_BYTES: usize = 16 << 20;
/// Buffers of a file: one is filled while the others are written.
const BUFFERS: usize = 4;
/// Threads that write a file, if there are as many processors.
const THREADS_MAX: usize = 8;

/// A file that is written from front to back.
pub struct Writer {
    file: Arc<WrittenFile>,
    /// The buffer that is filled. It starts with a page, and its bytes with a stripe of the file.
    buffer: MmapMut,
    filled: usize,
    /// The place of the buffer in the file.
    begin: u64,
    /// Buffers beside that one that were allocated.
    others: usize,
    /// Those that were written.
    written: Receiver<MmapMut>,
    recycle: Sender<MmapMut>,
    /// Started when the first buffer is full.
    threads: Vec<JoinHandle<()>>,
    stripes: Option<Sender<Stripe>>,
}

/// What threads need to know of a file.
struct WrittenFile {
    output: Box<dyn Output>,
    /// Whether direct writes still work.
    direct: AtomicBool,
    /// Whether the rest is not to be written.
    given_up: AtomicBool,
    /// The first error of a thread.
    error: Mutex<Option<io::Error>>,
    /// The checksums of stripes, with the places where they begin, if the file's checksum is requested.
    sums: Option<Mutex<Vec<(u64, u64)>>>,
}

/// A part of a full buffer.
struct Stripe {
    buffer: Arc<FullBuffer>,
    range: Range<usize>,
    /// Its place in the file.
    offset: u64,
}

/// A buffer whose memory is used again once no thread writes it.
struct FullBuffer {
    pages: Option<MmapMut>,
    recycle: Sender<MmapMut>,
}

impl Drop for FullBuffer {
    fn drop(&mut self) {
        // If the writer is gone, the memory is freed.
        let _ = self.pages.take().map(|pages| self.recycle.send(pages));
    }
}

impl Writer {
    /// Of an empty file.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(output: Box<dyn Output>) -> io::Result<Self> {
        Self::start(output, None)
    }

    /// The same; [`Writer::finish`] returns the checksum of the file, by stripes of [`STRIPE_BYTES`].
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn with_checksum(output: Box<dyn Output>) -> io::Result<Self> {
        Self::start(output, Some(Mutex::default()))
    }

    fn start(output: Box<dyn Output>, sums: Option<Mutex<Vec<(u64, u64)>>>) -> io::Result<Self> {
        let (recycle, written) = unbounded();
        let file = WrittenFile {
            output,
            direct: AtomicBool::new(true),
            given_up: AtomicBool::new(false),
            error: Mutex::default(),
            sums,
        };
        Ok(Self {
            file: Arc::new(file),
            buffer: pages(BUFFER_BYTES)?,
            filled: 0,
            begin: 0,
            others: 0,
            written,
            recycle,
            threads: Vec::new(),
            stripes: None,
        })
    }

    /// A buffer for the next bytes of the file, all of which must be set.
    ///
    /// # Errors
    /// The operating system's, for bytes that were collected before.
    pub fn next(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.buffer.len() - self.filled < len {
            self.hand_over(len)?;
        }
        let begin = self.filled;
        self.filled += len;
        Ok(&mut self.buffer[begin..self.filled])
    }

    /// Writes the remaining bytes, and makes the file durable; returns its checksum if that was requested.
    ///
    /// # Errors
    /// The operating system's.
    pub fn finish(mut self) -> io::Result<Option<Checksum>> {
        let whole = whole_pages(self.filled);
        self.file.write(&self.buffer[..whole], self.begin)?;
        self.join();
        self.file.check()?;
        let rest = &self.buffer[whole..self.filled];
        self.file.output.write_all_at(rest, self.begin + whole as u64)?;
        self.file.output.sync()?;
        let Some(sums) = &self.file.sums else { return Ok(None) };
        let mut sums = mem::take(&mut *sums.lock().unwrap_or_else(PoisonError::into_inner));
        sums.sort_unstable();
        let last = self.buffer[..self.filled].chunks(STRIPE_BYTES).map(xxh3_64);
        Ok(Some(checksum_of_stripes(sums.into_iter().map(|(_, sum)| sum).chain(last))))
    }

    /// Hands all whole stripes over to the threads; the remaining bytes move to the start of another buffer, which has
    /// room for `len` more.
    fn hand_over(&mut self, len: usize) -> io::Result<()> {
        self.file.check()?;
        let whole = self.filled - self.filled % STRIPE_BYTES;
        let rest = self.filled - whole;
        let mut next = self.free_buffer()?;
        if next.len() < rest + len {
            // The rest of the next hand-over may be longer.
            next = pages(STRIPE_BYTES + len)?;
        }
        next[..rest].copy_from_slice(&self.buffer[whole..self.filled]);
        let full = mem::replace(&mut self.buffer, next);
        let buffer = Arc::new(FullBuffer { pages: Some(full), recycle: self.recycle.clone() });
        let stripes = self.start_threads()?;
        for start in (0..whole).step_by(STRIPE_BYTES) {
            let range = start..start + STRIPE_BYTES;
            let offset = self.begin + start as u64;
            let sent = stripes.send(Stripe { buffer: Arc::clone(&buffer), range, offset });
            sent.map_err(|_| io::Error::other("the threads that write the file have ended"))?;
        }
        (self.begin, self.filled) = (self.begin + whole as u64, rest);
        Ok(())
    }

    /// A buffer that no thread writes.
    fn free_buffer(&mut self) -> io::Result<MmapMut> {
        if let Ok(free) = self.written.try_recv() {
            return Ok(free);
        }
        if self.others + 1 < BUFFERS {
            self.others += 1;
            return pages(BUFFER_BYTES);
        }
        Ok(self.written.recv().expect("this writer has a sender, too"))
    }

    fn start_threads(&mut self) -> io::Result<Sender<Stripe>> {
        if let Some(stripes) = &self.stripes {
            return Ok(stripes.clone());
        }
        let (sender, stripes) = unbounded();
        for _ in 0..threads() {
            let (file, stripes) = (Arc::clone(&self.file), stripes.clone());
            let thread = thread::Builder::new().name("rankine-writer".into());
            self.threads.push(thread.spawn(move || file.write_stripes(&stripes))?);
        }
        Ok(self.stripes.insert(sender).clone())
    }

    /// Waits until the threads have written what they have.
    fn join(&mut self) {
        self.stripes = None;
        for thread in self.threads.drain(..) {
            if let Err(panicked) = thread.join()
                && !thread::panicking()
            {
                panic::resume_unwind(panicked);
            }
        }
    }
}

impl FullBuffer {
    fn pages(&self) -> &[u8] {
        self.pages.as_ref().expect("the buffer is dropped last")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.file.given_up.store(true, Ordering::Relaxed);
        self.join();
    }
}

impl WrittenFile {
    fn write_stripes(&self, stripes: &Receiver<Stripe>) {
        for Stripe { buffer, range, offset } in stripes {
            let bytes = &buffer.pages()[range];
            if let Some(sums) = &self.sums {
                let sum = xxh3_64(bytes);
                sums.lock().unwrap_or_else(PoisonError::into_inner).push((offset, sum));
            }
            if !self.given_up.load(Ordering::Relaxed)
                && let Err(error) = self.write(bytes, offset)
            {
                self.error().get_or_insert(error);
                self.given_up.store(true, Ordering::Release);
            }
        }
    }

    fn error(&self) -> MutexGuard<'_, Option<io::Error>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error of a thread.
    fn check(&self) -> io::Result<()> {
        if !self.given_up.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.error().take().unwrap_or_else(|| io::Error::other("an earlier write failed")))
    }

    /// Writes whole pages to a page of the file.
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        // After a write that ends within a page, the next one cannot be direct.
        while self.direct.load(Ordering::Relaxed) && done < bytes.len() && done % DIRECT_ALIGN == 0 {
            match self.output.write_direct_at(&bytes[done..], offset + done as u64) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_refused(&error) => self.direct.store(false, Ordering::Relaxed),
                Err(error) => return Err(error),
            }
        }
        self.output.write_all_at(&bytes[done..], offset + done as u64)
    }
}

fn threads() -> usize {
    processors().min(THREADS_MAX)
}

/// The bytes of the whole pages of a buffer.
fn whole_pages(filled: usize) -> usize {
    filled - filled % DIRECT_ALIGN
}

/// Whole pages of memory for at least this many bytes.
fn pages(len: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(len.next_multiple_of(DIRECT_ALIGN))?;
    // The advice may be refused: it only affects speed.
    let _ = map.advise(Advice::HugePage);
    Ok(map)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::fs;
    use std::sync::Condvar;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;
    use crate::files::{Disk, Files};
    use crate::stripes::striped_checksum;

    const EINVAL: i32 = 22;
    const ENOSPC: i32 = 28;
    const EOPNOTSUPP: i32 = 95;

    /// A file in memory whose direct writes give the prepared outcomes, one after the other, and then write
    /// everything.
    #[derive(Clone, Default)]
    struct Scripted(Arc<Mutex<Script>>);

    #[derive(Default)]
    struct Script {
        bytes: Vec<u8>,
        /// Of those, how many went past the page cache.
        direct: usize,
        /// Bytes to accept, or an error of the operating system.
        next: VecDeque<Result<usize, i32>>,
        synced: bool,
    }

    impl Script {
        fn put(&mut self, bytes: &[u8], offset: u64) -> usize {
            let range = offset as usize..offset as usize + bytes.len();
            let len = self.bytes.len().max(range.end);
            self.bytes.resize(len, 0);
            self.bytes[range].copy_from_slice(bytes);
            bytes.len()
        }
    }

    impl Output for Scripted {
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
            Ok(self.0.lock().unwrap().put(bytes, offset))
        }

        fn write_direct_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
            let mut script = self.0.lock().unwrap();
            for number in [bytes.as_ptr().addr(), bytes.len(), offset as usize] {
                assert!(number.is_multiple_of(DIRECT_ALIGN), "{number}");
            }
            let taken = match script.next.pop_front() {
                None => bytes.len(),
                Some(next) => next.map_err(io::Error::from_raw_os_error)?.min(bytes.len()),
            };
            script.direct += taken;
            Ok(script.put(&bytes[..taken], offset))
        }

        fn sync(&self) -> io::Result<()> {
            self.0.lock().unwrap().synced = true;
            Ok(())
        }
    }

    /// Lengths whose pages start and end anywhere, some longer than the buffer; several times as many bytes as the
    /// buffers of a file.
    const LENGTHS: [usize; 12] = [
        0,
        1,
        4095,
        5000,
        BUFFER_BYTES - 3,
        4096,
        BUFFER_BYTES + 77,
        3,
        9000,
        BUFFER_BYTES,
        2 * BUFFER_BYTES + 1,
        BUFFER_BYTES / 2,
    ];

    /// Writes all lengths; returns what the file should hold then.
    fn write(output: Box<dyn Output>, lengths: &[usize]) -> io::Result<Vec<u8>> {
        let (mut writer, mut all) = (Writer::with_checksum(output)?, Vec::new());
        for (number, &len) in lengths.iter().enumerate() {
            let mut bytes = vec![number as u8; len];
            let words = bytes.chunks_exact_mut(1000).enumerate();
            words.for_each(|(at, bytes)| bytes[..8].copy_from_slice(&(at * 31 + number).to_le_bytes()));
            writer.next(len)?.copy_from_slice(&bytes);
            all.extend(bytes);
        }
        assert_eq!(writer.finish()?, Some(striped_checksum(&all, STRIPE_BYTES)));
        Ok(all)
    }

    #[test]
    fn all_bytes_are_in_their_place_whatever_direct_writes_do() {
        let pages = whole_pages(LENGTHS.iter().sum());
        let stripe = STRIPE_BYTES;
        for (next, direct) in [
            (vec![], pages..=pages),
            // Short by whole pages, and interrupted: it continues.
            (vec![Ok(4096), Err(4), Ok(8192)], pages..=pages),
            // Within a page, the rest of this stripe goes through the page cache.
            (vec![Ok(512)], pages - stripe..=pages - 1),
            // Other threads may have begun to write.
            (vec![Err(EINVAL)], 0..=threads() * stripe),
            (vec![Err(EOPNOTSUPP)], 0..=threads() * stripe),
        ] {
            let output = Scripted::default();
            let what = format!("{next:?}");
            output.0.lock().unwrap().next = next.into();
            let expected = write(Box::new(output.clone()), &LENGTHS).unwrap();
            let script = output.0.lock().unwrap();
            assert!(script.bytes == expected && script.synced, "{what}");
            assert!(direct.contains(&script.direct), "{what}: {} in place of {direct:?}", script.direct);
        }
    }

    #[test]
    fn a_file_that_fits_into_a_buffer_needs_no_thread() {
        for (next, direct) in [(vec![], 8192), (vec![Ok(4096), Ok(512)], 4608), (vec![Err(EINVAL)], 0)] {
            let output = Scripted::default();
            output.0.lock().unwrap().next = next.into();
            let expected = write(Box::new(output.clone()), &[5000, 4000]).unwrap();
            let script = output.0.lock().unwrap();
            assert!(script.bytes == expected && script.synced);
            assert_eq!(script.direct, direct);
        }
    }

    #[test]
    fn what_fails_is_an_error_and_nothing_is_synced() {
        for lengths in [&LENGTHS[..], &[9000]] {
            for (next, expected) in [
                (vec![Err(ENOSPC)], ErrorKind::StorageFull),
                (vec![Ok(4096), Err(ENOSPC)], ErrorKind::StorageFull),
                (vec![Ok(4096), Ok(0)], ErrorKind::WriteZero),
            ] {
                let output = Scripted::default();
                output.0.lock().unwrap().next = next.into();
                assert_eq!(write(Box::new(output.clone()), lengths).unwrap_err().kind(), expected);
                assert!(!output.0.lock().unwrap().synced);
            }
        }
    }

    /// A file on which the first writes end only when each thread has begun one.
    struct Together(Mutex<usize>, Condvar);

    impl Output for Together {
        fn write_at(&self, bytes: &[u8], _: u64) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn write_direct_at(&self, bytes: &[u8], _: u64) -> io::Result<usize> {
            let Self(begun, all) = self;
            *begun.lock().unwrap() += 1;
            all.notify_all();
            let patience = Duration::from_secs(60);
            let waited = all.wait_timeout_while(begun.lock().unwrap(), patience, |begun| *begun < threads());
            if waited.unwrap().1.timed_out() { Err(ErrorKind::TimedOut.into()) } else { Ok(bytes.len()) }
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn threads_write_at_the_same_time() {
        let file = Together(Mutex::default(), Condvar::new());
        write(Box::new(file), &[BUFFER_BYTES, 1]).unwrap();
    }

    /// A file whose threads take long, and which cannot be synced before all bytes are written.
    #[derive(Default)]
    struct Slow(Mutex<usize>);

    impl Output for Slow {
        fn write_at(&self, bytes: &[u8], _: u64) -> io::Result<usize> {
            *self.0.lock().unwrap() += bytes.len();
            Ok(bytes.len())
        }

        fn write_direct_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
            thread::sleep(Duration::from_millis(50));
            self.write_at(bytes, offset)
        }

        fn sync(&self) -> io::Result<()> {
            let all = *self.0.lock().unwrap() == BUFFER_BYTES + 1;
            if all { Ok(()) } else { Err(ErrorKind::Other.into()) }
        }
    }

    #[test]
    fn a_file_is_synced_after_all_writes() {
        write(Box::new(Slow::default()), &[BUFFER_BYTES, 1]).unwrap();
    }

    /// On a disk, and in memory.
    #[test]
    fn files_are_what_was_written() {
        let in_memory = TempDir::new_in("/dev/shm").ok();
        for place in [TempDir::new().unwrap()].iter().chain(&in_memory) {
            let path = place.path().join("file");
            let expected = write(Disk.create(&path).unwrap(), &LENGTHS).unwrap();
            assert!(fs::read(&path).unwrap() == expected, "{path:?}");
        }
    }
}
