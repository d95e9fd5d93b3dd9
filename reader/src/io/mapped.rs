//! Reading through memory maps, where nothing else works.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

use super::pool::ReadAt;

/// A file and the map of it.
///
/// Whoever cuts the file short between the check of its length and the copy ends this process with SIGBUS, and so does
/// a disk error. Every other rung reports both, which is why they come first.
pub(super) struct MappedFile {
    file: File,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl ReadAt for MappedFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let map = if file.metadata()?.len() == 0 {
            None
        } else {
            // SAFETY: the map is only ever read through a raw pointer (`read_at`), never as a slice, so bytes that
            // change under it are old or new bytes and no broken promise.
            Some(unsafe { Mmap::map(&file) }?)
        };
        Ok(Self { file, map })
    }

    unsafe fn read_at(&self, offset: u64, into: *mut u8, bytes: u32) -> io::Result<u32> {
        let Some(map) = &self.map else { return Ok(0) };
        // The length of now: pages behind the end of a file that was cut short cannot be touched.
        let end = self.file.metadata()?.len().min(map.len() as u64);
        let bytes = end.saturating_sub(offset).min(u64::from(bytes)) as u32;
        if bytes > 0 {
            // SAFETY: offset + bytes <= end <= the map's length, and the caller vouches for `into`. The map and the
            // slab are different memory.
            unsafe { map.as_ptr().add(offset as usize).copy_to_nonoverlapping(into, bytes as usize) };
        }
        Ok(bytes)
    }
}
