//! A file to which whole records are appended.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// A file to which whole records are appended, one system call each: a crash leaves at most one torn record, at the
/// end. If a write fails, the next one first removes what was written of the record.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    /// Bytes of whole records.
    bytes: u64,
    /// Whether a part of a record may follow them.
    torn: bool,
}

impl RecordFile {
    /// Creates the file.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the file exists, and those of the file system.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).create_new(true).open(path)?;
        Ok(Self { file, bytes: 0, torn: false })
    }

    /// Opens a file whose first `bytes` bytes are whole records, and removes what follows them.
    pub(super) fn open(path: &Path, bytes: u64) -> io::Result<Self> {
        let file = File::options().append(true).open(path)?;
        file.set_len(bytes)?;
        Ok(Self { file, bytes, torn: false })
    }

    /// Appends a record.
    pub(super) fn append(&mut self, record: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.bytes)?;
        }
        self.torn = true;
        self.file.write_all(record)?;
        self.torn = false;
        self.bytes += record.len() as u64;
        Ok(())
    }

    /// Makes all records durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_whose_write_failed_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let mut records = RecordFile::create(&path).unwrap();
        records.append(b"one\n").unwrap();
        // What a write to a full disk leaves.
        records.file.write_all(b"tw").unwrap();
        records.torn = true;
        records.append(b"three\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one\nthree\n");

        let mut records = RecordFile::open(&path, 4).unwrap();
        records.append(b"four\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one\nfour\n");
        assert_eq!(RecordFile::create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
