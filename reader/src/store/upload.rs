//! Writing an object: it appears whole or not at all.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rankine_base::error::{Error, Result};

use super::client::{self, Part, Pending, UploadId};

/// Bytes of a part. Stores take up to 10,000 parts, so an object may have 156 GiB.
const PART_BYTES: usize = 16 << 20;
/// Parts in flight.
const PARTS_IN_FLIGHT: usize = 4;

/// An object that is being written. A short one is sent at once; a long one in parts, which the store joins when
/// [`Upload::complete`] asks for it. Dropping it before that discards the parts.
pub struct Upload {
    url: PathBuf,
    buffer: Vec<u8>,
    bytes: u64,
    id: Option<UploadId>,
    in_flight: VecDeque<Pending<Part>>,
    parts: Vec<Part>,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload").field("url", &self.url).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Upload {
    /// Starts to write an object, whose url must be free unless it may be replaced.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Io`] if the store cannot be asked.
    pub fn create(url: &Path, replaces: bool) -> Result<Self> {
        if super::exists(url)? && !replaces {
            let why = "exists already: name another url, or replace it with --force".into();
            return Err(Error::Exists { path: url.to_owned(), why });
        }
        Ok(Self {
            url: url.to_owned(),
            buffer: Vec::new(),
            bytes: 0,
            id: None,
            in_flight: VecDeque::new(),
            parts: Vec::new(),
        })
    }

    /// Makes the object visible.
    ///
    /// # Errors
    /// [`Error::Io`]; there is then no object, or the one that was there before.
    pub fn complete(mut self) -> Result<()> {
        if self.id.is_none() {
            return client::put(&self.url, std::mem::take(&mut self.buffer));
        }
        if !self.buffer.is_empty() {
            self.send_part()?;
        }
        while let Some(part) = self.in_flight.pop_front() {
            self.parts.push(part.wait()?);
        }
        let id = self.id.as_ref().expect("it has parts");
        client::complete(&self.url, id, std::mem::take(&mut self.parts), self.bytes)?;
        self.id = None;
        Ok(())
    }

    fn send_part(&mut self) -> Result<()> {
        let id = match &self.id {
            Some(id) => id,
            None => self.id.insert(client::begin_upload(&self.url)?),
        };
        let number = self.parts.len() + self.in_flight.len();
        let part = client::start_part(&self.url, id, number, std::mem::take(&mut self.buffer))?;
        self.in_flight.push_back(part);
        if self.in_flight.len() == PARTS_IN_FLIGHT
            && let Some(part) = self.in_flight.pop_front()
        {
            self.parts.push(part.wait()?);
        }
        Ok(())
    }
}

impl Write for Upload {
    /// Errors hold an [`Error`].
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = bytes.len().min(PART_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..written]);
        self.bytes += written as u64;
        if self.buffer.len() == PART_BYTES {
            self.send_part().map_err(io::Error::other)?;
        }
        Ok(written)
    }

    /// Does nothing: only [`Upload::complete`] makes anything visible.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(id) = &self.id else { return };
        // A part that arrives after the upload was discarded would stay.
        self.in_flight.drain(..).for_each(|part| drop(part.wait()));
        if let Err(error) = client::abort(&self.url, id) {
            tracing::warn!("parts of {} remain in the store: {error}", self.url.display());
        }
    }
}
