//! Reading through memory maps, used when nothing else works.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

use super::pool::ReadAt;

/// A file and its memory map.
///
/// If the file is truncated between the check of its length and the copy, this process ends with SIGBUS, as it does
/// on a disk error. All other rungs report both and are therefore preferred.
pub(super) struct MappedFile {
    file: File,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl MappedFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let map = if file.metadata()?.len() == 0 {
            None
        } else {
            // SAFETY: the map is only read through a raw pointer (`read_at`), never as a slice, so bytes that change
            // meanwhile are old or new bytes but do not violate a guarantee.
            Some(unsafe { Mmap::map(&file) }?)
        };
        Ok(Self { file, map })
    }
}

impl ReadAt for MappedFile {
    unsafe fn read_at(&self, offset: u64, into: *mut u8, bytes: u32) -> io::Result<u32> {
        let Some(map) = &self.map else { return Ok(0) };
        // The current length: pages after the end of a truncated file cannot be accessed.
        let end = self.file.metadata()?.len().min(map.len() as u64);
        let bytes = end.saturating_sub(offset).min(u64::from(bytes)) as u32;
        if bytes > 0 {
            // SAFETY: offset + bytes <= end <= the map's length, and the caller guarantees `into`. The map and the
            // slab are different memory.
            unsafe { map.as_ptr().add(offset as usize).copy_to_nonoverlapping(into, bytes as usize) };
        }
        Ok(bytes)
    }
}
