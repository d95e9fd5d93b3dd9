//! Selection of the rung to read with: the best one whose trial read works. Each refusal is explained.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_base::error::{Error, IoContext, Result};
use serde::Serialize;

use super::backend::{Backend, ReadOp, explain};
use super::files::ReadFiles;
use super::mapped::MappedFile;
use super::memory_file::is_in_memory;
use super::object::ObjectFile;
use super::options::{IoOptions, Rung};
use super::pool::PoolBackend;
use super::request::SLAB_ALIGN;
use super::slab::SlabRing;
use super::uring::{UringBackend, UringSetup};

/// The maximum number of threads that read files: a disk that benefits from a deeper queue should be read with
/// io_uring.
const THREADS_MAX: u32 = 16;

/// A rung that works.
pub(super) struct SelectedRung {
    pub(super) rung: Rung,
    pub(super) backend: Box<dyn Backend>,
}

/// Selects the rung that the options require, or the best that works.
///
/// # Errors
/// [`Error::Refused`] if the required rung, or every rung, is refused, with the reasons; [`Error::Io`] if the first
/// file cannot be opened.
pub(super) fn choose(files: &ReadFiles, ring: &SlabRing, options: &IoOptions) -> Result<SelectedRung> {
    let ReadFiles { paths, objects } = files;
    if !objects.is_empty() {
        // The trial would be a request; each read says why it failed.
        let (rung, objects) = (Rung::ObjectStore, objects.clone());
        let open = move |path: &Path| ObjectFile::open(path, &objects);
        let pool = PoolBackend::new(Arc::clone(paths), ring.slabs(), options.depth, open);
        let backend = Box::new(pool.map_err(|error| Error::refused("start threads to read objects", error))?);
        return Ok(SelectedRung { rung, backend });
    }
    let first = paths.first().ok_or_else(|| Error::setting("files", "no files to read"))?;
    // A file that cannot be opened does not rule out a rung.
    let in_memory = is_in_memory(&File::open(first).context("open", first)?);
    let rungs = match options.mode.rung() {
        Some(wanted) => vec![wanted],
        // For files in memory, io_uring copies on the one submitting thread; several threads copy several times as
        // fast.
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
                // The expected case is logged at debug level only; refusals are logged with their reasons.
                if refused.is_empty() {
                    tracing::debug!(depth = options.depth, "reading {} with {rung}", first.display());
                } else {
                    tracing::info!("reading {} with {rung}: {}", first.display(), refused.join("; "));
                }
                return Ok(SelectedRung { rung, backend: opened.backend });
            }
            Err(why) => refused.push(format!("{rung} is refused: {why}")),
        }
    }
    Err(Error::refused(format!("read {}", first.display()), io::Error::other(refused.join("; "))))
}

/// A rung does not work on this machine, or for this file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(transparent)]
#[error("{why}")]
pub struct RungRefused {
    /// What was refused, and why.
    pub why: String,
}

impl From<String> for RungRefused {
    fn from(why: String) -> Self {
        Self { why }
    }
}

/// A backend whose trial read worked.
pub(super) struct TriedBackend {
    pub(super) backend: Box<dyn Backend>,
    /// The features that it lacks, and why; empty if it lacks none.
    pub(super) note: String,
}

/// Sets up a rung and reads with it.
///
/// # Errors
/// Why it was refused.
pub(super) fn attempt(
    rung: Rung,
    paths: &Arc<[PathBuf]>,
    ring: &SlabRing,
    depth: u32,
) -> Result<TriedBackend, String> {
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
        Rung::ObjectStore => Err("it reads no files".into()),
        Rung::UringBuffered => uring(false, false, String::new()),
        Rung::Pread => {
            let pool = PoolBackend::new(Arc::clone(paths), ring.slabs(), depth.min(THREADS_MAX), |path| {
                File::open(path)
            });
            threads(pool.map(|backend| Box::new(backend) as _))
        }
        Rung::Mmap => {
            let pool =
                PoolBackend::new(Arc::clone(paths), ring.slabs(), depth.min(THREADS_MAX), MappedFile::open);
            threads(pool.map(|backend| Box::new(backend) as _))
        }
    }
}

/// Reads the first page of the first file. Some refusals (above all of direct I/O on a file system without it) only
/// appear as the result of a read.
fn try_out(mut backend: Box<dyn Backend>, note: String, ring: &SlabRing) -> Result<TriedBackend, String> {
    let slab = ring.try_take().ok_or("every slab of its ring is in use")?;
    let op =
        ReadOp { slab: slab.index(), file: 0, offset: 0, into: slab.address(), bytes: SLAB_ALIGN as u32 };
    // SAFETY: a slab holds at least SLAB_ALIGN bytes, and `slab` is the only permit for them. It is released only
    // after the completion was returned, or never: see below.
    unsafe { backend.start(&op) }.map_err(|error| explain(&error))?;
    let completion = match backend.wait() {
        Ok(completion) => completion,
        Err(error) => {
            // The read may still be in flight, so this slab must never be freed.
            std::mem::forget(slab);
            return Err(explain(&error));
        }
    };
    match completion.result {
        // An empty or unreadable file is not the rung's fault. The reader will reach it and report the position.
        Ok(_) => Ok(TriedBackend { backend, note }),
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(TriedBackend { backend, note }),
        Err(error) => Err(explain(&error)),
    }
}
