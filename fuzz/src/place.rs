//! Temporary files of a reader, in memory if the system has a folder for that.

use std::fs;
use std::path::{Path, PathBuf};

/// A temporary folder that is removed when dropped.
#[derive(Debug)]
pub struct TempFolder(tempfile::TempDir);

impl Default for TempFolder {
    fn default() -> Self {
        Self::new()
    }
}

impl TempFolder {
    /// Creates a folder.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self(folder.expect("there is room for temporary files"))
    }

    /// Returns the path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).expect("the file is written");
        path
    }
}
