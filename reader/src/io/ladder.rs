//! Which rung to read with: the best whose trial read works, each refusal explained.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::backend::{Backend, ReadOp, explain};
use super::mapped::MappedFile;
use super::options::{IoOptions, Rung};
use super::pool::PoolBackend;
use super::request::SLAB_ALIGN;
use super::slab::SlabRing;
use super::uring::{UringBackend, UringSetup};
use crate::error::{Error, IoContext, Result};

/// A rung that works.
pub(super) struct Chosen {
    pub(super) rung: Rung,
    pub(super) backend: Box<dyn Backend>,
}

/// Takes the rung that the options insist on, or the best that works.
///
/// # Errors
/// [`Error::Invalid`] where the rung, or every rung, is refused, with the reasons; [`Error::Io`] where the first file
/// does not open at all.
pub(super) fn choose(paths: &Arc<[PathBuf]>, ring: &SlabRing, options: &IoOptions) -> Result<Chosen> {
    let first = paths.first().ok_or_else(|| Error::invalid("there is no file to read"))?;
    // A file that does not open is no reason against a rung.
    let in_memory = lies_in_memory(&File::open(first).context("open", first)?);
    let rungs = match options.mode.rung() {
        Some(wanted) => vec![wanted],
        // io_uring copies what lies in memory on the one thread that asks for it: several copy several times as much.
        None if in_memory => {
            let others = Rung::ALL.into_iter().filter(|&rung| rung != Rung::Pread);
            std::iter::once(Rung::Pread).chain(others).collect()
        }
        None => Rung::ALL.to_vec(),
    };
    let mut refused = Vec::new();
    for rung in rungs {
        match attempt(rung, paths, ring, options.depth) {
            Ok(opened) => {
                if !opened.note.is_empty() {
                    refused.push(opened.note);
                }
                // What works as it should is not worth a line; what does not is, with the reasons.
                if refused.is_empty() {
                    tracing::debug!(depth = options.depth, "reading {} with {rung}", first.display());
                } else {
                    tracing::info!("reading {} with {rung}: {}", first.display(), refused.join("; "));
                }
                return Ok(Chosen { rung, backend: opened.backend });
            }
            Err(why) => refused.push(format!("{rung} is refused: {why}")),
        }
    }
    Err(Error::invalid(format!("cannot read {}: {}", first.display(), refused.join("; "))))
}

/// Whether a file lies in memory and nowhere else: in a tmpfs such as `/dev/shm`.
pub(super) fn lies_in_memory(file: &File) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    let mut about = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open, and the pointer is to room for one such value.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()) } == 0;
    // SAFETY: it is plain data, which zeros are valid for, too.
    let kind = unsafe { about.assume_init() }.f_type;
    known && [TMPFS, RAMFS].contains(&kind)
}

/// A backend whose trial read worked.
pub(super) struct Opened {
    pub(super) backend: Box<dyn Backend>,
    /// What it has to do without, and why; empty where it lacks nothing.
    pub(super) note: String,
}

/// Sets a rung up and reads with it.
///
/// # Errors
/// What refused it.
pub(super) fn attempt(
    rung: Rung,
    paths: &Arc<[PathBuf]>,
    ring: &SlabRing,
    depth: u32,
) -> Result<Opened, String> {
    let uring = |direct, fixed_buffers, note| {
        let setup = UringSetup { direct, fixed_buffers };
        let backend = UringBackend::new(Arc::clone(paths), ring, depth, setup)?;
        try_out(Box::new(backend), note, ring)
    };
    let threads = |backend: io::Result<Box<dyn Backend>>| {
        try_out(backend.map_err(|error| format!("cannot start threads: {error}"))?, String::new(), ring)
    };
    match rung {
        Rung::UringDirect => uring(true, true, String::new())
            .or_else(|why| uring(true, false, format!("without registered buffers: {why}"))),
        Rung::UringBuffered => uring(false, false, String::new()),
        Rung::Pread => {
            let pool = PoolBackend::<File>::new(Arc::clone(paths), ring.slabs(), depth);
            threads(pool.map(|backend| Box::new(backend) as _))
        }
        Rung::Mmap => {
            let pool = PoolBackend::<MappedFile>::new(Arc::clone(paths), ring.slabs(), depth);
            threads(pool.map(|backend| Box::new(backend) as _))
        }
    }
}

/// Reads the first page of the first file. What is refused (direct I/O on a file system without it, above all) is often
/// refused only now, as the result of a read.
fn try_out(mut backend: Box<dyn Backend>, note: String, ring: &SlabRing) -> Result<Opened, String> {
    let slab = ring.try_take().ok_or("every slab of its ring is in use")?;
    let op =
        ReadOp { slab: slab.index(), file: 0, offset: 0, into: slab.address(), bytes: SLAB_ALIGN as u32 };
    // SAFETY: a slab holds SLAB_ALIGN bytes at least, and `slab` is the one permit to them. It is given up only once
    // the completion was returned, or never: see below.
    unsafe { backend.start(&op) }.map_err(|error| explain(&error))?;
    let completion = match backend.wait() {
        Ok(completion) => completion,
        Err(error) => {
            // The read may be in flight still, so this slab must never be free again.
            std::mem::forget(slab);
            return Err(explain(&error));
        }
    };
    match completion.result {
        // An empty or unreadable file is the file's fault. The reader will come to it and name the place.
        Ok(_) => Ok(Opened { backend, note }),
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(Opened { backend, note }),
        Err(error) => Err(explain(&error)),
    }
}
