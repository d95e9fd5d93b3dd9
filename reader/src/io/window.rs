//! A bounded number of open files: a dataset may have thousands, but a process may open a thousand.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::options::DEPTH_MAX;

/// The maximum number of files that a reader keeps open. Two readers, for training and evaluation, stay well within
/// the default limit of 1024 descriptors per process.
pub(super) const OPEN_FILES_MAX: usize = 256;

const _: () = assert!(OPEN_FILES_MAX > DEPTH_MAX as usize, "a slot is always idle");

/// Files that are opened when needed; the least recently used one is closed to make room. `T` is an open file.
#[derive(Debug)]
pub(super) struct FileWindow<T> {
    paths: Arc<[PathBuf]>,
    slots: Vec<Slot<T>>,
    /// By file.
    slot_of: Vec<Option<u32>>,
    uses: u64,
}

#[derive(Debug)]
struct Slot<T> {
    file: u32,
    open: T,
    /// Reads in flight. A slot in use is never closed: the kernel may know it only by its number.
    in_flight: u32,
    last_use: u64,
}

/// A use of an open file, until [`FileWindow::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileLease {
    /// The slot that the file occupies.
    pub(super) slot: u32,
    /// Whether the file was just opened and is new in the slot.
    pub(super) fresh: bool,
}

impl<T> FileWindow<T> {
    pub(super) fn new(paths: Arc<[PathBuf]>) -> Self {
        let slot_of = vec![None; paths.len()];
        Self { paths, slots: Vec::new(), slot_of, uses: 0 }
    }

    /// Returns the maximum number of slots.
    pub(super) fn capacity(&self) -> usize {
        self.paths.len().min(OPEN_FILES_MAX)
    }

    /// Opens a file if it is not open, and keeps it open until released.
    pub(super) fn acquire(
        &mut self,
        file: u32,
        open: impl FnOnce(&Path) -> io::Result<T>,
    ) -> io::Result<FileLease> {
        self.uses += 1;
        if let Some(slot) = self.slot_of[file as usize] {
            let used = &mut self.slots[slot as usize];
            used.in_flight += 1;
            used.last_use = self.uses;
            return Ok(FileLease { slot, fresh: false });
        }
        let open = open(&self.paths[file as usize])?;
        let new = Slot { file, open, in_flight: 1, last_use: self.uses };
        let slot = if self.slots.len() < self.capacity() {
            self.slots.push(new);
            self.slots.len() as u32 - 1
        } else {
            let idle = self.slots.iter().enumerate().filter(|(_, slot)| slot.in_flight == 0);
            let (slot, _) = idle.min_by_key(|(_, slot)| slot.last_use).expect("fewer reads than slots");
            self.slot_of[self.slots[slot].file as usize] = None;
            self.slots[slot] = new;
            slot as u32
        };
        self.slot_of[file as usize] = Some(slot);
        Ok(FileLease { slot, fresh: true })
    }

    /// Returns the file in a slot.
    pub(super) fn get(&self, slot: u32) -> &T {
        &self.slots[slot as usize].open
    }

    /// Ends one use of a slot.
    pub(super) fn release(&mut self, slot: u32) {
        self.slots[slot as usize].in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(files: usize) -> FileWindow<PathBuf> {
        FileWindow::new((0..files).map(|file| PathBuf::from(file.to_string())).collect())
    }

    fn open(path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    #[test]
    fn a_bounded_number_of_files_is_open() {
        let mut window = window(1000);
        for round in 0..3 {
            for file in 0..1000 {
                let lease = window.acquire(file, open).unwrap();
                assert!(lease.fresh, "round {round}: the window holds fewer files than one round uses");
                assert_eq!(window.get(lease.slot), Path::new(&file.to_string()));
                window.release(lease.slot);
            }
            assert_eq!(window.slots.len(), OPEN_FILES_MAX);
            assert_eq!(window.slot_of.iter().flatten().count(), OPEN_FILES_MAX);
        }
    }

    #[test]
    fn a_file_in_use_stays_open() {
        let mut window = window(1000);
        let held = window.acquire(7, open).unwrap();
        for file in 100..900 {
            let lease = window.acquire(file, open).unwrap();
            assert_ne!(lease.slot, held.slot);
            window.release(lease.slot);
        }
        assert_eq!(window.acquire(7, open).unwrap(), FileLease { slot: held.slot, fresh: false });
    }

    #[test]
    fn the_least_recently_used_file_is_closed() {
        let mut window = window(1000);
        let mut is_opened = |file: u32| {
            let lease = window.acquire(file, open).unwrap();
            window.release(lease.slot);
            lease.fresh
        };
        let full = OPEN_FILES_MAX as u32;
        assert!((0..full).all(&mut is_opened));
        assert!(!is_opened(0), "it is open and reused");
        assert!(is_opened(full));
        assert!(!is_opened(0) && !is_opened(2) && is_opened(1));
    }

    #[test]
    fn a_file_that_cannot_be_opened_uses_no_slot() {
        let mut window = window(2);
        assert!(window.acquire(0, |_| Err(io::ErrorKind::NotFound.into())).is_err());
        assert!(window.slots.is_empty() && window.slot_of == [None, None]);
    }
}
