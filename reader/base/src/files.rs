//! Files that are read whole or from front to back, and never from a pipe or a device: small ones that the user names,
//! up to a limit, and those in folders that Rankine writes.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Error, IoContext, Result};

/// The longest text file that is read whole: job files, schema files, shapes. A schema of 10,000 columns fits. The
/// TOML parser may need 1300 times as much memory.
pub const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Reads a small text file, such as a job, schema or shape file. Pipes and devices are refused: a pipe may wait for a
/// writer forever, and a device may be endless.
///
/// # Errors
/// [`Error::Io`] if the file cannot be opened or read; [`Error::TooLarge`] if it is longer than
/// [`TEXT_BYTES_MAX`] bytes; [`Error::Unsuitable`] if it is not a regular file, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    // Checked before opening because opening a pipe waits for a writer.
    check_regular(path, &fs::metadata(path).context("open", path)?)?;
    let file = File::open(path).context("open", path)?;
    check_regular(path, &file.metadata().context("open", path)?)?;
    let mut bytes = Vec::new();
    // The length reported by the system may be wrong: files below /proc report 0.
    file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).context("read", path)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        let (path, mib) = (path.display(), TEXT_BYTES_MAX >> 20);
        let what = format!("{path} is longer than {mib} MiB: is it the file you mean?");
        return Err(Error::too_large(TEXT_BYTES_MAX, what));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let what = format!("{} is not a text file: it is not UTF-8 at byte {at}", path.display());
        Error::unsuitable(path, what)
    })
}

/// Reads a small text file like [`read_text`]; `what` is its name in messages: "the job file".
///
/// # Errors
/// [`NamedTextError`].
pub fn read_named_text(what: &'static str, path: &Path) -> Result<String, NamedTextError> {
    read_text(path).map_err(|source| NamedTextError { what, source })
}

/// A text file cannot be read.
#[derive(Debug)]
pub struct NamedTextError {
    /// Its name in messages: "the job file".
    pub what: &'static str,
    /// An error of [`read_text`].
    pub source: Error,
}

impl fmt::Display for NamedTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, source } = self;
        match source {
            Error::Io { path, source, .. } => write!(f, "cannot read {what} {}: {source}", path.display()),
            error => write!(f, "cannot read {what}: {error}"),
        }
    }
}

impl std::error::Error for NamedTextError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The message of this error contains the message of `self.source`.
        self.source.source()
    }
}

/// Opens a regular file for reading, and never waits: a pipe in a folder that Rankine writes would wait for its writer
/// forever.
///
/// # Errors
/// The operating system's; of the kind [`ErrorKind::IsADirectory`] or [`ErrorKind::InvalidInput`] if it is not a
/// regular file, with a message that says what it is.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok(file);
    }
    let kind = if metadata.is_dir() { ErrorKind::IsADirectory } else { ErrorKind::InvalidInput };
    Err(io::Error::new(kind, format!("it is {}, not a regular file", kind_of(&metadata))))
}

/// Reads a regular file whole, as [`open_regular`] opens it.
///
/// # Errors
/// Those of [`open_regular`], and of reading.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Checks that a path leads to a regular file.
///
/// # Errors
/// [`Error::Unsuitable`], which names what it is instead.
pub fn check_regular(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let (at, kind) = (path.display(), kind_of(metadata));
    Err(Error::unsuitable(path, format!("{at} is {kind}, not a regular file: name a file instead")))
}

/// Returns what a path leads to, with an article: "a folder", "a pipe".
pub(crate) fn kind_of(metadata: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let kind = metadata.file_type();
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_file() {
        "a file"
    } else {
        "a device"
    }
}

/// Returns the path that keeps `path` from being a folder: `path` itself or its nearest ancestor that exists, if that
/// is not a folder, and what it is, with an article: "a file".
pub fn not_a_folder(path: &Path) -> Option<(&Path, &'static str)> {
    // `file/below` has no metadata, but `file` has.
    let (found, metadata) = path.ancestors().find_map(|path| Some((path, fs::metadata(path).ok()?)))?;
    (!metadata.is_dir()).then(|| (found, kind_of(&metadata)))
}

/// Checks that a path leads to a folder or to nothing. `what` names what the folder holds, with an article: "a
/// dataset".
///
/// # Errors
/// [`Error::Unsuitable`] if it leads to a file, or through one.
pub fn check_folder(path: &Path, what: &str) -> Result<()> {
    match not_a_folder(path) {
        Some((found, kind)) => {
            Err(Error::unsuitable(found, format!("{} is {kind}, but {what} is a folder", found.display())))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_text_file_is_read_whole_and_a_long_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        fs::write(&path, "déjà vu\n").unwrap();
        assert_eq!(read_text(&path).unwrap(), "déjà vu\n");
        fs::write(&path, "x".repeat(TEXT_BYTES_MAX as usize)).unwrap();
        assert_eq!(read_text(&path).unwrap().len() as u64, TEXT_BYTES_MAX);
        File::create(&path).and_then(|file| file.set_len(TEXT_BYTES_MAX + 1)).unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("is longer than 1 MiB"));
        fs::write(&path, b"ab\xff").unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("it is not UTF-8 at byte 2"));
        let absent = read_text(&dir.path().join("absent")).unwrap_err();
        assert!(matches!(absent, Error::Io { doing: "open", .. }), "{absent}");
    }

    #[test]
    fn pipes_devices_sockets_and_folders_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, socket) = (dir.path().join("pipe"), dir.path().join("socket"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (&*pipe, "is a pipe, not a regular file"),
            (&socket, "is a socket, not a regular file"),
            (Path::new("/dev/zero"), "/dev/zero is a device, not a regular file"),
            (dir.path(), "is a folder, not a regular file"),
        ] {
            let refusal = read_text(path).unwrap_err();
            assert!(matches!(refusal, Error::Unsuitable { .. }), "{refusal:?}");
            assert!(refusal.to_string().contains(what), "{refusal}");
        }
    }

    #[test]
    fn only_regular_files_are_opened_and_no_pipe_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, file) = (dir.path().join("pipe"), dir.path().join("file"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        fs::write(&file, b"whole").unwrap();
        assert_eq!(read_regular(&file).unwrap(), b"whole");
        for (path, kind, words) in [
            (&*pipe, ErrorKind::InvalidInput, "it is a pipe, not a regular file"),
            (Path::new("/dev/zero"), ErrorKind::InvalidInput, "it is a device, not a regular file"),
            (dir.path(), ErrorKind::IsADirectory, "it is a folder, not a regular file"),
            (&dir.path().join("absent"), ErrorKind::NotFound, "No such file"),
        ] {
            let refusal = open_regular(path).unwrap_err();
            assert_eq!(refusal.kind(), kind, "{refusal}");
            assert!(refusal.to_string().contains(words), "{refusal}");
        }
    }

    #[test]
    fn a_file_instead_of_a_folder_is_called_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [&file, &file.join("below"), &file.join("far/below")] {
            let refusal = check_folder(path, "a dataset").unwrap_err().to_string();
            assert_eq!(refusal, format!("{} is a file, but a dataset is a folder", file.display()));
        }
        check_folder(dir.path(), "a dataset").unwrap();
        check_folder(&dir.path().join("absent/below"), "a dataset").unwrap();
    }
}
