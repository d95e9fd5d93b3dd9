//! Writing to stderr. Messages that it does not accept are dropped: a closed terminal, a full disk or a pipe that
//! nobody reads must neither end a command nor block it.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rankine_topology::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::Level;

use super::records::Record;

/// How long a message waits for a pipe or a terminal that accepts nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause before a second attempt if a descriptor that was ready accepted nothing.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes per write: a pipe that is ready accepts this much without blocking (`PIPE_BUF`).
const PIECE: usize = 4096;

/// The stderr of the process, opened at the first message.
static STDERR: Mutex<Option<Sink>> = Mutex::new(None);

/// The process in the messages of [`line`], once they are to be JSON.
static RECORDS: OnceLock<Option<Process>> = OnceLock::new();

/// Makes JSON of all further messages; `process` is this one if there are several.
pub(crate) fn write_records(process: Option<Process>) {
    // Set once, when the command starts.
    let _ = RECORDS.set(process);
}

/// Returns whether messages are JSON.
pub(crate) fn has_records() -> bool {
    RECORDS.get().is_some()
}

/// Writes a line.
pub(crate) fn line(text: impl Display) {
    match RECORDS.get() {
        None => write(format!("{text}\n").as_bytes()),
        Some(process) => {
            write(Record::new(Level::INFO, &text.to_string(), *process).to_line().as_bytes());
        }
    }
}

/// Writes a message as it is.
pub(crate) fn write(message: &[u8]) {
    with(|sink| sink.message(message));
}

/// Draws a frame that the next one replaces. It never waits, and a dropped frame does not matter.
pub(crate) fn draw(frame: &[u8]) {
    with(|sink| {
        sink.send(frame, Duration::ZERO);
    });
}

fn with(act: impl FnOnce(&mut Sink)) {
    let mut stderr = STDERR.lock().unwrap_or_else(PoisonError::into_inner);
    if stderr.is_none() {
        *stderr = Sink::new(&io::stderr()).ok();
    }
    // Without a free descriptor, nothing can be printed.
    if let Some(sink) = stderr.as_mut() {
        act(sink);
    }
}

/// A descriptor that messages are written to without blocking for long.
#[derive(Debug)]
struct Sink {
    file: File,
    /// Whether the last message was not accepted. Then later messages do not wait until one is accepted.
    stalled: bool,
    /// Whether the last message was cut off within a line.
    broken_off: bool,
    /// Messages dropped since the last accepted one.
    dropped: u64,
}

impl Sink {
    fn new(descriptor: &impl AsFd) -> io::Result<Self> {
        let inherited = File::from(descriptor.as_fd().try_clone_to_owned()?);
        // Only pipes and terminals block a writer. They are opened again for O_NONBLOCK, which would otherwise apply to
        // all processes that share the inherited description. A regular file would lose its offset.
        let waits = inherited.is_terminal() || inherited.metadata()?.file_type().is_fifo();
        let path = format!("/proc/self/fd/{}", inherited.as_raw_fd());
        let own = || File::options().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        let file = if waits { own().unwrap_or(inherited) } else { inherited };
        Ok(Self { file, stalled: false, broken_off: false, dropped: 0 })
    }

    fn message(&mut self, message: &[u8]) {
        let patience = if self.stalled { Duration::ZERO } else { PATIENCE };
        let mut whole = Vec::new();
        if self.broken_off {
            whole.push(b'\n');
        }
        if self.dropped > 0 {
            let (messages, them) = match self.dropped {
                1 => ("1 message was".into(), "it"),
                dropped => (format!("{dropped} messages were"), "them"),
            };
            whole.extend(format!("[{messages} dropped here: stderr did not accept {them}]\n").into_bytes());
        }
        whole.extend_from_slice(message);
        self.stalled = !self.send(&whole, patience);
        self.dropped = if self.stalled { self.dropped + 1 } else { 0 };
    }

    /// Writes as much as is accepted; returns whether that was all.
    fn send(&mut self, bytes: &[u8], patience: Duration) -> bool {
        let began = Instant::now();
        let mut rest = bytes;
        while !rest.is_empty() {
            let left = patience.saturating_sub(began.elapsed());
            if !self.is_ready(left) {
                break;
            }
            match self.file.write(&rest[..rest.len().min(PIECE)]) {
                Ok(taken) if taken > 0 => rest = &rest[taken..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !left.is_zero() => {
                    thread::sleep(PAUSE)
                }
                // Gone (EPIPE, EIO), full (ENOSPC), or too slow.
                Ok(_) | Err(_) => break,
            }
        }
        if rest.len() < bytes.len() {
            self.broken_off = !rest.is_empty();
        }
        rest.is_empty()
    }

    /// Waits until the descriptor accepts bytes or reports an error.
    fn is_ready(&self, patience: Duration) -> bool {
        let timeout = Timespec::try_from(patience).ok();
        poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter, Read, Seek, pipe};

    use super::*;

    fn piped() -> (PipeReader, PipeWriter, Sink) {
        let (reader, writer) = pipe().unwrap();
        let sink = Sink::new(&writer).unwrap();
        (reader, writer, sink)
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody_up() {
        let (mut reader, writer, mut sink) = piped();
        let line = [&b"x".repeat(999)[..], b"\n"].concat();
        let began = Instant::now();
        for _ in 0..10_000 {
            sink.message(&line);
        }
        assert!(began.elapsed() < 3 * PATIENCE, "{:?}", began.elapsed());
        assert!(sink.dropped > 9000);
        let mut taken = vec![0; 1 << 20];
        let read = reader.read(&mut taken).unwrap();
        assert!(read >= PIECE);
        // A note about the gap precedes the next message, on its own line.
        let dropped = sink.dropped;
        sink.message(b"afterwards\n");
        drop((sink, writer));
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let expected =
            format!("[{dropped} messages were dropped here: stderr did not accept them]\nafterwards\n");
        assert!(rest.ends_with(&expected), "{rest}");
        let before = rest.len() - expected.len();
        assert!(before == 0 || rest.as_bytes()[before - 1] == b'\n', "{rest}");
    }

    #[test]
    fn a_reader_that_is_gone_is_no_error() {
        let (reader, _writer, mut sink) = piped();
        sink.message(b"taken\n");
        drop(reader);
        let began = Instant::now();
        (0..1000).for_each(|_| sink.message(b"dropped\n"));
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        assert_eq!(sink.dropped, 1000);
    }

    #[test]
    fn a_file_is_appended_to_where_it_was() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before\n").unwrap();
        let mut sink = Sink::new(&file).unwrap();
        sink.message(b"one\n");
        file.write_all(b"two\n").unwrap();
        sink.message(b"three\n");
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before\none\ntwo\nthree\n");
    }
}
