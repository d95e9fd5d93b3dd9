//! The seam between what is read (the plan, retries, order) and how: one small trait, which each rung implements and
//! tests wrap to inject faults.

use std::io;

/// A read to start.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadOp {
    /// The slab's index: names the read when it completes, so a slab has one read in flight at most.
    pub(super) slab: u32,
    /// The file's number.
    pub(super) file: u32,
    /// Where to begin in the file.
    pub(super) offset: u64,
    /// Where the bytes go, within the slab.
    pub(super) into: *mut u8,
    /// How many are wanted.
    pub(super) bytes: u32,
}

/// The end of a read.
#[derive(Debug)]
pub(super) struct Completion {
    /// The slab that was read into.
    pub(super) slab: u32,
    /// Bytes that came, fewer than wanted perhaps, 0 at the end of the file; or what the kernel said.
    pub(super) result: io::Result<u32>,
}

/// A way of reading.
pub(super) trait Backend: Send {
    /// Offsets must be multiples of this: a read that came short is resumed at one.
    fn granularity(&self) -> u32;

    /// Starts a read. Up to as many reads may be in flight as the backend was made for.
    ///
    /// # Errors
    /// Where the file cannot be opened; nothing is in flight then.
    ///
    /// # Safety
    /// `op.into` must be valid for writes of `op.bytes` bytes, and nobody else may touch these, until [`Backend::wait`]
    /// has returned the read's completion. That holds even where the backend is dropped before: a kernel that was asked
    /// to write does so.
    unsafe fn start(&mut self, op: &ReadOp) -> io::Result<()>;

    /// Waits until a read completes. Only called while reads are in flight.
    ///
    /// # Errors
    /// Where completions can no longer be had. The reads in flight must then be taken to be in flight for ever.
    fn wait(&mut self) -> io::Result<Completion>;
}

/// Says what an errno of setting up or trying a rung means, and what to do about it.
pub(super) fn explain(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::ENOSYS) => ": this kernel or sandbox has no io_uring",
        Some(libc::EPERM) => ": io_uring is refused (seccomp, or the sysctl kernel.io_uring_disabled)",
        Some(libc::ENOMEM) => ": not enough locked memory; raise RLIMIT_MEMLOCK (ulimit -l)",
        Some(libc::EMFILE) => ": too many open files; raise RLIMIT_NOFILE (ulimit -n)",
        Some(libc::EINVAL | libc::EOPNOTSUPP) => ": this file system does not support it",
        _ => "",
    };
    format!("{error}{hint}")
}
