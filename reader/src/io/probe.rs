//! Tests which rungs work in a folder, to diagnose slow reading.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_base::publish::unique_suffix;

use super::ladder::{self, RungRefused};
use super::options::Rung;
use super::reads::Reads;
use super::request::ReadRequest;
use super::slab::SlabRing;

/// Size of the trial file: several reads.
const PROBE_BYTES: usize = 256 * 1024;
const READ_BYTES: usize = 64 * 1024;
const DEPTH: u32 = 2;

/// Tries every rung on a small temporary file in `dir` and returns why those that do not work were refused. If the
/// file cannot be created, that is the reason for every rung.
pub fn probe(dir: &Path) -> Vec<(Rung, Result<(), RungRefused>)> {
    let file = TemporaryFile::create(dir);
    let outcome = |rung| match &file {
        Ok(file) => try_rung(rung, file),
        Err(why) => Err(why.clone().into()),
    };
    Rung::ALL.map(|rung| (rung, outcome(rung))).into()
}

fn try_rung(rung: Rung, file: &TemporaryFile) -> Result<(), RungRefused> {
    let ring = SlabRing::allocate(DEPTH as usize + 1, READ_BYTES).map_err(|error| error.to_string())?;
    let paths: Arc<[PathBuf]> = [file.path.clone()].into();
    let opened = ladder::attempt(rung, &paths, &ring, DEPTH)?;
    let requests = (0..PROBE_BYTES / READ_BYTES).map(|number| ReadRequest {
        file: 0,
        offset: (number * READ_BYTES) as u64,
        bytes: READ_BYTES as u32,
    });
    let reads = Reads::start(paths, requests, ring, DEPTH, rung, opened.backend)
        .map_err(|error| error.to_string())?;
    let mut expected = file.bytes.chunks_exact(READ_BYTES);
    for slab in reads {
        let slab = slab.map_err(|error| error.to_string())?;
        if expected.next() != Some(slab.bytes()) {
            return Err("it reads different bytes than were written".to_owned().into());
        }
    }
    Ok(())
}

struct TemporaryFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl TemporaryFile {
    fn create(dir: &Path) -> Result<Self, String> {
        Self::create_at(dir.join(format!(".rankine-probe-{}", unique_suffix())))
    }

    /// The folder may be writable by others: an existing file or link with the file's name is neither written nor
    /// followed.
    fn create_at(path: PathBuf) -> Result<Self, String> {
        let bytes: Vec<u8> = (0..PROBE_BYTES).map(|at| (at ^ (at >> 8)) as u8).collect();
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        let failed = |error| format!("cannot write {}: {error}", path.display());
        let mut file = file.map_err(failed)?;
        // From here on the file is removed in any case.
        let made = Self { path: path.clone(), bytes };
        file.write_all(&made.bytes).and_then(|()| File::sync_all(&file)).map_err(failed)?;
        Ok(made)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_probed_and_left_clean() {
        let dir = tempfile::tempdir().unwrap();
        let probed = probe(dir.path());
        assert_eq!(probed.iter().map(|(rung, _)| *rung).collect::<Vec<_>>(), Rung::ALL);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_existing_file_with_the_probes_name_is_neither_written_nor_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (probe, precious) = (dir.path().join("probe"), dir.path().join("precious"));
        fs::write(&precious, "kept").unwrap();
        for link in [&precious, &dir.path().join("missing")] {
            std::os::unix::fs::symlink(link, &probe).unwrap();
            assert!(TemporaryFile::create_at(probe.clone()).is_err());
            assert!(fs::symlink_metadata(&probe).unwrap().is_symlink());
            fs::remove_file(&probe).unwrap();
        }
        assert_eq!(fs::read(&precious).unwrap(), b"kept");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_folder_is_every_rungs_reason() {
        let dir = tempfile::tempdir().unwrap();
        let probed = probe(&dir.path().join("missing"));
        assert!(probed.iter().all(|(_, outcome)| outcome.as_ref().unwrap_err().why.contains("missing")));
    }
}
