//! Metrics in a file, for jobs that nobody can scrape.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rankine_base::publish::OwnOutput;
use rankine_base::{Error, Result};
use rankine_topology::Process;

/// Time between two writes.
const EVERY: Duration = Duration::from_secs(15);
/// Metrics of an earlier training or of an earlier moment, which later ones replace.
const METRICS: OwnOutput = OwnOutput {
    what: "a file of Rankine's metrics",
    is_own: |start| start.starts_with(b"# HELP rankine_"),
    way_out: "remove it",
};

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
    /// If the file cannot be written or has something else than metrics, or the thread cannot be started.
    pub(super) fn start(path: &Path, text: impl Fn() -> Vec<u8> + Send + 'static) -> Result<Self> {
        METRICS.replace(path, &text())?;
        let (end, ended) = channel::<()>();
        let path = path.to_owned();
        let run = move || {
            let mut failed = false;
            loop {
                let ends = ended.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
                let written = METRICS.replace(&path, &text());
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
        let thread = thread.map_err(|error| Error::refused("start a thread", error))?;
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

/// Returns the file of a process: all but the first one insert their number before the extension.
pub(super) fn path_of_process(path: &Path, process: Process) -> PathBuf {
    if process == Process(0) {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-rank{process}"));
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

    fn metrics(value: u32) -> String {
        format!("# HELP rankine_value A value.\n# TYPE rankine_value gauge\nrankine_value {value}\n")
    }

    #[test]
    fn processes_write_files_of_their_own() {
        let path = Path::new("/var/lib/node_exporter/rankine.prom");
        assert_eq!(path_of_process(path, Process(0)), path);
        assert_eq!(path_of_process(path, Process(3)), Path::new("/var/lib/node_exporter/rankine-rank3.prom"));
        assert_eq!(path_of_process(Path::new("metrics"), Process(1)), Path::new("metrics-rank1"));
    }

    #[test]
    fn the_file_has_the_last_values_at_the_end() {
        let place = tempfile::tempdir().expect("there is room");
        let path = place.path().join("rankine.prom");
        let value = Arc::new(AtomicU32::new(1));
        let shared = Arc::clone(&value);
        let text = move || metrics(shared.load(Ordering::SeqCst)).into_bytes();
        let file = Textfile::start(&path, text).expect("the file can be written");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), metrics(1));
        value.store(2, Ordering::SeqCst);
        drop(file);
        assert_eq!(fs::read_to_string(&path).expect("it is there"), metrics(2));
    }

    /// Another program's file is neither replaced at the start nor later.
    #[test]
    fn only_metrics_are_replaced() {
        let place = tempfile::tempdir().expect("there is room");
        let path = place.path().join("rankine.prom");
        let other = "# HELP node_load1 1m load average.\n";
        let start = || Textfile::start(&path, || metrics(1).into_bytes());
        fs::write(&path, other).expect("the file is written");
        let error = start().map(drop).expect_err("it is another program's").to_string();
        let words = "exists and is not a file of Rankine's metrics: choose another file, or remove it";
        assert!(error.ends_with(words), "{error}");
        fs::remove_file(&path).expect("the file is there");
        let file = start().expect("the file can be written");
        fs::write(&path, other).expect("the file is written");
        drop(file);
        assert_eq!(fs::read_to_string(&path).expect("it is there"), other);
        // Metrics of an earlier training are.
        fs::write(&path, metrics(5)).expect("the file is written");
        drop(start().expect("the file can be written"));
        assert_eq!(fs::read_to_string(&path).expect("it is there"), metrics(1));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error_at_the_start() {
        let place = tempfile::tempdir().expect("there is room");
        let error = Textfile::start(&place.path().join("missing/rankine.prom"), Vec::new).err();
        assert!(error.is_some_and(|error| error.to_string().contains("missing/rankine.prom")));
    }
}
