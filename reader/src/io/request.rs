//! What is asked of a reader.

/// Slabs start at multiples of this, and so must what is read into them: `O_DIRECT` wants it on any disk of today.
pub const SLAB_ALIGN: usize = 4096;

/// A range of bytes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// The number of the file among those that the reader was given.
    pub file: u32,
    /// Where it begins, a multiple of [`SLAB_ALIGN`].
    pub offset: u64,
    /// Its length, at most a slab's. Where it is no multiple of [`SLAB_ALIGN`], whole pages are asked for: what lies
    /// behind the range is read, where there is anything, and is no part of the slab.
    pub bytes: u32,
}

impl ReadRequest {
    /// Bytes that are asked for: direct I/O knows whole pages only.
    pub(super) fn padded_bytes(&self) -> u32 {
        self.bytes.next_multiple_of(SLAB_ALIGN as u32)
    }
}
