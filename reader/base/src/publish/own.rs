//! Files that a command replaces: only its own earlier output.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::file::{PartialFile, replacing};
use super::path::resolve;
use crate::error::{Error, Result};

/// The bytes at the start of a file by which an earlier output is recognized.
const START_BYTES: u64 = 4096;

/// The output of a command, which replaces an earlier one but no other file.
#[derive(Debug, Clone, Copy)]
pub struct OwnOutput {
    /// What it is, with an article: "a report".
    pub what: &'static str,
    /// Returns whether a file that starts with these bytes, the first 4096 of a longer file, is such an output.
    pub is_own: fn(&[u8]) -> bool,
    /// What to do about another file, after "choose another file, or".
    pub way_out: &'static str,
}

impl OwnOutput {
    /// Checks that a path leads to an earlier output, an empty file, a pipe or a device, or to nothing.
    ///
    /// # Errors
    /// [`Error::Exists`] if it leads to another file; [`Error::Io`] if it leads nowhere.
    pub fn check(&self, path: &Path) -> Result<()> {
        // A file that a shell opened, such as that of /dev/stdout, was chosen there and is not replaced.
        if resolve(path)?.starts_with("/proc") {
            return Ok(());
        }
        let has_bytes = fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0);
        let mut start = Vec::new();
        let mut read = || File::open(path)?.take(START_BYTES).read_to_end(&mut start);
        // A file that cannot be read is not known to be an earlier output.
        if !has_bytes || read().is_ok() && (self.is_own)(&start) {
            return Ok(());
        }
        let Self { what, way_out, .. } = self;
        let why = format!("exists and is not {what}: choose another file, or {way_out}");
        Err(Error::Exists { path: path.to_owned(), why })
    }

    /// Starts a file that replaces an earlier output and keeps its permissions. Symbolic links are followed.
    ///
    /// # Errors
    /// As [`OwnOutput::check`]; [`Error::Locked`].
    pub fn create(&self, path: &Path) -> Result<PartialFile> {
        // Checked under the lock: another process of Rankine does not write it meanwhile.
        let file = PartialFile::create(path)?;
        self.check(path)?;
        Ok(file)
    }

    /// Replaces an earlier output as [`super::replace_file`] does.
    ///
    /// # Errors
    /// As [`OwnOutput::check`] and [`super::replace_file`].
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let file = replacing(path)?;
        self.check(path)?;
        file.publish_all(bytes, None)
    }
}
