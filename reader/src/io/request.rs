//! Read requests.

/// Alignment of slabs and of reads into them, which `O_DIRECT` requires on current disks.
pub const SLAB_ALIGN: usize = 4096;

/// A range of bytes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// The index of the file in the reader's list.
    pub file: u32,
    /// The byte offset, a multiple of [`SLAB_ALIGN`].
    pub offset: u64,
    /// The length, at most that of a slab. If it is not a multiple of [`SLAB_ALIGN`], whole pages are requested:
    /// bytes after the range are read if they exist, but are not part of the slab.
    pub bytes: u32,
}

impl ReadRequest {
    /// Returns the number of bytes to request: direct I/O only reads whole pages.
    pub(super) fn padded_bytes(&self) -> u32 {
        self.bytes.next_multiple_of(SLAB_ALIGN as u32)
    }
}

/// What comes next, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next<T> {
    /// This.
    Known(T),
    /// It is not known yet.
    Later,
    /// Nothing: this was all.
    End,
}

/// Where the thread that reads takes its requests from. Every iterator over requests is one.
pub trait Requests: Send + 'static {
    /// Returns the next request. If it is not known yet, waits for it if `waits`: then nothing else is to be done.
    fn next(&mut self, waits: bool) -> Next<ReadRequest>;
}

impl<I: Iterator<Item = ReadRequest> + Send + 'static> Requests for I {
    fn next(&mut self, _: bool) -> Next<ReadRequest> {
        Iterator::next(self).map_or(Next::End, Next::Known)
    }
}
