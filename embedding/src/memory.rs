//! Memory for the rows of tables.

use std::alloc::{Layout, handle_alloc_error};
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::thread;

use memmap2::{Advice, MmapMut, MmapOptions};

/// The size of a huge page. Smaller allocations do not benefit from huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The size of the smallest pages.
const PAGE_BYTES: usize = 4096;

/// The most threads that have the system allocate pages.
const POPULATE_THREADS_MAX: usize = 4;

/// Floats: those of a file, or zero-initialized ones, which are aligned to a page, so that a row of 16 elements is one
/// cache line. These are in huge pages if the system grants them: look-ups access random addresses, and with 4 KiB
/// pages each would wait for the page tables as well. Memory that was never written takes no pages.
#[derive(Debug)]
pub(crate) struct Memory {
    map: MmapMut,
}

impl Memory {
    /// Allocates `len` zeros. If the system has no memory for them, the process aborts, as with every allocation.
    pub(crate) fn zeroed(len: usize) -> Self {
        let layout = Layout::array::<f32>(len).expect("a table has fewer bytes than addresses");
        let map = MmapMut::map_anon(layout.size()).unwrap_or_else(|_| handle_alloc_error(layout));
        if layout.size() >= HUGE_PAGE_BYTES {
            // The advice may be refused; that affects only speed.
            let _ = map.advise(Advice::HugePage);
        }
        Self { map }
    }

    /// Maps `len` floats of a file. Pages are shared with other processes until they are written to, which does not
    /// change the file.
    ///
    /// # Safety
    /// The file must not change as long as this lives. If it is truncated, access ends the process.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 4.
    pub(crate) unsafe fn of_file(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        assert_eq!(offset % 4, 0, "floats are aligned");
        let mut options = MmapOptions::new();
        // Nothing is written, so that no memory needs to be reserved.
        options.offset(offset).len(len * size_of::<f32>()).no_reserve_swap();
        // SAFETY: the caller vouches for the file.
        let map = unsafe { options.map_copy(file) }?;
        // Otherwise each page is mapped when it is first read. Old systems refuse.
        let _ = map.advise(Advice::PopulateRead);
        Ok(Self { map })
    }

    /// Makes the system allocate all pages now rather than when each is first written.
    pub(crate) fn populate(&mut self) {
        // Most processors stay with the training that runs meanwhile.
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = (processors / 4).clamp(1, POPULATE_THREADS_MAX);
        let part = self.map.len().div_ceil(threads).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        // One write per page: a single call for all pages would block other threads' page faults.
        let write = |pages: &mut [u8]| pages.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 0);
        thread::scope(|scope| {
            self.map.chunks_mut(part).for_each(|pages| {
                scope.spawn(move || write(pages));
            });
        });
    }
}

impl Deref for Memory {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.map)
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.map)
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len());
        copy.copy_from_slice(self);
        copy
    }
}
