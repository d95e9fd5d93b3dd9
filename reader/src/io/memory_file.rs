//! Files that are stored only in memory: in a tmpfs such as `/dev/shm`.

use std::fs::File;
use std::io;

use memmap2::MmapOptions;
use rustix::fs::FallocateFlags;

/// Returns whether a file is stored only in memory.
pub fn is_in_memory(file: &File) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|about| [TMPFS, RAMFS].contains(&about.f_type))
}

/// Writes bytes at an offset, a multiple of the page size, of a file that is open for reading and writing: they are
/// copied to mapped pages. Several threads may do so at the same time, at different offsets; nobody else may change the
/// file meanwhile.
///
/// # Errors
/// The operating system's: if there is no room for the bytes, or if the file system does not support this.
pub fn write_mapped(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    // Without this, a page that finds no room would end the process with SIGBUS.
    rustix::fs::fallocate(file, FallocateFlags::empty(), offset, bytes.len() as u64)?;
    // SAFETY: the file has these pages, and nobody else has this part of it.
    let mut map = unsafe { MmapOptions::new().offset(offset).len(bytes.len()).map_mut(file) }?;
    map.copy_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
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
        let piece = |number: usize| -> Vec<u8> { (0..PIECE).map(|at| (at * 7 + number) as u8).collect() };
        thread::scope(|scope| {
            for number in (0..16).rev() {
                let file = &file;
                scope.spawn(move || write_mapped(file, &piece(number), (number * PIECE) as u64).unwrap());
            }
        });
        write_mapped(&file, &[], 0).unwrap();
        assert!(fs::read(&path).unwrap() == (0..16).flat_map(piece).collect::<Vec<_>>());
    }

    #[test]
    fn a_file_that_must_not_grow_is_an_error() {
        let Ok(folder) = TempDir::new_in("/dev/shm") else { return };
        let path = folder.path().join("file");
        fs::write(&path, [1]).unwrap();
        assert!(write_mapped(&File::open(&path).unwrap(), &[2; 4096], 0).is_err());
        assert_eq!(fs::read(&path).unwrap(), [1]);
    }
}
