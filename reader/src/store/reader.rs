//! Reading an object from front to back, some ranges ahead.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rankine_base::error::Result;

use super::Version;
use super::client::{PendingRange, Received, start_range};

/// Bytes of a range, and how many ranges are in flight.
const RANGE_BYTES: u64 = 8 << 20;
const RANGES_AHEAD: usize = 4;

/// Reads an object. Errors hold a [`rankine_base::Error`].
pub(crate) struct ObjectReader {
    url: PathBuf,
    version: Version,
    /// What has not been requested.
    rest: Range<u64>,
    ahead: VecDeque<PendingRange>,
    /// The range that is being read, and how much of it was.
    front: Option<(Received, usize)>,
}

impl ObjectReader {
    /// Starts to read an object at an offset.
    pub(crate) fn new(url: &Path, version: &Version, offset: u64) -> Self {
        let rest = offset.min(version.bytes)..version.bytes;
        Self { url: url.to_owned(), version: version.clone(), rest, ahead: VecDeque::new(), front: None }
    }

    /// Returns the next range; `None` at the end.
    fn next(&mut self) -> Result<Option<Received>> {
        while self.ahead.len() < RANGES_AHEAD && !self.rest.is_empty() {
            let end = self.rest.end.min(self.rest.start + RANGE_BYTES);
            self.ahead.push_back(start_range(&self.url, &self.version, self.rest.start..end)?);
            self.rest.start = end;
        }
        self.ahead.pop_front().map(PendingRange::wait).transpose()
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.front.as_ref().is_none_or(|(bytes, at)| *at == bytes.len()) {
            self.front = self.next().map_err(io::Error::other)?.map(|bytes| (bytes, 0));
        }
        let Some((bytes, at)) = &mut self.front else { return Ok(0) };
        let read = (&bytes[*at..]).read(buffer)?;
        *at += read;
        Ok(read)
    }
}
