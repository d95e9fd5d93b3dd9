//! Reading with blocking threads: the rungs without io_uring.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::backend::{Backend, Completion, ReadOp};
use super::window::FileWindow;

/// A file that can be read at any offset by any thread.
pub(super) trait ReadAt: Send + Sync + Sized + 'static {
    /// Reads up to `bytes` bytes; 0 at the end of the file.
    ///
    /// # Safety
    /// `into` must be valid for writes of `bytes` bytes, and nothing else may access these bytes.
    unsafe fn read_at(&self, offset: u64, into: *mut u8, bytes: u32) -> io::Result<u32>;
}

impl ReadAt for File {
    unsafe fn read_at(&self, offset: u64, into: *mut u8, bytes: u32) -> io::Result<u32> {
        // SAFETY: the caller guarantees the buffer, which may be uninitialized.
        let into = unsafe { slice::from_raw_parts_mut(into.cast::<MaybeUninit<u8>>(), bytes as usize) };
        let (read, _) = rustix::io::pread(self, into, offset)?;
        Ok(read.len() as u32)
    }
}

/// Opens a file.
type Open<F> = Box<dyn Fn(&Path) -> io::Result<F> + Send>;

/// Threads that each perform one read at a time.
pub(super) struct PoolBackend<F: ReadAt> {
    open: Open<F>,
    files: FileWindow<Arc<F>>,
    /// The slot of the file that each slab's read uses, indexed by slab.
    slots: Vec<u32>,
    jobs: Option<Sender<Job<F>>>,
    done: Receiver<Completion>,
    threads: Vec<JoinHandle<()>>,
}

struct Job<F> {
    file: Arc<F>,
    op: ReadOp,
}

// SAFETY: `op.into` is the only part of a job that is not `Send` by itself. The caller that starts a read guarantees
// that nothing else accesses the bytes behind it until the completion is returned, on whatever thread they are
// written.
unsafe impl<F: ReadAt> Send for Job<F> {}

impl<F: ReadAt> PoolBackend<F> {
    /// Starts `threads` threads for reads into as many slabs as the ring has. `open` opens a file.
    pub(super) fn new(
        paths: Arc<[PathBuf]>,
        slabs: u32,
        threads: u32,
        open: impl Fn(&Path) -> io::Result<F> + Send + 'static,
    ) -> io::Result<Self> {
        // A capacity of one per slab bounds what is in flight, so sending never blocks.
        let (jobs, job_in) = bounded::<Job<F>>(slabs as usize);
        let (done_out, done) = bounded(slabs as usize);
        let thread = |number| {
            let (job_in, done_out) = (job_in.clone(), done_out.clone());
            std::thread::Builder::new().name(format!("rankine-read-{number}")).spawn(move || {
                for Job { file, op } in job_in {
                    // SAFETY: `Backend::start` requires of its caller what `read_at` requires, until the completion
                    // has been returned, and it has not even been sent yet.
                    let result = unsafe { file.read_at(op.offset, op.into, op.bytes) };
                    if done_out.send(Completion { slab: op.slab, result }).is_err() {
                        break;
                    }
                }
            })
        };
        let threads = (0..threads).map(thread).collect::<io::Result<_>>()?;
        let files = FileWindow::new(paths);
        let slots = vec![0; slabs as usize];
        Ok(Self { open: Box::new(open), files, slots, jobs: Some(jobs), done, threads })
    }
}

impl<F: ReadAt> Backend for PoolBackend<F> {
    fn granularity(&self) -> u32 {
        1
    }

    unsafe fn start(&mut self, op: &ReadOp) -> io::Result<()> {
        let slot = self.files.acquire(op.file, |path| (self.open)(path).map(Arc::new))?.slot;
        let job = Job { file: Arc::clone(self.files.get(slot)), op: *op };
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok());
        if !sent {
            self.files.release(slot);
            return Err(io::Error::other("no reader thread is running"));
        }
        self.slots[op.slab as usize] = slot;
        Ok(())
    }

    fn wait(&mut self) -> io::Result<Completion> {
        let completion = self.done.recv().map_err(|_| io::Error::other("no reader thread is running"))?;
        self.files.release(self.slots[completion.slab as usize]);
        Ok(completion)
    }
}

impl<F: ReadAt> Drop for PoolBackend<F> {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A panicking thread has already printed its message.
            let _ = thread.join();
        }
    }
}
