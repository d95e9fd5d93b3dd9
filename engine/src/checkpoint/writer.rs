//! Bytes on their way into a long file, past the page cache.
//!
//! Copying to the page cache and keeping its books costs a processor seconds a gigabyte, which training would have had;
//! a direct write costs it hardly anything, and leaves the cache to the dataset. Disks take direct writes at multiples
//! of [`DIRECT_ALIGN`] alone, so bytes are put together here, in whole pages; the rest at the end, and everything where
//! a file system takes no direct writes, goes by way of the page cache.

use std::io::{self, ErrorKind};

use memmap2::{Advice, MmapMut};

use super::files::{DIRECT_ALIGN, Output, is_refused};

/// Bytes that are put together before they are written: two pieces.
const BUFFER_BYTES: usize = 16 << 20;

/// A file that is written from front to back.
pub(super) struct Writer {
    output: Box<dyn Output>,
    /// It begins with a page, and so do its bytes in the file.
    buffer: MmapMut,
    filled: usize,
    /// Whether direct writes have not been refused.
    direct: bool,
}

impl Writer {
    /// Of a file that is empty.
    ///
    /// # Errors
    /// Where there is no memory.
    pub(super) fn new(output: Box<dyn Output>) -> io::Result<Self> {
        Ok(Self { output, buffer: pages(BUFFER_BYTES)?, filled: 0, direct: true })
    }

    /// Room for the next bytes of the file, all of which are to be set.
    ///
    /// # Errors
    /// The operating system's, for what was put together before.
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

    /// Writes what is left, and makes the file durable.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.write_pages()?;
        self.output.write_all(&self.buffer[..self.filled])?;
        self.output.sync()
    }

    /// Writes all whole pages; what is left begins the buffer.
    fn write_pages(&mut self) -> io::Result<()> {
        let end = self.filled - self.filled % DIRECT_ALIGN;
        let mut begin = 0;
        while self.direct && begin < end {
            match self.output.write_direct(&self.buffer[begin..end]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                // Where a write ends within a page, the next one cannot be direct.
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

/// Whole pages of memory, for so many bytes at least.
fn pages(len: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(len.next_multiple_of(DIRECT_ALIGN))?;
    // Advice may be refused: it makes no difference but of speed.
    let _ = map.advise(Advice::HugePage);
    Ok(map)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::fs;
    use std::sync::{Arc, Mutex};

    use tempfile::TempDir;

    use super::super::files::{Disk, Files};
    use super::*;

    const EINVAL: i32 = 22;
    const ENOSPC: i32 = 28;
    const EOPNOTSUPP: i32 = 95;

    /// A file in memory whose direct writes do what they are told, one after the other, and then all that is asked.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Tale>>);

    #[derive(Default)]
    struct Tale {
        bytes: Vec<u8>,
        /// Of those, how many went past the page cache.
        direct: usize,
        /// Bytes to be taken, or an error of the operating system.
        next: VecDeque<Result<usize, i32>>,
        synced: bool,
    }

    impl Output for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn write_direct(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut tale = self.0.lock().unwrap();
            for number in [bytes.as_ptr().addr(), bytes.len(), tale.bytes.len()] {
                assert!(number.is_multiple_of(DIRECT_ALIGN), "{number}");
            }
            let taken = match tale.next.pop_front() {
                None => bytes.len(),
                Some(next) => next.map_err(io::Error::from_raw_os_error)?.min(bytes.len()),
            };
            tale.bytes.extend_from_slice(&bytes[..taken]);
            tale.direct += taken;
            Ok(taken)
        }

        fn sync(&mut self) -> io::Result<()> {
            self.0.lock().unwrap().synced = true;
            Ok(())
        }
    }

    /// Lengths whose pages begin and end anywhere, some longer than all that is put together.
    const LENGTHS: [usize; 9] = [0, 1, 4095, 5000, BUFFER_BYTES - 3, 4096, BUFFER_BYTES + 77, 3, 9000];

    /// Writes all lengths; what the file should hold then.
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
            // Short by whole pages, and interrupted: it goes on.
            (vec![Ok(4096), Err(4), Ok(8192)], pages..=pages),
            // Within a page it goes on otherwise.
            (vec![Ok(4096), Ok(512)], 4608..=4608),
            (vec![Err(EINVAL)], 0..=0),
            (vec![Err(EOPNOTSUPP)], 0..=0),
            (vec![Ok(8192), Err(EINVAL)], 8192..=8192),
        ] {
            let told = Told::default();
            let what = format!("{next:?}");
            told.0.lock().unwrap().next = next.into();
            let expected = write(Box::new(told.clone())).unwrap();
            let tale = told.0.lock().unwrap();
            assert!(tale.bytes == expected && tale.synced, "{what}");
            assert!(direct.contains(&tale.direct), "{what}: {} in place of {direct:?}", tale.direct);
        }
    }

    #[test]
    fn what_fails_is_an_error_and_nothing_is_synced() {
        for (next, expected) in [
            (vec![Err(ENOSPC)], ErrorKind::StorageFull),
            (vec![Ok(4096), Err(ENOSPC)], ErrorKind::StorageFull),
            (vec![Ok(4096), Ok(0)], ErrorKind::WriteZero),
        ] {
            let told = Told::default();
            told.0.lock().unwrap().next = next.into();
            assert_eq!(write(Box::new(told.clone())).unwrap_err().kind(), expected);
            assert!(!told.0.lock().unwrap().synced);
        }
    }

    /// On a disk, and where there is none.
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
