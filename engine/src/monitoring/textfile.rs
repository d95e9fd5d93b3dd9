//! Metrics in a file, for jobs that nobody can scrape.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rankine_embedding::Process;
use rankine_reader::publish::replace_file;
use rankine_reader::{Error, Result};

/// Time between two writes.
const EVERY: Duration = Duration::from_secs(15);

/// A thread that writes metrics to a file from time to time, and once more when this is dropped.
#[derive(Debug)]
pub(super) struct Textfile {
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Textfile {
    /// Writes the file, so that a path that cannot be written is an error now, and starts the thread.
    ///
    /// # Errors
    /// If the file cannot be written, or the thread not started.
    pub(super) fn start(path: &Path, text: impl Fn() -> Vec<u8> + Send + 'static) -> Result<Self> {
        replace_file(path, &text())?;
        let (end, ended) = channel::<()>();
        let path = path.to_owned();
        let run = move || {
            let mut failed = false;
            loop {
                let ends = ended.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
                let written = replace_file(&path, &text());
                // One warning, until it works again.
                match written {
                    Err(error) if !failed => {
                        tracing::warn!("metrics were not written: {error}");
                        failed = true;
                    }
                    written => failed = written.is_err(),
                }
                if ends {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("rankine-textfile".into()).spawn(run);
        let thread = thread.map_err(|error| Error::Invalid(format!("cannot start a thread: {error}")))?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Textfile {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed, and concerns no result.
            let _ = thread.join();
        }
    }
}

/// Returns the file of a process: all but the first one insert their rank before the extension.
pub(super) fn path_of_rank(path: &Path, rank: Process) -> PathBuf {
    if rank == Process(0) {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-rank{rank}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn processes_write_files_of_their_own() {
        let path = Path::new("/var/lib/node_exporter/rankine.prom");
        assert_eq!(path_of_rank(path, Process(0)), path);
        assert_eq!(path_of_rank(path, Process(3)), Path::new("/var/lib/node_exporter/rankine-rank3.prom"));
        assert_eq!(path_of_rank(Path::new("metrics"), Process(1)), Path::new("metrics-rank1"));
    }

    #[test]
    fn the_file_has_the_last_values_at_the_end() {
        let place = tempfile::tempdir().expect("there is room");
        let path = place.path().join("rankine.prom");
        let value = Arc::new(AtomicU32::new(1));
        let shared = Arc::clone(&value);
        let text = move || format!("value {}\n", shared.load(Ordering::SeqCst)).into_bytes();
        let file = Textfile::start(&path, text).expect("the file can be written");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "value 1\n");
        value.store(2, Ordering::SeqCst);
        drop(file);
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "value 2\n");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error_at_the_start() {
        let place = tempfile::tempdir().expect("there is room");
        let error = Textfile::start(&place.path().join("missing/rankine.prom"), Vec::new).err();
        assert!(error.is_some_and(|error| error.to_string().contains("missing/rankine.prom")));
    }
}
