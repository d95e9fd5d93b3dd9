//! The boundary between what is read (the plan, retries, order) and how: one small trait, implemented by each rung
//! and wrapped by tests to inject faults.

use std::io;

/// A read to start.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadOp {
    /// The slab's index. It identifies the read when it completes, so a slab has at most one read in flight.
    pub(super) slab: u32,
    /// The file's number.
    pub(super) file: u32,
    /// The byte offset in the file.
    pub(super) offset: u64,
    /// The destination of the bytes, within the slab.
    pub(super) into: *mut u8,
    /// The number of bytes to read.
    pub(super) bytes: u32,
}

/// The completion of a read.
#[derive(Debug)]
pub(super) struct Completion {
    /// The index of the slab that was read into.
    pub(super) slab: u32,
    /// The number of bytes read, possibly fewer than requested, 0 at the end of the file; or the kernel's error.
    pub(super) result: io::Result<u32>,
}

/// A method of reading.
pub(super) trait Backend: Send {
    /// Returns the alignment of offsets: a short read is resumed at a multiple of this.
    fn granularity(&self) -> u32;

    /// Starts a read. The maximum number of reads in flight is fixed when the backend is created.
    ///
    /// # Errors
    /// If the file cannot be opened; no read is then in flight.
    ///
    /// # Safety
    /// `op.into` must be valid for writes of `op.bytes` bytes, and nothing else may access these bytes, until
    /// [`Backend::wait`] has returned the read's completion. That holds even if the backend is dropped earlier: the
    /// kernel still performs a write that was submitted.
    unsafe fn start(&mut self, op: &ReadOp) -> io::Result<()>;

    /// Waits until a read completes. Must only be called while reads are in flight.
    ///
    /// # Errors
    /// If completions can no longer be received. Reads in flight must then be assumed to stay in flight forever.
    fn wait(&mut self) -> io::Result<Completion>;
}

/// Describes the errno of a trial read and what to do about it.
pub(super) fn explain(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => ": too many open files; raise RLIMIT_NOFILE (ulimit -n)",
        Some(libc::EINVAL | libc::EOPNOTSUPP) => ": this file system does not support it",
        Some(libc::EFAULT) => ": the kernel cannot read into this memory",
        _ => "",
    };
    format!("its trial read failed: {error}{hint}")
}
