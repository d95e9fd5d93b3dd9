//! Memory for the rows of tables.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut};

/// Bytes from which on huge pages are of use: the size of one.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The size of the smallest pages.
const PAGE_BYTES: usize = 4096;

/// Floats, zeros at first, from the beginning of a page on, so that a row of 16 elements is one cache line; on huge
/// pages where the system grants them: look-ups go to random places, and with pages of 4 KiB each would wait for the
/// page tables too. Memory that was never written takes none, up to the size of a page.
#[derive(Debug)]
pub(crate) struct Memory {
    map: MmapMut,
}

impl Memory {
    /// `len` zeros. Where the system has no room for them, the process ends, as with every allocation.
    pub(crate) fn zeroed(len: usize) -> Self {
        let layout = Layout::array::<f32>(len).expect("a table has fewer bytes than addresses");
        let map = MmapMut::map_anon(layout.size()).unwrap_or_else(|_| handle_alloc_error(layout));
        if layout.size() >= HUGE_PAGE_BYTES {
            // Advice may be refused: it makes no difference but of speed.
            let _ = map.advise(Advice::HugePage);
        }
        Self { map }
    }

    /// Has the system hand out all pages now, rather than each when it is written first.
    pub(crate) fn populate(&mut self) {
        // A write a page: as one call for all pages, it would have other threads wait for memory of theirs.
        self.map.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 0);
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
