//! The final path of an output, and unique names.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::error::{Error, IoContext, Result};

/// The number of symbolic links that Linux follows in one path.
const LINKS_MAX: usize = 40;

/// Returns the parent folder of a path; `.` for a plain name.
pub(super) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// Returns a path without symbolic links, also in the last component. Only the last component may be missing.
///
/// Links of `/proc`, such as `/proc/self/fd/1`, are not paths: such a path ends with the link itself.
///
/// # Errors
/// [`Error::Io`]; [`Error::Unsuitable`] if links form a circle.
pub(super) fn resolve(output: &Path) -> Result<PathBuf> {
    let mut path = output.to_owned();
    for _ in 0..=LINKS_MAX {
        let Some(name) = path.file_name() else {
            return path.canonicalize().context("write", output);
        };
        let folder = parent(&path).canonicalize().context("write", output)?;
        let resolved = folder.join(name);
        if folder.starts_with("/proc") {
            return Ok(resolved);
        }
        match fs::symlink_metadata(&resolved) {
            Ok(metadata) if metadata.is_symlink() => {
                path = folder.join(fs::read_link(&resolved).context("read", &resolved)?);
            }
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context("write", output);
            }
            _ => return Ok(resolved),
        }
    }
    Err(Error::unsuitable(output, format!("{} leads through too many symbolic links", output.display())))
}

/// Returns letters that no other process or call gets, for names: the PID, a counter, and the time in nanoseconds to
/// distinguish processes with the same PID on other machines. They contain no dot.
pub fn unique_suffix() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{count}-{:08x}", process::id(), time.subsec_nanos())
}

/// Returns whether letters have the form of [`unique_suffix`].
pub(super) fn is_unique_suffix(letters: &[u8]) -> bool {
    let mut parts = letters.split(|&letter| letter == b'-');
    let is_number = |part: Option<&[u8]>| {
        part.is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit))
    };
    let is_hex = |part: Option<&[u8]>| {
        part.is_some_and(|part| part.len() == 8 && part.iter().all(u8::is_ascii_hexdigit))
    };
    is_number(parts.next()) && is_number(parts.next()) && is_hex(parts.next()) && parts.next().is_none()
}
