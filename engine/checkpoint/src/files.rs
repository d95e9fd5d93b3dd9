//! The file operations of checkpoints: all of them go through one trait.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use rankine_base::files::open_regular;
use rankine_reader::io::{MappedOutput, is_in_memory};

/// The file system operations that checkpoints need. No caller continues with a file after a failed call, and none
/// syncs it again: the system may have dropped the bytes that it could not write.
pub trait Files: Debug + Send + Sync {
    /// Makes a folder and its parents, if they do not exist.
    ///
    /// # Errors
    /// The operating system's.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes a new file.
    ///
    /// # Errors
    /// The operating system's, also if it exists.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// The operating system's.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Renames a file, replacing an existing one, or a folder.
    ///
    /// # Errors
    /// The operating system's.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a folder with its contents.
    ///
    /// # Errors
    /// The operating system's; a part may be removed then.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder, in any order; empty if there is no such folder.
    ///
    /// # Errors
    /// The operating system's.
    fn names(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The operating system's, also if it is not a regular file.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Input>>;

    /// The length of a file, or of all files below a folder, in bytes.
    ///
    /// # Errors
    /// The operating system's.
    fn tree_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// The alignment of direct writes: suits all current disks.
pub const DIRECT_ALIGN: usize = 4096;

/// Whether an error means that a file system, or its disk, does not support direct writes, or not this one.
pub(super) fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported)
}

/// A new file, which several threads may write.
pub trait Output: Send + Sync {
    /// Writes some of the bytes through the page cache, from an offset on; returns how many.
    ///
    /// # Errors
    /// The operating system's.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// The same past the page cache: the disk reads the bytes from where they are, or, if the file is in memory, they
    /// are copied to its pages. Their address, their offset in the file and their count are multiples of
    /// `DIRECT_ALIGN`.
    ///
    /// # Errors
    /// The operating system's; if `is_refused` holds for it, the file does not support this, and nothing was written.
    fn write_direct_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes all writes durable. Called once, after all of them.
    ///
    /// # Errors
    /// The operating system's.
    fn sync(&self) -> io::Result<()>;
}

/// A file with random read access.
pub trait Input: Send + Sync {
    /// Its length.
    ///
    /// # Errors
    /// The operating system's.
    fn size(&self) -> io::Result<u64>;

    /// Reads some bytes from an offset on; returns how many, 0 at the end.
    ///
    /// # Errors
    /// The operating system's.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl dyn Output + '_ {
    /// Writes all of the bytes, in as many calls as that takes.
    ///
    /// # Errors
    /// As [`Output::write_at`]; interrupted calls are repeated.
    pub(super) fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl dyn Input + '_ {
    /// Reads as many bytes as the buffer holds.
    ///
    /// # Errors
    /// As [`Input::read_at`]; interrupted calls are repeated. Also fails if the file ends before.
    pub(super) fn read_exact_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.read_at(bytes, offset) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    bytes = &mut bytes[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Processors from which mapped files are written faster: a page that is mapped costs twice as much as one that is
/// written.
const MAPPED_FROM_PROCESSORS: usize = 8;

/// Returns the number of processors that this process may use.
pub(super) fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// The machine's own file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl Files for Disk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        // Mapping needs to read.
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        if processors() >= MAPPED_FROM_PROCESSORS && is_in_memory(&file) {
            return Ok(Box::new(MappedOutput::new(file)));
        }
        Ok(Box::new(DiskOutput { file, path: path.to_owned(), direct: OnceLock::new() }))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(path) {
            // The target of a broken link is unknown.
            Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
                return Ok(Vec::new());
            }
            entries => entries?,
        };
        // Names that are not text are not Rankine's.
        entries
            .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
            .collect()
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Input>> {
        Ok(Box::new(open_regular(path)?))
    }

    fn tree_bytes(&self, path: &Path) -> io::Result<u64> {
        let metadata = fs::symlink_metadata(path)?;
        if !metadata.is_dir() {
            return Ok(metadata.len());
        }
        fs::read_dir(path)?.map(|entry| self.tree_bytes(&entry?.path())).sum()
    }
}

/// A file that is being written.
struct DiskOutput {
    file: File,
    path: PathBuf,
    /// The same file for direct writes, once one was requested.
    direct: OnceLock<File>,
}

impl Output for DiskOutput {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(&self.file, bytes, offset)
    }

    fn write_direct_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let file = match self.direct.get() {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                let opened = options.write(true).custom_flags(libc::O_DIRECT).open(&self.path)?;
                self.direct.get_or_init(|| opened)
            }
        };
        FileExt::write_at(file, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

impl Output for MappedOutput {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self.file(), bytes, offset)
    }

    fn write_direct_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.write(bytes, offset).map(|()| bytes.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.file().sync_all()
    }
}

impl Input for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }
}
