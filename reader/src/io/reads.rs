//! The reader: takes a plan of requests and yields filled slabs in the plan's order, in whatever order the disk
//! answers.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rankine_base::error::{Error, Result};

use super::backend::{Backend, ReadOp};
use super::count::BytesRead;
use super::files::ReadFiles;
use super::ladder;
use super::options::{IoOptions, Rung};
use super::request::{Next, ReadRequest, Requests, SLAB_ALIGN};
use super::slab::{Slab, SlabRing, VacantSlab};
use crate::background::{Background, StopSignal};

/// How often in a row the kernel may postpone a read (`EINTR`, `EAGAIN`) before that is an error.
const RETRIES_MAX: u32 = 20;
/// The wait before an `EAGAIN` is retried doubles up to this: 20 retries take a second in total.
const RETRY_WAIT_MAX: Duration = Duration::from_millis(64);

/// A running reader: an iterator over filled slabs in the order of the requests.
///
/// A separate thread keeps up to [`IoOptions::depth`] reads in flight while there are free slabs. A consumer that
/// keeps every slab and asks for another waits forever, so a ring must have more slabs than its consumer ever holds.
/// After an error the iterator ends. Dropping the reader starts no more reads and waits for those in flight.
#[derive(Debug)]
pub struct Reads {
    rung: Rung,
    bytes: BytesRead,
    slabs: Background<Result<Slab>, SlabRing>,
}

impl Reads {
    /// Starts reading.
    ///
    /// # Errors
    /// [`Error::Refused`] if the rung that the options require is refused; [`Error::Setting`] if they are out of range;
    /// [`Error::Io`] if the first file cannot be opened. Later errors are items of the iterator, in their position.
    pub fn open(
        files: impl Into<ReadFiles>,
        requests: impl Requests,
        ring: SlabRing,
        options: &IoOptions,
    ) -> Result<Self> {
        options.validate()?;
        let files = files.into();
        let chosen = ladder::choose(&files, &ring, options)?;
        Self::start(files.paths, requests, ring, options.depth, chosen.rung, chosen.backend)
    }

    /// Starts reading with a working backend.
    pub(super) fn start(
        files: Arc<[PathBuf]>,
        requests: impl Requests,
        ring: SlabRing,
        depth: u32,
        rung: Rung,
        backend: Box<dyn Backend>,
    ) -> Result<Self> {
        let slab_bytes = ring.slab_bytes();
        let reads = (0..ring.slabs()).map(|_| None).collect();
        let flight = Flight { files, slab_bytes, backend, reads, in_flight: 0 };
        // Capacity for every slab and an error, so that the thread never blocks on sending.
        let capacity = ring.slabs() as usize + 1;
        let bytes = BytesRead::default();
        let counted = bytes.clone();
        let slabs = Background::spawn("rankine-io", capacity, move |out, stop| {
            let send = |result: Result<Slab>| {
                result.iter().for_each(|slab| counted.add(slab.len()));
                out.send(result).is_ok()
            };
            drive(flight, requests, &ring, depth as usize, &send, stop);
            ring
        })?;
        Ok(Self { rung, bytes, slabs })
    }

    /// Returns the rung in use.
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// Returns the count of the bytes that were read.
    pub fn bytes(&self) -> &BytesRead {
        &self.bytes
    }

    /// Stops reading and returns the ring, for the next reader. Slabs that are still held return to it when they are
    /// dropped.
    pub fn close(self) -> SlabRing {
        self.slabs.close()
    }
}

impl Iterator for Reads {
    type Item = Result<Slab>;

    fn next(&mut self) -> Option<Self::Item> {
        self.slabs.next()
    }
}

