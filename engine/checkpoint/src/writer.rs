//! Writes long files past the page cache.
//!
//! Copying to the page cache costs about a CPU second per gigabyte, which training would lose; a direct write costs
//! the CPU almost nothing, and leaves the cache to the dataset. Disks accept direct writes only at multiples of
//! [`DIRECT_ALIGN`], so bytes are collected here in whole pages. The rest at the end, and everything on file systems
//! without direct writes, goes through the page cache.

use std::io::{self, ErrorKind};

use memmap2::{Advice, MmapMut};

use super::files::{DIRECT_ALIGN, Output, is_refused};

/// Bytes that are collected before they are written: two pieces.
const BUFFER_BYTES: usize = 16 << 20;

/// A file that is written from front to back.
pub(super) struct Writer {
    output: Box<dyn Output>,
    /// Starts with a page, and so do its bytes in the file.
    buffer: MmapMut,
    filled: usize,
    /// Whether direct writes still work.
    direct: bool,
}

impl Writer {
    /// Of an empty file.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(super) fn new(output: Box<dyn Output>) -> io::Result<Self> {
        Ok(Self { output, buffer: pages(BUFFER_BYTES)?, filled: 0, direct: true })
    }

    /// A buffer for the next bytes of the file, all of which must be set.
    ///
    /// # Errors
    /// The operating system's, for bytes that were collected before.
    pub(super) fn next(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.buffer.len() - self.filled < len {
            self.write_pages()?;
        }
        let begin = self.filled;
        if self.buffer.len() - begin < len {
            let mut longer = pages(begin + len)?;
            longer[..begin].copy_from_slice(&self.buffer[..begin]);
            self.buffer = longer;
        }
        self.filled += len;
        Ok(&mut self.buffer[begin..self.filled])
    }

    /// Writes the remaining bytes, and makes the file durable.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.write_pages()?;
        self.output.write_all(&self.buffer[..self.filled])?;
        self.output.sync()
    }

    /// Writes all whole pages; the remaining bytes move to the start of the buffer.
    fn write_pages(&mut self) -> io::Result<()> {
        let end = self.filled - self.filled % DIRECT_ALIGN;
        let mut begin = 0;
        while self.direct && begin < end {
            match self.output.write_direct(&self.buffer[begin..end]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                // After a write that ends within a page, the next one cannot be direct.
                Ok(written) => {
                    begin += written;
                    self.direct = written.is_multiple_of(DIRECT_ALIGN);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_refused(&error) => self.direct = false,
                Err(error) => return Err(error),
            }
        }
        self.output.write_all(&self.buffer[begin..end])?;
        self.buffer.copy_within(end..self.filled, 0);
        self.filled -= end;
        Ok(())
    }
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
    use std::sync::{Arc, Mutex};

    use tempfile::TempDir;

    use super::*;
    use crate::files::{Disk, Files};

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

    impl Output for Scripted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn write_direct(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut script = self.0.lock().unwrap();
            for number in [bytes.as_ptr().addr(), bytes.len(), script.bytes.len()] {
                assert!(number.is_multiple_of(DIRECT_ALIGN), "{number}");
            }
            let taken = match script.next.pop_front() {
                None => bytes.len(),
                Some(next) => next.map_err(io::Error::from_raw_os_error)?.min(bytes.len()),
            };
            script.bytes.extend_from_slice(&bytes[..taken]);
            script.direct += taken;
            Ok(taken)
        }

        fn sync(&mut self) -> io::Result<()> {
            self.0.lock().unwrap().synced = true;
            Ok(())
        }
    }

    /// Lengths whose pages start and end anywhere, some longer than the buffer.
    const LENGTHS: [usize; 9] = [0, 1, 4095, 5000, BUFFER_BYTES - 3, 4096, BUFFER_BYTES + 77, 3, 9000];

    /// Writes all lengths; returns what the file should hold then.
    fn write(output: Box<dyn Output>) -> io::Result<Vec<u8>> {
        let (mut writer, mut all) = (Writer::new(output)?, Vec::new());
        for (number, &len) in LENGTHS.iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + at / 4096 + number) as u8).collect();
            writer.next(len)?.copy_from_slice(&bytes);
            all.extend(bytes);
        }
        writer.finish()?;
        Ok(all)
    }

    #[test]
    fn bytes_come_in_order_whatever_direct_writes_do() {
        let pages = LENGTHS.iter().sum::<usize>() / DIRECT_ALIGN * DIRECT_ALIGN;
        for (next, direct) in [
            (vec![], pages..=pages),
            // Short by whole pages, and interrupted: it continues.
            (vec![Ok(4096), Err(4), Ok(8192)], pages..=pages),
            // Within a page, it continues through the page cache.
            (vec![Ok(4096), Ok(512)], 4608..=4608),
            (vec![Err(EINVAL)], 0..=0),
            (vec![Err(EOPNOTSUPP)], 0..=0),
            (vec![Ok(8192), Err(EINVAL)], 8192..=8192),
        ] {
            let output = Scripted::default();
            let what = format!("{next:?}");
            output.0.lock().unwrap().next = next.into();
            let expected = write(Box::new(output.clone())).unwrap();
            let script = output.0.lock().unwrap();
            assert!(script.bytes == expected && script.synced, "{what}");
            assert!(direct.contains(&script.direct), "{what}: {} in place of {direct:?}", script.direct);
        }
    }

    #[test]
    fn what_fails_is_an_error_and_nothing_is_synced() {
        for (next, expected) in [
            (vec![Err(ENOSPC)], ErrorKind::StorageFull),
            (vec![Ok(4096), Err(ENOSPC)], ErrorKind::StorageFull),
            (vec![Ok(4096), Ok(0)], ErrorKind::WriteZero),
        ] {
            let output = Scripted::default();
            output.0.lock().unwrap().next = next.into();
            assert_eq!(write(Box::new(output.clone())).unwrap_err().kind(), expected);
            assert!(!output.0.lock().unwrap().synced);
        }
    }

    /// On a disk, and in memory.
    #[test]
    fn files_are_what_was_written() {
        let in_memory = TempDir::new_in("/dev/shm").ok();
        for place in [TempDir::new().unwrap()].iter().chain(&in_memory) {
            let path = place.path().join("file");
            let expected = write(Disk.create(&path).unwrap()).unwrap();
            assert!(fs::read(&path).unwrap() == expected, "{path:?}");
        }
    }
}
