//! Takes the place of the client in builds without object stores: every url is refused.

use std::convert::Infallible;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use rankine_base::error::{Error, Result};

use super::{Listing, Version};

const ABSENT: Error = Error::Unsupported { doing: "read urls of object stores", feature: "cloud" };

pub(super) fn start_of(_: &Path) -> Result<Option<(Version, Received)>> {
    Err(ABSENT)
}

pub(super) fn version(_: &Path) -> Result<Version> {
    Err(ABSENT)
}

pub(super) fn list(_: &Path) -> Result<Listing> {
    Err(ABSENT)
}

pub(super) fn start_range(_: &Path, _: &Version, _: Range<u64>) -> Result<PendingRange> {
    Err(ABSENT)
}

pub(super) struct PendingRange(Infallible);

impl PendingRange {
    pub(super) fn wait(self) -> Result<Received> {
        match self.0 {}
    }
}

/// Bytes of an object, of which there are none.
pub(super) type Received = Absent;

pub(crate) fn range(_: &Path, _: &Version, _: Range<u64>) -> Result<Absent> {
    Err(ABSENT)
}

pub(crate) struct Absent(Infallible);

impl std::ops::Deref for Absent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.0 {}
    }
}

/// An object that is being written, of which there are none.
#[derive(Debug)]
pub struct Upload(Infallible);

impl Upload {
    /// Refuses to write an object.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn create(_: &Path, _: bool) -> Result<Self> {
        Err(Error::Unsupported { doing: "write to urls of object stores", feature: "cloud" })
    }

    /// Makes the object visible.
    ///
    /// # Errors
    /// None: there is no object.
    pub fn complete(self) -> Result<()> {
        match self.0 {}
    }
}

impl Write for Upload {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}
