//! Reading with io_uring: the kernel maintains the queue, and one thread keeps a disk busy.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use super::backend::{Backend, Completion, ReadOp};
use super::request::SLAB_ALIGN;
use super::slab::{KeepAlive, SlabRing};
use super::window::FileWindow;

/// How often in a row the kernel may temporarily reject requests, and the wait after each rejection.
const BUSY_RETRIES_MAX: u32 = 500;
const BUSY_WAIT: Duration = Duration::from_millis(2);

/// The io_uring features to use.
#[derive(Debug, Clone, Copy)]
pub(super) struct UringSetup {
    /// Bypass the page cache.
    pub(super) direct: bool,
    /// Register slabs: the kernel looks up and pins their pages once instead of at every read. Pinned pages count
    /// against RLIMIT_MEMLOCK.
    pub(super) fixed_buffers: bool,
}

/// A kernel ring with its registered files and buffers.
pub(super) struct UringBackend {
    // The fields are dropped in this order: the kernel's ring releases files and buffers before they are dropped.
    ring: IoUring,
    files: FileWindow<File>,
    setup: UringSetup,
    /// Files are named by their slots in the ring's table, which saves the kernel a descriptor look-up.
    fixed_files: bool,
    /// The slot of the file that each slab's read uses, indexed by slab.
    slots: Vec<u32>,
    _memory: KeepAlive,
}

impl UringBackend {
    /// Sets up a ring for `depth` reads in flight. If the kernel cannot register files, they are named by descriptor.
    pub(super) fn new(
        paths: Arc<[PathBuf]>,
        slabs: &SlabRing,
        depth: u32,
        setup: UringSetup,
    ) -> Result<Self, String> {
        let ring = IoUring::new(depth)
            .map_err(|error| format!("cannot set up io_uring: {}", explain_setup(&error)))?;
        if setup.fixed_buffers {
            let iov_len = slabs.slab_bytes();
            let buffers: Vec<_> =
                slabs.addresses().map(|at| libc::iovec { iov_base: at.cast(), iov_len }).collect();
            // SAFETY: each range is a slab, within memory that `_memory` keeps alive until the ring is gone.
            unsafe { ring.submitter().register_buffers(&buffers) }
                .map_err(|error| format!("cannot register buffers: {}", explain_setup(&error)))?;
        }
        let files = FileWindow::new(paths);
        let fixed_files = ring.submitter().register_files(&vec![-1; files.capacity()]).is_ok();
        let slots = vec![0; slabs.slabs() as usize];
        Ok(Self { ring, files, setup, fixed_files, slots, _memory: slabs.keep_alive() })
    }

    fn open(path: &Path, direct: bool) -> io::Result<File> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        OpenOptions::new().read(true).custom_flags(flags).open(path)
    }
}

/// Describes the errno of setting up io_uring.
fn explain_setup(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::ENOSYS) => ": this kernel or sandbox does not support it",
        Some(libc::EPERM) => ": refused by seccomp, or by the sysctl kernel.io_uring_disabled",
        Some(libc::ENOMEM) => ": not enough locked memory; raise RLIMIT_MEMLOCK (ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => ": too many open files; raise RLIMIT_NOFILE (ulimit -n)",
        Some(libc::EFAULT | libc::EOPNOTSUPP) => ": the kernel cannot pin this memory",
        _ => "",
    };
    format!("{error}{hint}")
}

impl Backend for UringBackend {
    fn granularity(&self) -> u32 {
        if self.setup.direct { SLAB_ALIGN as u32 } else { 1 }
    }

    unsafe fn start(&mut self, op: &ReadOp) -> io::Result<()> {
        let lease = self.files.acquire(op.file, |path| Self::open(path, self.setup.direct))?;
        let fd = self.files.get(lease.slot).as_raw_fd();
        if lease.fresh && self.fixed_files {
            // No read in flight uses the slot, so its previous file may be closed. If the table cannot be changed,
            // descriptors work as well.
            self.fixed_files = self.ring.submitter().register_files_update(lease.slot, &[fd]).is_ok();
        }
        let (into, bytes, offset) = (op.into, op.bytes, op.offset);
        // A slab's index is its index among the registered buffers. The kernel accepts at most 2^14 of those.
        let buffer = op.slab as u16;
        let entry = match (self.setup.fixed_buffers, self.fixed_files) {
            (true, true) => {
                opcode::ReadFixed::new(types::Fixed(lease.slot), into, bytes, buffer).offset(offset).build()
            }
            (true, false) => {
                opcode::ReadFixed::new(types::Fd(fd), into, bytes, buffer).offset(offset).build()
            }
            (false, true) => opcode::Read::new(types::Fixed(lease.slot), into, bytes).offset(offset).build(),
            (false, false) => opcode::Read::new(types::Fd(fd), into, bytes).offset(offset).build(),
        };
        let entry = entry.user_data(u64::from(op.slab));
        // SAFETY: the caller keeps the bytes valid and untouched until the completion is returned. The file also
        // stays open in its slot until then: it is acquired.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.files.release(lease.slot);
            return Err(io::Error::other("more reads in flight than the queue has entries"));
        }
        self.slots[op.slab as usize] = lease.slot;
        Ok(())
    }

    fn wait(&mut self) -> io::Result<Completion> {
        let mut busy = 0;
        loop {
            // Submit queued requests first, so that the disk is not idle while its completions are processed.
            let completed = !self.ring.completion().is_empty();
            if !completed || !self.ring.submission().is_empty() {
                match self.ring.submit_and_wait(usize::from(!completed)) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error)
                        if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY))
                            && busy < BUSY_RETRIES_MAX =>
                    {
                        busy += 1;
                        std::thread::sleep(BUSY_WAIT);
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some(entry) = self.ring.completion().next() {
                let slab = entry.user_data() as u32;
                self.files.release(self.slots[slab as usize]);
                let result = u32::try_from(entry.result())
                    .map_err(|_| io::Error::from_raw_os_error(entry.result().wrapping_neg()));
                return Ok(Completion { slab, result });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_reads_pass_the_page_cache() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for direct in [false, true] {
            let opened = match UringBackend::open(file.path(), direct) {
                // Some file systems do not support direct reads.
                Err(error) if direct && error.raw_os_error() == Some(libc::EINVAL) => continue,
                opened => opened.unwrap(),
            };
            let flags = rustix::fs::fcntl_getfl(&opened).unwrap();
            assert_eq!(flags.contains(rustix::fs::OFlags::DIRECT), direct);
        }
    }
}