/// The reader's thread: starts reads while there are free slabs, and sends completed ones in order. `send` returns
/// whether the consumer still takes slabs.
fn drive(
    mut flight: Flight,
    mut requests: impl Requests,
    ring: &SlabRing,
    depth: usize,
    send: &dyn Fn(Result<Slab>) -> bool,
    stop: &StopSignal,
) {
    let mut done: BTreeMap<u64, Result<Slab>> = BTreeMap::new();
    let (mut next_in, mut next_out) = (0, 0);
    let mut planned = true;
    loop {
        // Done first: the wait for a slab below ends only when the consumer has received the slabs that it can
        // release.
        while let Some(result) = done.remove(&next_out) {
            next_out += 1;
            let last = result.is_err();
            if !send(result) || last {
                return;
            }
        }
        while planned && flight.in_flight < depth {
            let slab = match ring.try_take() {
                Some(slab) => slab,
                // Wait for completions first: only they let the consumer continue and release slabs.
                None if flight.in_flight > 0 => break,
                None => match ring.take(&stop.0) {
                    Some(slab) => slab,
                    None => return,
                },
            };
            // What has been read is sent on before a request is waited for, which may depend on it.
            let request = match requests.next(flight.in_flight == 0) {
                Next::Known(request) => request,
                Next::Later => break,
                Next::End => {
                    planned = false;
                    break;
                }
            };
            if let Err(error) = flight.start(request, next_in, slab) {
                done.insert(next_in, Err(error));
                planned = false;
            }
            next_in += 1;
        }
        if flight.in_flight == 0 {
            if done.is_empty() {
                return;
            }
            continue;
        }
        match flight.wait() {
            Ok(Some((number, result))) => {
                // A read in flight may hold an error that comes first.
                planned &= result.is_ok();
                done.insert(number, result);
            }
            Ok(None) => {}
            Err(error) => {
                send(Err(error));
                return;
            }
        }
    }
}

/// The reads in flight and the permits for the slabs that they write to.
///
/// This keeps buffers from being freed or reused while the kernel writes to them: a permit is in `reads` from before
/// its read is started until its completion was returned, and `Drop` waits for all of them.
struct Flight {
    files: Arc<[PathBuf]>,
    slab_bytes: usize,
    backend: Box<dyn Backend>,
    /// By slab.
    reads: Vec<Option<PendingRead>>,
    in_flight: usize,
}

struct PendingRead {
    slab: VacantSlab,
    request: ReadRequest,
    number: u64,
    /// Bytes that were read and need not be read again.
    done: u32,
    /// How often in a row the rest was postponed.
    retries: u32,
}

impl Flight {
    fn start(&mut self, request: ReadRequest, number: u64, slab: VacantSlab) -> Result<()> {
        let aligned = request.offset.is_multiple_of(SLAB_ALIGN as u64);
        // A slab holds whole pages, so a request that fits it also fits when padded.
        let fits = request.bytes > 0
            && request.bytes as usize <= self.slab_bytes
            && (request.offset.checked_add(u64::from(request.padded_bytes())))
                .is_some_and(|end| i64::try_from(end).is_ok());
        if !aligned || !fits || request.file as usize >= self.files.len() {
            let what = format!(
                "cannot read {request:?}: there are {} files, and reads must start at multiples of {SLAB_ALIGN} bytes \
                 and fit a slab of {}",
                self.files.len(),
                self.slab_bytes
            );
            return Err(Error::setting("request", what));
        }
        self.submit(PendingRead { slab, request, number, done: 0, retries: 0 })
    }

    /// Submits the missing part of a read.
    fn submit(&mut self, read: PendingRead) -> Result<()> {
        let (index, request, done) = (read.slab.index(), read.request, read.done);
        assert!(done < request.bytes && self.reads[index as usize].is_none());
        let op = ReadOp {
            slab: index,
            file: request.file,
            offset: request.offset + u64::from(done),
            // SAFETY: done < bytes <= slab_bytes, checked in `start`, so the address is within the slab.
            into: unsafe { read.slab.address().add(done as usize) },
            bytes: request.padded_bytes() - done,
        };
        self.reads[index as usize] = Some(read);
        // SAFETY: the bytes are within one slab, whose length is a multiple of SLAB_ALIGN. Its only permit is in
        // `reads`, which it leaves only when the completion has been returned (`wait`) or never (`Drop`). The permit
        // keeps the memory alive.
        match unsafe { self.backend.start(&op) } {
            Ok(()) => {
                self.in_flight += 1;
                Ok(())
            }
            Err(source) => {
                // Nothing is in flight for it, so the permit may be dropped.
                self.reads[index as usize] = None;
                let path = self.files[request.file as usize].clone();
                Err(Error::Io { doing: "open", path, source })
            }
        }
    }

