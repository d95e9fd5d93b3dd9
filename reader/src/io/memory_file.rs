//! Files that are stored only in memory: in a tmpfs such as `/dev/shm`.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};
use rustix::fs::FallocateFlags;

/// Returns whether a file is stored only in memory.
pub fn is_in_memory(file: &File) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|about| [TMPFS, RAMFS].contains(&about.f_type))
}

/// Bytes that are mapped at a time.
const REGION_BYTES: u64 = 1 << 30;

/// A file in memory that several threads write by copying to its mapped pages: a tmpfs admits one writer of a file at a
/// time, but any number of threads may change mapped pages.
#[derive(Debug)]
pub struct MappedOutput {
    file: File,
    /// Its parts of [`REGION_BYTES`], as far as they were written.
    regions: Mutex<Vec<Option<Arc<MmapRaw>>>>,
    /// The length of the file.
    len: Mutex<u64>,
}

impl MappedOutput {
    /// Of an empty file that is open for reading and writing. Nobody else may change it.
    pub fn new(file: File) -> Self {
        Self { file, regions: Mutex::default(), len: Mutex::default() }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes bytes at an offset, a multiple of the page size. Threads must write different bytes.
    ///
    /// # Errors
    /// The operating system's: if there is no room for the bytes, or if the file system does not support this.
    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.grow(offset + bytes.len() as u64)?;
        let mut done = 0;
        while done < bytes.len() {
            let (region, at) = ((offset + done as u64) / REGION_BYTES, (offset + done as u64) % REGION_BYTES);
            let len = (bytes.len() - done).min((REGION_BYTES - at) as usize);
            self.copy(&bytes[done..done + len], region, at as usize)?;
            done += len;
        }
        Ok(())
    }

    /// Makes the file at least this long.
    fn grow(&self, end: u64) -> io::Result<()> {
        let mut len = self.len.lock().unwrap_or_else(PoisonError::into_inner);
        if *len < end {
            self.file.set_len(end)?;
            *len = end;
        }
        Ok(())
    }

    /// Copies bytes to a region that has room for them.
    fn copy(&self, bytes: &[u8], region: u64, at: usize) -> io::Result<()> {
        let map = self.region(region)?;
        match map.advise_range(Advice::PopulateWrite, at, bytes.len()) {
            Ok(()) => {}
            // A copy would end the process with SIGBUS.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                return Err(ErrorKind::StorageFull.into());
            }
            // Before Linux 5.14; allocating takes turns.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                let place = region * REGION_BYTES + at as u64;
                rustix::fs::fallocate(&self.file, FallocateFlags::empty(), place, bytes.len() as u64)?;
            }
            Err(error) => return Err(error),
        }
        // SAFETY: the file has these pages, and only this thread writes them now.
        unsafe { map.as_mut_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // Each thread unmaps its pages, or the last owner of the region would unmap all. The advice only affects speed.
        // SAFETY: the pages are the file's, which keeps what was copied.
        let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, at, bytes.len()) };
        Ok(())
    }

    fn region(&self, number: u64) -> io::Result<Arc<MmapRaw>> {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let number = number as usize;
        if regions.len() <= number {
            regions.resize(number + 1, None);
        }
        if let Some(map) = &regions[number] {
            return Ok(Arc::clone(map));
        }
        let options =
            MmapOptions::new().offset(number as u64 * REGION_BYTES).len(REGION_BYTES as usize).clone();
        Ok(Arc::clone(regions[number].insert(Arc::new(options.map_raw(&self.file)?))))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::thread;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn threads_write_a_file_in_memory() {
        const PIECE: usize = 12_288;
        let Ok(folder) = TempDir::new_in("/dev/shm") else { return };
        let path = folder.path().join("file");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        assert!(is_in_memory(&file));
        let output = MappedOutput::new(file);
        let piece = |number: usize| -> Vec<u8> { (0..PIECE).map(|at| (at * 7 + number) as u8).collect() };
        thread::scope(|scope| {
            for number in (0..16).rev() {
                let output = &output;
                scope.spawn(move || output.write(&piece(number), (number * PIECE) as u64).unwrap());
            }
        });
        output.write(&[], 0).unwrap();
        assert!(fs::read(&path).unwrap() == (0..16).flat_map(piece).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_cross_from_one_region_to_the_next() {
        let Ok(folder) = TempDir::new_in("/dev/shm") else { return };
        let path = folder.path().join("file");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        let output = MappedOutput::new(file);
        let bytes: Vec<u8> = (0..8192_u32).map(|at| (at % 251) as u8).collect();
        output.write(&bytes, REGION_BYTES - 4096).unwrap();
        let mut found = vec![0; bytes.len()];
        output.file().read_exact_at(&mut found, REGION_BYTES - 4096).unwrap();
        assert_eq!(found, bytes);
        assert_eq!(output.file().metadata().unwrap().len(), REGION_BYTES + 4096);
        // The pages before were never written, and take no memory.
        assert!(output.file().metadata().unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn a_file_that_must_not_grow_is_an_error() {
        let Ok(folder) = TempDir::new_in("/dev/shm") else { return };
        let path = folder.path().join("file");
        fs::write(&path, [1]).unwrap();
        assert!(MappedOutput::new(File::open(&path).unwrap()).write(&[2; 4096], 0).is_err());
        assert_eq!(fs::read(&path).unwrap(), [1]);
    }
}
