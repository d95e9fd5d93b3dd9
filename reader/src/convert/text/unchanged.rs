//! Sources that must not change: a pass opens each file again, and finds the one that was first opened.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::file_identity::{FileChange, metadata_now};

use crate::convert::text::lines::Source;
use crate::convert::text::local_file::LocalFile;
use crate::convert::text::standard_input::StandardInput;
use crate::store::{self, ObjectReader, Version};

/// An open source.
pub(crate) enum SourceFile {
    Local(LocalFile),
    Object(ObjectReader),
}

impl Read for SourceFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Local(file) => file.read(buffer),
            Self::Object(object) => object.read(buffer),
        }
    }
}

impl Source {
    /// Returns the url and the version of the object, if it is one.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code, reason = "text is read from front to back"))]
    pub(crate) fn object(&self) -> Option<(&Path, &Version)> {
        self.object.as_ref().map(|version| (&*self.opened, version))
    }

    /// Opens the file again, to read it from its start.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Changed`] if it is not the file that was first opened, as it was then.
    pub(crate) fn open_file(&self) -> Result<SourceFile> {
        if let Some(version) = &self.object {
            // Each request has the condition that the object is still the same.
            return Ok(SourceFile::Object(ObjectReader::new(&self.opened, version, 0)));
        }
        let file = File::open(&self.opened).context("open", &self.path)?;
        self.compare(file.metadata().context("open", &self.path)?)?;
        Ok(SourceFile::Local(LocalFile::new(file)))
    }

    /// Opens it like [`Source::open_file`] if it is a local file.
    ///
    /// # Errors
    /// As [`Source::open_file`].
    pub(super) fn open_local(&self) -> Result<Option<LocalFile>> {
        match self.open_file()? {
            SourceFile::Local(file) => Ok(Some(file)),
            SourceFile::Object(_) => Ok(None),
        }
    }

    /// Checks that the file is as it was when it was first opened. Each time it is opened, [`Source::open_file`] finds
    /// the same file; so all rows are of that file, and none is newer than another.
    ///
    /// # Errors
    /// [`Error::Changed`] if it was written, replaced or removed; [`Error::Io`].
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        if let Some(version) = &self.object {
            return match store::version(&self.opened) {
                Ok(now) if now == *version => Ok(()),
                Ok(_) => Err(self.changed("replaced by another object")),
                Err(error) if store::is_missing(&error) => Err(self.changed("removed")),
                Err(error) => Err(error),
            };
        }
        let now = match self.standard_input {
            None => metadata_now(&self.opened).map(Some),
            // Another file in the place of this one would not be read.
            Some(_) => Ok(StandardInput::file_of_process()),
        };
        match now {
            Ok(Some(now)) => self.compare(now),
            Ok(None) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.changed("removed")),
            Err(error) => Err(error).context("open", &self.path),
        }
    }

    fn compare(&self, now: Metadata) -> Result<()> {
        match self.identity.and_then(|identity| identity.change(&now)) {
            None => Ok(()),
            Some(FileChange::Replaced) => Err(self.changed("replaced by another file")),
            Some(FileChange::Written) => Err(self.changed("changed (its length or times differ)")),
        }
    }

    fn changed(&self, what: &str) -> Error {
        let what = format!(
            "{} was {what} while it was read, so its rows may be a mixture of old and new ones: wait until it is \
             complete, run the command again, and leave the file as it is until the command ends",
            self.path.display()
        );
        Error::Changed { path: Some(self.path.clone()), what }
    }
}