    /// Waits for a completion. Returns `None` if it was not the read's last: the rest has been submitted.
    ///
    /// # Errors
    /// If completions can no longer be received.
    fn wait(&mut self) -> Result<Option<(u64, Result<Slab>)>> {
        let completion = match self.backend.wait() {
            Ok(completion) => completion,
            Err(source) => {
                let read = self.reads.iter().flatten().next().expect("a read is in flight");
                let path = self.files[read.request.file as usize].clone();
                return Err(Error::Io { doing: "wait for reads of", path, source });
            }
        };
        let read = self.reads[completion.slab as usize].take().expect("completions answer reads in flight");
        self.in_flight -= 1;
        let (number, file) = (read.number, read.request.file);
        let outcome = match completion.result {
            Ok(bytes) => self.advance(read, bytes),
            Err(error) => self.retry(read, error),
        };
        Ok(match outcome {
            Ok(Progress::Whole(slab)) => Some((number, Ok(slab))),
            Ok(Progress::Resumed) => None,
            Err(Failure::AtOffset(offset, error)) => {
                let path = self.files[file as usize].clone();
                // The kernel's error does not contain the position; an object's error is complete.
                let error = match error.downcast::<Error>() {
                    Ok(error) => error,
                    Err(error) => {
                        let source = io::Error::new(error.kind(), format!("at byte {offset}: {error}"));
                        Error::Io { doing: "read", path, source }
                    }
                };
                Some((number, Err(error)))
            }
            Err(Failure::Other(error)) => Some((number, Err(error))),
        })
    }

    /// Accounts for bytes that were read.
    fn advance(&mut self, mut read: PendingRead, bytes: u32) -> Result<Progress, Failure> {
        let request = read.request;
        let (before, came) = (read.done, read.done.saturating_add(bytes).min(request.bytes));
        if came == request.bytes {
            return Ok(Progress::Whole(read.slab.filled(request, read.number)));
        }
        // Direct reads resume at a page boundary, so part of a page is read again.
        read.done = came - came % self.backend.granularity();
        if read.done == before {
            let end = request.offset + u64::from(came);
            let what = format!(
                "the file ends there, but {} more bytes are expected: was it truncated?",
                request.bytes - came
            );
            return Err(Failure::Other(Error::damaged(&self.files[request.file as usize], end, what)));
        }
        read.retries = 0;
        self.submit(read).map(|()| Progress::Resumed).map_err(Failure::Other)
    }

    /// Submits again what the kernel postponed.
    fn retry(&mut self, mut read: PendingRead, error: io::Error) -> Result<Progress, Failure> {
        let wait = match error.kind() {
            io::ErrorKind::Interrupted => Duration::ZERO,
            io::ErrorKind::WouldBlock => RETRY_WAIT_MAX.min(Duration::from_millis(1 << read.retries.min(6))),
            _ => return Err(Failure::AtOffset(read.request.offset + u64::from(read.done), error)),
        };
        read.retries += 1;
        if read.retries > RETRIES_MAX {
            return Err(Failure::AtOffset(read.request.offset + u64::from(read.done), error));
        }
        std::thread::sleep(wait);
        self.submit(read).map(|()| Progress::Resumed).map_err(Failure::Other)
    }
}

enum Progress {
    Whole(Slab),
    Resumed,
}

enum Failure {
    AtOffset(u64, io::Error),
    Other(Error),
}

impl Drop for Flight {
    /// Waits for every read in flight. They are not cancelled: a read that a disk has started cannot be, and one of a
    /// few MiB ends soon.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            match self.backend.wait() {
                Ok(completion) => {
                    self.reads[completion.slab as usize] = None;
                    self.in_flight -= 1;
                }
                Err(error) => {
                    // The kernel may write to these slabs at any later time, so their permits, and therefore the
                    // memory, are never released.
                    tracing::error!(%error, reads = self.in_flight, "reads in flight were lost; their buffers leak");
                    self.reads.drain(..).for_each(std::mem::forget);
                    return;
                }
            }
        }
    }
}
